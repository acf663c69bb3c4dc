// Instructions -> Ops: control flow, liveness, registers of the warp for PTX's unlimited ones, then each instruction's
// handler and operands. A kernel has ten thousand virtual registers and a few hundred live at a time: what a warp carries
// fits the cache only after this allocation.
#include <algorithm>
#include <set>

#include "tools/ptxemu/machine.h"

namespace ptxemu {
namespace {

constexpr u32 kCellBytes = kLanes * 4;

// How many of the leading operands are results.
std::size_t results(const Instruction& i) {
  static const std::set<std::string_view> kNone = {
      "st",        "bra",       "ret",   "exit",   "trap", "bar",      "barrier",    "cp",
      "prefetch",  "prefetchu", "fence", "membar", "red",  "stmatrix", "setmaxnreg", "griddepcontrol",
      "nanosleep", "discard",   "wgmma"};
  const std::string_view name = i.part[0];
  if ((name == "bar" || name == "barrier") && i.part.size() > 1 && i.part[1] == "red") return 1;
  if (kNone.contains(name) || i.op.empty()) return 0;
  if (i.op[0].kind == Operand::kAddress) return 0;  // mbarrier forms without a state
  return i.pair ? 2 : 1;
}

template <typename Visit>
void each_register(const Operand& o, Visit&& visit) {
  if (o.reg >= 0) visit(static_cast<u32>(o.reg));
  for (const Operand& part : o.parts) each_register(part, visit);
}

// visit(register, is_result)
template <typename Visit>
void each_register(const Instruction& i, Visit&& visit) {
  if (i.predicate >= 0) visit(static_cast<u32>(i.predicate), false);
  const std::size_t first_source = results(i);
  for (std::size_t k = 0; k < i.op.size(); ++k) {
    each_register(i.op[k], [&](u32 reg) { visit(reg, k < first_source); });
  }
}

bool is_branch(const Instruction& i) { return i.part[0] == "bra"; }
bool ends_block(const Instruction& i) { return is_branch(i) || i.part[0] == "ret" || i.part[0] == "exit"; }

struct Block {
  u32 begin, end;
  std::vector<u32> next;
  std::vector<u64> live_in, live_out, defined, used;
};

std::vector<Block> find_blocks(const Function& f) {
  const auto size = static_cast<u32>(f.code.size());
  std::vector<bool> leader(size + 1);
  leader[0] = true;
  for (u32 at = 0; at < size; ++at) {
    if (!ends_block(f.code[at])) continue;
    leader[at + 1] = true;
    if (is_branch(f.code[at])) leader[static_cast<std::size_t>(f.code[at].op[0].value)] = true;
  }
  std::vector<Block> blocks;
  std::vector<u32> block_at(size + 1);
  for (u32 at = 0; at < size; ++at) {
    if (leader[at]) blocks.push_back({at, at, {}, {}, {}, {}, {}});
    block_at[at] = static_cast<u32>(blocks.size()) - 1;
    blocks.back().end = at + 1;
  }
  for (u32 b = 0; b < blocks.size(); ++b) {
    const Instruction& last = f.code[blocks[b].end - 1];
    if (is_branch(last)) blocks[b].next.push_back(block_at[static_cast<std::size_t>(last.op[0].value)]);
    if ((!ends_block(last) || last.predicate >= 0) && b + 1 < blocks.size()) blocks[b].next.push_back(b + 1);
  }
  return blocks;
}

void find_liveness(const Function& f, std::vector<Block>& blocks) {
  const std::size_t words = f.registers.size() / 64 + 1;
  const auto test = [](const std::vector<u64>& set, u32 r) { return set[r / 64] >> (r % 64) & 1; };
  for (Block& b : blocks) {
    b.live_in.resize(words), b.live_out.resize(words), b.defined.resize(words), b.used.resize(words);
    for (u32 at = b.begin; at < b.end; ++at) {
      const Instruction& i = f.code[at];
      each_register(i, [&](u32 r, bool result) {
        if (!result && !test(b.defined, r)) b.used[r / 64] |= u64{1} << (r % 64);
      });
      each_register(i, [&](u32 r, bool result) {
        if (!result || test(b.defined, r)) return;
        // A guarded result keeps what was there before.
        if (i.predicate >= 0) b.used[r / 64] |= u64{1} << (r % 64);
        b.defined[r / 64] |= u64{1} << (r % 64);
      });
    }
  }
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t b = blocks.size(); b-- > 0;) {
      Block& block = blocks[b];
      for (std::size_t k = 0; k < words; ++k) {
        u64 out = 0;
        for (u32 next : block.next) out |= blocks[next].live_in[k];
        const u64 in = block.used[k] | (out & ~block.defined[k]);
        changed = changed || in != block.live_in[k] || out != block.live_out[k];
        block.live_out[k] = out;
        block.live_in[k] = in;
      }
    }
  }
}

// Offsets (predicates: numbers) such that registers that are live together lie apart.
std::vector<u32> allocate(Code& code) {
  const Function& f = code.function;
  std::vector<Block> blocks = find_blocks(f);
  find_liveness(f, blocks);

  constexpr u32 kNever = ~u32{0};
  struct Interval {
    u32 begin = kNever, end = 0;
  };
  std::vector<Interval> intervals(f.registers.size());
  const auto extend = [&](u32 r, u32 at) {
    intervals[r].begin = std::min(intervals[r].begin, at);
    intervals[r].end = std::max(intervals[r].end, at);
  };
  for (const Block& b : blocks) {
    for (u32 r = 0; r < f.registers.size(); ++r) {
      if (b.live_in[r / 64] >> (r % 64) & 1) extend(r, b.begin);
      if (b.live_out[r / 64] >> (r % 64) & 1) extend(r, b.end);
    }
    for (u32 at = b.begin; at < b.end; ++at) each_register(f.code[at], [&](u32 r, bool) { extend(r, at); });
  }

  // Registers of wgmma fragments keep their places: the products use them behind the program's back.
  std::vector<u32> place(f.registers.size(), kNever);
  u32 bytes = 0;
  for (const Instruction& i : f.code) {
    if (i.part[0] != "wgmma" || i.part[1] != "mma_async") continue;
    for (const Operand& o : i.op) {
      if (o.kind != Operand::kVector) continue;
      each_register(o, [&](u32 r) {
        if (place[r] != kNever) return;
        place[r] = bytes;
        bytes += kCellBytes;
      });
    }
  }
  code.fragment_bytes = bytes;
  bytes = (bytes + 2 * kCellBytes - 1) / (2 * kCellBytes) * (2 * kCellBytes);

  std::vector<u32> order;
  for (u32 r = 0; r < f.registers.size(); ++r) {
    if (intervals[r].begin != kNever && place[r] == kNever) order.push_back(r);
  }
  std::sort(order.begin(), order.end(), [&](u32 a, u32 b) { return intervals[a].begin < intervals[b].begin; });
  u32 predicates = 2;  // false and true
  std::vector<u32> free[3];
  std::multimap<u32, u32> active;  // end -> register
  const auto kind = [&](u32 r) {
    return f.registers[r].width == Width::kPredicate ? 0 : f.registers[r].width == Width::k64 ? 2 : 1;
  };
  for (u32 r : order) {
    while (!active.empty() && active.begin()->first < intervals[r].begin) {
      const u32 ended = active.begin()->second;
      free[kind(ended)].push_back(place[ended]);
      active.erase(active.begin());
    }
    std::vector<u32>& spare = free[kind(r)];
    if (!spare.empty()) {
      place[r] = spare.back();
      spare.pop_back();
    } else if (kind(r) == 0) {
      place[r] = predicates++;
    } else {
      place[r] = bytes;
      bytes += kCellBytes * static_cast<u32>(kind(r));
    }
    active.emplace(intervals[r].end, r);
  }
  code.register_bytes = bytes;
  code.predicates = predicates;
  return place;
}

}  // namespace

u32 Builder::constant(u64 bits, bool wide) {
  const auto [found, fresh] = known[wide].try_emplace(bits, static_cast<u32>(code.constants.size() * 4) + 1);
  if (!fresh) return found->second;
  for (int i = 0; i < kLanes; ++i) {
    code.constants.push_back(static_cast<u32>(bits));
    if (wide) code.constants.push_back(static_cast<u32>(bits >> 32));
  }
  return found->second;
}

u32 Builder::in(const Operand& o, int bits) {
  if (o.kind == Operand::kRegister && o.value == 0) return place[static_cast<std::size_t>(o.reg)];
  if (o.kind == Operand::kImmediate) {
    return constant(bits == 64 ? static_cast<u64>(o.value) : static_cast<u64>(o.value) & ((u64{1} << bits) - 1),
                    bits == 64);
  }
  if (o.kind != Operand::kVariable) throw Error("an operand that is no value");
  u64 at = o.variable->at;
  if (o.variable->space == Space::kShared) {
    at = kSharedStart + (o.variable->bytes == 0 ? code.dynamic_shared_at : at);
  }
  if (o.variable->space == Space::kParam) at |= kParamTag << 32;
  return constant(at + static_cast<u64>(o.value), bits == 64);
}

u32 Builder::out(const Operand& o) {
  if (o.kind == Operand::kSink) return kNone;
  if (o.kind != Operand::kRegister) throw Error("a result that is no register");
  return place[static_cast<std::size_t>(o.reg)];
}

u32 Builder::predicate(const Operand& o) {
  if (o.kind == Operand::kImmediate) return o.value ? kTrue : kFalse;
  if (o.kind != Operand::kRegister) throw Error("an operand that is no predicate");
  return place[static_cast<std::size_t>(o.reg)];
}

bool Builder::is_wide(const Operand& o) const {
  return o.kind == Operand::kRegister && code.function.registers[static_cast<std::size_t>(o.reg)].width == Width::k64;
}

u32 Builder::address(Op& op, const Operand& o) {
  if (o.kind != Operand::kAddress) throw Error("an operand that is no address");
  if (o.reg >= 0) {
    const bool wide = code.function.registers[static_cast<std::size_t>(o.reg)].width == Width::k64;
    op.value = o.value;
    op.wide_address = wide;
    return place[static_cast<std::size_t>(o.reg)];
  }
  op.wide_address = true;
  op.value = 0;
  Operand constant_address = o;
  constant_address.kind = o.variable ? Operand::kVariable : Operand::kImmediate;
  return in(constant_address, 64);
}

u32 Builder::list(const std::vector<u32>& refs) {
  const auto at = static_cast<u32>(code.lists.size());
  code.lists.insert(code.lists.end(), refs.begin(), refs.end());
  return at;
}

std::unique_ptr<Code> compile(const Text& text, const std::string& kernel) {
  auto code = std::make_unique<Code>();
  code->text = &text;
  code->function = text.parse(kernel);
  Function& f = code->function;
  if (f.code.empty()) throw Error(kernel + " has no instructions");
  u64 alignment = 16;
  for (const auto& entry : text.variables()) {
    if (entry.second.space == Space::kShared) alignment = std::max(alignment, entry.second.alignment);
  }
  code->dynamic_shared_at = static_cast<u32>((f.shared_bytes + alignment - 1) / alignment * alignment);
  const std::vector<u32> place = allocate(*code);
  Builder builder{*code, place, {}};
  std::set<std::string> missing;
  for (u32 at = 0; at < f.code.size(); ++at) {
    const Instruction& i = f.code[at];
    Op op;
    op.id = at;
    if (i.predicate >= 0) op.predicate = static_cast<i32>(place[static_cast<std::size_t>(i.predicate)]);
    op.negated = i.negated;
    bool known = false;
    try {
      if (is_branch(i)) {
        op.kind = Kind::kBranch;
        op.value = i.op[0].value;
        known = true;
      } else if (i.part[0] == "ret" || i.part[0] == "exit") {
        op.kind = Kind::kExit;
        known = true;
      } else {
        known = compile_sync(builder, i, op) || compile_matrix(builder, i, op) || compile_memory(builder, i, op) ||
                compile_alu(builder, i, op);
      }
    } catch (const Error& error) {
      throw Error(kernel + ": " + i.name + ": " + error.what());
    }
    if (!known) missing.insert(i.name);
    if (i.part[0] != "wgmma") {
      each_register(i, [&](u32 r, bool result) {
        if (f.registers[r].width == Width::kPredicate || place[r] >= code->fragment_bytes) return;
        op.fragment = true;
        code->fragment_uses[at].touched.push_back(place[r]);
        if (result) code->fragment_uses[at].written.push_back(place[r]);
      });
    }
    code->ops.push_back(op);
  }
  Op end;
  end.kind = Kind::kExit;
  end.id = static_cast<u32>(f.code.size()) - 1;
  code->ops.push_back(end);
  if (!missing.empty()) {
    std::string all;
    for (const std::string& name : missing) all += " " + name;
    throw Error(kernel + ": instructions that ptxemu lacks:" + all);
  }
  return code;
}

std::string Code::where(u32 id) const {
  const Instruction& i = function.code[id];
  return i.name + " (" + text->file(i.file) + ":" + std::to_string(i.line) + ")";
}

}  // namespace ptxemu
