// From bytes to Inst: LLVM disassembles, its text is parsed once per instruction. Text is a stable and complete
// interface (every modifier is spelled out), and an instruction that the emulator lacks has at least a name.
#include <llvm-c/Disassembler.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "machine.h"

extern "C" {  // of llvm-c/Target.h, which declares them for all targets that LLVM was built with
void LLVMInitializeAMDGPUTargetInfo();
void LLVMInitializeAMDGPUTarget();
void LLVMInitializeAMDGPUTargetMC();
void LLVMInitializeAMDGPUDisassembler();
}

namespace gfx950emu {
namespace {

std::string_view trim(std::string_view s) {
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
  while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
  return s;
}

// Splits at `separator` outside brackets.
std::vector<std::string_view> split(std::string_view s, char separator) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i <= s.size(); ++i) {
    const char c = i < s.size() ? s[i] : separator;
    depth += (c == '[' || c == '(') - (c == ']' || c == ')');
    if (c != separator || depth) continue;
    if (const std::string_view part = trim(s.substr(begin, i - begin)); !part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

struct NamedRegister {
  std::string_view name;
  u16 index;
  u8 count;
};
constexpr NamedRegister kNamed[] = {
    {"vcc", kVccLo, 2},          {"vcc_lo", kVccLo, 1},    {"vcc_hi", kVccLo + 1, 1},
    {"exec", kExecLo, 2},        {"m0", kM0, 1},           {"exec_lo", kExecLo, 1},
    {"exec_hi", kExecLo + 1, 1}, {"flat_scratch", 102, 2}, {"xnack_mask", 104, 2},
};

// False: not understood. An operand that is spelled "off" is absent.
bool parse_operand(std::string_view s, Operand& o, bool& sign_extend) {
  const auto unwrap = [&s](std::string_view prefix, std::size_t suffix) {
    if (!s.starts_with(prefix)) return false;
    s = s.substr(prefix.size(), s.size() - prefix.size() - suffix);
    return true;
  };
  if (s.size() > 1 && s[0] == '-' && !std::isdigit(static_cast<unsigned char>(s[1]))) o.negate = unwrap("-", 0);
  if (unwrap("neg(", 1)) o.negate = true;
  if (unwrap("sext(", 1)) sign_extend = true;
  if (unwrap("|", 1)) o.absolute = true;
  unwrap("lit(", 1);
  if (s == "off" || s == "null") return true;
  if (s == "src_scc" || s == "scc") {
    o.kind = Operand::kScc;
    return true;
  }
  for (const NamedRegister& named : kNamed) {
    if (s != named.name) continue;
    o.kind = Operand::kScalar;
    o.index = named.index;
    o.count = named.count;
    return true;
  }
  const bool ttmp = s.starts_with("ttmp");
  if (ttmp || ((s[0] == 'v' || s[0] == 's' || s[0] == 'a') && s.size() > 1)) {
    const std::string digits(s.substr(ttmp ? 4 : 1));
    int first = 0, last = 0;
    if (std::sscanf(digits.c_str(), "[%d:%d]", &first, &last) != 2) {
      if (std::sscanf(digits.c_str(), "[%d]", &first) != 1 && std::sscanf(digits.c_str(), "%d", &first) != 1)
        return false;
      last = first;
    }
    o.kind = s[0] == 's' || ttmp ? Operand::kScalar : Operand::kVector;
    o.index = static_cast<u16>(first + (ttmp ? 112 : s[0] == 'a' ? kFirstAgpr : 0));
    o.count = static_cast<u8>(last - first + 1);
    return true;
  }
  const std::string number(s);
  char* end = nullptr;
  o.kind = Operand::kLiteral;
  if (s.find('.') != std::string_view::npos) {
    const double x = std::strtod(number.c_str(), &end);
    o.literal = std::bit_cast<u64>(x);
    o.literal32 = as_bits(static_cast<float>(x));
  } else {
    o.literal =
        s[0] == '-' ? static_cast<u64>(std::strtoll(number.c_str(), &end, 0)) : std::strtoull(number.c_str(), &end, 0);
    o.literal32 = static_cast<u32>(o.literal);
  }
  return *end == 0;
}

Class classify(std::string_view name) {
  if (name == "s_nop") return Class::kNop;
  if (name.starts_with("s_waitcnt")) return Class::kWait;
  if (name == "s_barrier") return Class::kBarrier;
  if (name.starts_with("s_")) return Class::kScalar;
  if (name.starts_with("v_accvgpr")) return Class::kAgprMove;
  if (name.starts_with("v_mfma")) return Class::kMfma;
  for (std::string_view prefix : {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"}) {
    if (name.starts_with(prefix)) return Class::kTranscendental;
  }
  if (name.starts_with("v_")) return Class::kVector;
  return name.starts_with("ds_") ? Class::kLds : Class::kMemory;
}

const std::unordered_map<std::string_view, Handler>& handlers() {
  static const std::unordered_map<std::string_view, Handler> map = [] {
    std::unordered_map<std::string_view, Handler> all;
    for (const Entry& e : vector_entries()) all[e.name] = e.run;
    for (const Entry& e : scalar_entries()) all[e.name] = e.run;
    return all;
  }();
  return map;
}

// "[0,1,1]" as bits, the first is bit 0.
u32 bit_list(std::string_view s, std::size_t* size = nullptr) {
  u32 bits = 0, at = 0;
  for (char c : s) {
    if (std::isdigit(static_cast<unsigned char>(c))) bits |= static_cast<u32>(c - '0') << at++;
  }
  if (size) *size = at;
  return bits;
}

class Modifiers {
 public:
  explicit Modifiers(const std::unordered_map<std::string, std::string>& map) : map_(map) {}
  bool has(const char* key) const { return map_.contains(key); }
  std::string_view text(const char* key) const {
    const auto found = map_.find(key);
    return found == map_.end() ? std::string_view() : std::string_view(found->second);
  }
  i64 number(const char* key, i64 missing = 0) const {
    const auto found = map_.find(key);
    return found == map_.end() ? missing : std::strtoll(found->second.c_str(), nullptr, 0);
  }

 private:
  const std::unordered_map<std::string, std::string>& map_;
};

int dpp_control(const Modifiers& m) {
  struct Control {
    const char* key;
    int base;
  };
  for (const Control& c :
       {Control{"row_shl", 0x100}, {"row_shr", 0x110}, {"row_ror", 0x120}, {"row_newbcast", 0x150}}) {
    if (m.has(c.key)) return c.base + static_cast<int>(m.number(c.key));
  }
  for (const Control& c : {Control{"wave_shl", 0x130},
                           {"wave_rol", 0x134},
                           {"wave_shr", 0x138},
                           {"wave_ror", 0x13c},
                           {"row_mirror", 0x140},
                           {"row_half_mirror", 0x141}}) {
    if (m.has(c.key)) return c.base;
  }
  if (m.has("row_bcast")) return m.number("row_bcast") == 15 ? 0x142 : 0x143;
  if (m.has("quad_perm")) {
    int control = 0, at = 0;
    for (char c : m.text("quad_perm")) {
      if (std::isdigit(static_cast<unsigned char>(c))) control |= (c - '0') << (2 * at++);
    }
    return control;
  }
  return -1;
}

int sdwa_select(std::string_view s) {
  constexpr std::string_view kNames[] = {"BYTE_0", "BYTE_1", "BYTE_2", "BYTE_3", "WORD_0", "WORD_1"};
  const auto found = std::find(std::begin(kNames), std::end(kNames), s);
  return static_cast<int>(found - std::begin(kNames));  // 6: DWORD or not given
}

void apply_modifiers(Inst& inst) {
  const Modifiers m(inst.modifiers);
  inst.dpp = dpp_control(m);
  inst.row_mask = static_cast<u32>(m.number("row_mask", 15));
  inst.bank_mask = static_cast<u32>(m.number("bank_mask", 15));
  inst.bound_control = m.has("bound_ctrl");
  inst.clamp = m.has("clamp");
  inst.output_modifier = m.has("div") ? 3 : m.has("mul") ? static_cast<int>(m.number("mul")) / 2 : 0;
  inst.select0 = sdwa_select(m.text("src0_sel"));
  inst.select1 = sdwa_select(m.text("src1_sel"));
  inst.select_out = sdwa_select(m.text("dst_sel"));
  inst.preserve = m.text("dst_unused") == "UNUSED_PRESERVE";
  if (m.has("op_sel")) {
    std::size_t size;
    inst.op_sel = bit_list(m.text("op_sel"), &size);
    if (size == inst.op.size()) {  // the last one is the destination's: bit 3
      const u32 last = 1u << (size - 1);
      if (inst.op_sel & last) inst.op_sel = (inst.op_sel & ~last) | 8;
    }
  }
  if (m.has("op_sel_hi")) inst.op_sel_hi = bit_list(m.text("op_sel_hi"));
  if (m.has("neg_lo")) inst.neg_lo = bit_list(m.text("neg_lo"));
  if (m.has("neg_hi")) inst.neg_hi = bit_list(m.text("neg_hi"));
  inst.offset = m.number("offset");
  inst.offset0 = static_cast<u32>(m.number("offset0"));
  inst.offset1 = static_cast<u32>(m.number("offset1"));
  inst.to_lds = m.has("lds");
  inst.by_lane = m.has("offen");
  inst.returns = m.has("sc0");
  if (m.has("bitop3")) inst.immediate = static_cast<u32>(m.number("bitop3"));
}

int wait_count(const std::string& text, const char* counter) {
  const std::size_t at = text.find(counter);
  return at == std::string::npos ? -1 : std::atoi(text.c_str() + at + std::strlen(counter));
}

}  // namespace

Decoder::Decoder(Architecture architecture) : architecture_(architecture) {
  LLVMInitializeAMDGPUTargetInfo();
  LLVMInitializeAMDGPUTarget();
  LLVMInitializeAMDGPUTargetMC();
  LLVMInitializeAMDGPUDisassembler();
  context_ = LLVMCreateDisasmCPU("amdgcn-amd-amdhsa", name_of(architecture).data(), nullptr, 0, nullptr, nullptr);
  if (!context_) throw Error("LLVM has no AMDGPU disassembler");
}

Decoder::~Decoder() { LLVMDisasmDispose(context_); }

Inst Decoder::decode(const u8* code, std::size_t available, u64 pc) const {
  char text[512] = "";
  const std::size_t bytes = LLVMDisasmInstruction(context_, const_cast<u8*>(code), available, pc, text, sizeof text);
  Inst inst;
  inst.pc = pc;
  inst.bytes = static_cast<u32>(bytes ? bytes : 4);
  inst.text = bytes ? trim(text) : "(undecodable)";
  std::replace(inst.text.begin(), inst.text.end(), '\t', ' ');
  const std::size_t space = std::min(inst.text.find(' '), inst.text.size());
  inst.name = inst.text.substr(0, space);
  std::string_view rest = std::string_view(inst.text).substr(space);
  for (std::string_view suffix : {"_e32", "_e64", "_dpp", "_sdwa"}) {
    if (!inst.name.ends_with(suffix)) continue;
    inst.name.resize(inst.name.size() - suffix.size());
    inst.sdwa = suffix == "_sdwa";
    break;
  }
  inst.kind = classify(inst.name);
  if (architecture_ == Architecture::kGfx942) inst.fp8 = pasa::Fp8::kE4m3fnuz;
  if (inst.name == "s_waitcnt") {
    inst.wait_memory = wait_count(inst.text, "vmcnt(");
    inst.wait_lds = wait_count(inst.text, "lgkmcnt(");
    inst.run = handlers().at("s_waitcnt");
    return inst;
  }
  if (inst.name == "ds_swizzle_b32") {  // its offset is spelled as a pattern; the code has it plainly
    inst.immediate = static_cast<u32>(code[0] | code[1] << 8);
    rest = rest.substr(0, rest.find("offset:"));
  }

  // Operands are separated by commas; modifiers follow the last one, separated by spaces.
  std::vector<std::string_view> parts = split(rest, ',');
  bool understood = true;
  for (std::size_t k = 0; k < parts.size(); ++k) {
    std::vector<std::string_view> words = {parts[k]};
    if (k + 1 == parts.size()) words = split(parts[k], ' ');
    for (std::size_t i = 1; i < words.size(); ++i) {
      const std::size_t colon = std::min(words[i].find(':'), words[i].size());
      inst.modifiers[std::string(words[i].substr(0, colon))] = words[i].substr(std::min(colon + 1, words[i].size()));
    }
    Operand operand;
    bool sign_extend = false;
    understood &= parse_operand(words[0], operand, sign_extend);
    if (sign_extend) (k == 1 ? inst.sign0 : inst.sign1) = true;
    inst.op.push_back(operand);
  }
  apply_modifiers(inst);
  if (!understood && !inst.name.starts_with("s_setreg")) return inst;
  if (const auto found = handlers().find(inst.name); found != handlers().end()) {
    inst.run = found->second;
  } else if (!set_up_memory(inst)) {
    set_up_matrix(inst);
  }
  return inst;
}

}  // namespace gfx950emu
