// PTX text as data: a module's kernels, each a list of instructions with resolved names. Nothing here knows what an
// instruction does; compile.cpp gives them meaning.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ptxemu {

using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

// A register's width; what its bits mean is the instruction's business.
enum class Width : u8 { kPredicate, k16, k32, k64 };

struct Register {
  Width width;
  std::string name;
};

enum class Space : u8 { kGeneric, kGlobal, kShared, kLocal, kParam, kConst };

// A named piece of memory: a parameter, a shared or local array, a module's variable.
struct Variable {
  Space space;
  u64 at = 0;  // offset in its space; the host address of a module's variable
  u64 bytes = 0, alignment = 1;
};

struct Operand {
  enum Kind : u8 {
    kRegister,
    kNegated,    // !predicate
    kImmediate,  // value; a float's bits
    kVariable,   // the address of `variable`, plus value
    kAddress,    // [register + value], [variable + value] or [value]
    kVector,     // {parts}
    kLabel,      // value: the position of an instruction
    kSpecial,    // %tid.x
    kSink        // _
  } kind = kSink;
  i32 reg = -1;
  const Variable* variable = nullptr;
  i64 value = 0;
  std::string text;            // kSpecial, and kLabel while its position is unknown
  std::vector<Operand> parts;  // kVector; kAddress of a tensor: its coordinates
};

struct Instruction {
  std::string name;                    // "ld.global.nc.v4.u32"
  std::vector<std::string_view> part;  // of the name, between its dots
  std::vector<Operand> op;
  i32 predicate = -1;
  bool negated = false;
  bool pair = false;       // two results: d|p
  u32 file = 0, line = 0;  // of the source

  bool has(std::string_view suffix) const {
    for (const std::string_view& p : part) {
      if (p == suffix) return true;
    }
    return false;
  }
  std::string_view type() const { return part.back(); }
};

struct Function {
  std::string name;
  std::vector<Register> registers;
  std::vector<Instruction> code;
  std::vector<Variable> parameters;
  std::map<std::string, Variable> variables;  // parameters, shared and local arrays
  u64 parameter_bytes = 0, shared_bytes = 0, local_bytes = 0;
  u32 max_threads = 0;
};

class Text {
 public:
  // Throws Error if the text is no PTX.
  explicit Text(std::string text);
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  std::vector<std::string> kernels() const;
  // Throws Error that names what it does not understand.
  Function parse(const std::string& kernel) const;
  std::string file(u32 number) const;
  const std::map<std::string, Variable>& variables() const { return variables_; }  // of the module

 private:
  struct Entry {
    std::string_view head, body;
  };
  std::string text_;
  std::map<std::string, Entry> entries_;
  std::map<std::string, Variable> variables_;
  std::vector<std::vector<u64>> storage_;  // of the module's variables
  std::map<u32, std::string> files_;
};

}  // namespace ptxemu
