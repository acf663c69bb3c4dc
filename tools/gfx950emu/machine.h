// The machine's state and how instructions reach it: waves, work-groups, decoded instructions, operands. One handler per
// mnemonic (valu.cpp, salu.cpp, memory.cpp, mfma.cpp) works on these; launch.cpp drives them.
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <unordered_map>

#include "core/number.h"
#include "gfx950emu.h"

namespace gfx950emu {

using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

inline float as_float(u32 x) { return std::bit_cast<float>(x); }
inline u32 as_bits(float x) { return std::bit_cast<u32>(x); }

inline u32 reverse_bits(u32 x) {
  u32 r = 0;
  for (int k = 0; k < 32; ++k) r |= (x >> k & 1) << (31 - k);
  return r;
}

constexpr int kLanes = 64;
constexpr int kVccLo = 106, kM0 = 124, kExecLo = 126;  // scalar registers by encoding
constexpr int kFirstAgpr = 256;                        // a0 in Wave::v

enum class Architecture : u8 { kGfx942, kGfx950, kGfx1250 };
constexpr std::string_view name_of(Architecture a) {
  return a == Architecture::kGfx942 ? "gfx942" : a == Architecture::kGfx950 ? "gfx950" : "gfx1250";
}

struct Wave;
struct Inst;
using Handler = void (*)(Wave&, const Inst&);

struct Operand {
  enum Kind : u8 { kNone, kVector, kScalar, kLiteral, kScc } kind = kNone;
  u16 index = 0;  // register
  u8 count = 1;   // registers
  bool negate = false, absolute = false;
  u64 literal = 0;    // as 64 bits
  u32 literal32 = 0;  // as 32 bits: a float constant has another pattern there
};

// One decoded instruction. The last group of members means what the mnemonic's family needs.
struct Inst {
  Handler run = nullptr;
  std::string name, text;  // name without an encoding suffix
  u64 pc = 0;
  u32 bytes = 0, id = 0;
  Class kind = Class::kVector;
  std::vector<Operand> op;
  std::unordered_map<std::string, std::string> modifiers;

  pasa::Fp8 fp8 = pasa::Fp8::kE4m3fn;  // what the architecture's e4m3 is

  int dpp = -1;  // DPP control, or -1
  u32 row_mask = 15, bank_mask = 15;
  bool bound_control = false, clamp = false, sdwa = false;
  int output_modifier = 0;                                // 1: *2, 2: *4, 3: /2
  int select0 = 6, select1 = 6, select_out = 6;           // SDWA: byte 0..3, word 4..5, all 6
  bool sign0 = false, sign1 = false, preserve = false;    // SDWA: sext(), UNUSED_PRESERVE
  u32 op_sel = 0, op_sel_hi = 7, neg_lo = 0, neg_hi = 0;  // one bit an operand

  i64 offset = 0;                // memory
  u32 offset0 = 0, offset1 = 0;  // two-address LDS forms, in bytes
  u32 width = 0;                 // bytes of an access
  bool sign_extend = false, d16_low = false, d16_high = false, to_lds = false, by_lane = false, returns = false;
  int transpose = 0;        // element bits of a transposing LDS read
  int rows = 0, depth = 0;  // MFMA: M = N, K
  int format_a = 0, format_b = 0, passes = 0;
  bool scaled = false;
  u32 immediate = 0;  // truth table, swizzle pattern, wait counts
  i32 wait_memory = -1, wait_lds = -1;
};

// A memory operation under way: registers that it will write, and what happens when it completes.
struct Pending {
  std::function<void()> complete;
  u16 vector = 0, vectors = 0, scalar = 0, scalars = 0;  // first register and how many
};

// Which waves touched a dword of LDS, and in which barrier interval.
struct LdsShadow {
  u32 write_interval = 0, read_interval = 0;
  u32 writers = 0, readers = 0;  // one bit a wave
  int direct_load = -1;          // wave whose direct load into it is in flight
};

struct Group {
  Architecture architecture;
  const Options* options;
  std::vector<Range> buffers;  // sorted
  std::vector<u8> lds;
  std::vector<LdsShadow> shadow;
  u32 interval = 1;  // counts barriers
  u32 scratch_bytes = 0;
  Stats stats;
};

struct Wave {
  u32 v[512][kLanes];  // v0..v255, a0..a255
  u32 s[256];
  bool scc = false, done = false, at_barrier = false;
  u64 pc = 0;
  int id = 0;
  Group* group = nullptr;
  std::deque<Pending> memory, lds, scalar_memory;
  u8 vector_pending[512] = {}, scalar_pending[256] = {};
  std::vector<u8> scratch;
  // Wait states: every instruction is one, s_nop N are N + 1. Per register, when the last MFMA wrote it.
  u64 states = 100, last_matrix = 0;
  struct MatrixWrite {
    u64 at = 0;
    u16 first = 0;
    u8 registers = 0, passes = 0;
  } matrix[512];
  u64 vector_wrote[256] = {};          // per scalar register, when a vector instruction last did
  std::vector<u64>* counts = nullptr;  // by Inst::id

  u64 s64(int i) const { return s[i] | static_cast<u64>(s[i + 1]) << 32; }
  void set_s64(int i, u64 x) {
    s[i] = static_cast<u32>(x);
    s[i + 1] = static_cast<u32>(x >> 32);
  }
  u64 exec() const { return s64(kExecLo); }
  void set_exec(u64 x) { set_s64(kExecLo, x); }
  bool active(int lane) const { return exec() >> lane & 1; }
};

// Throws Error: the finding, then where.
[[noreturn]] void finding(const Inst& inst, const std::string& what);

// ---- operands (valu.cpp)
u32 scalar32(const Wave& w, const Operand& o);
u64 scalar64(const Wave& w, const Operand& o);
u32 lane32(const Wave& w, const Operand& o, int lane);
u64 lane64(const Wave& w, const Operand& o, int lane);
void write_vector(Wave& w, int index, const u32* values, u64 mask);

// ---- memory queues (memory.cpp)
void enqueue(Wave& w, std::deque<Pending>& queue, Pending pending);
void drain(Wave& w, std::deque<Pending>& queue, std::size_t left);

// ---- decoding
struct Entry {
  std::string_view name;
  Handler run;
};
std::span<const Entry> vector_entries();
std::span<const Entry> scalar_entries();
bool set_up_memory(Inst& inst);  // fills a decoded instruction if it belongs to the family
bool set_up_matrix(Inst& inst);

class Decoder {
 public:
  explicit Decoder(Architecture architecture);
  ~Decoder();
  // The instruction at `code` (host memory); its pc is `pc`. inst.run stays nullptr if it is unknown to the emulator.
  Inst decode(const u8* code, std::size_t available, u64 pc) const;

 private:
  Architecture architecture_;
  void* context_;
};

}  // namespace gfx950emu
