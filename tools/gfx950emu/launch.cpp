// Launches: sets up waves as the hardware does, runs work-groups (a few interleaved, spread over host threads), and
// watches each instruction's registers.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "code_object.h"

namespace gfx950emu {

std::string_view class_name(Class c) {
  constexpr std::string_view kNames[kClasses] = {"MFMA",   "vector", "AGPR moves", "transcendental", "LDS",
                                                 "memory", "scalar", "waits",      "nops",           "barriers"};
  return kNames[static_cast<std::size_t>(c)];
}

u64 Stats::instructions() const {
  u64 sum = 0;
  for (u64 n : count) sum += n;
  return sum;
}

u64 Stats::bound_clocks() const {
  const u64 vector = (*this)[Class::kVector] + (*this)[Class::kAgprMove] + 4 * (*this)[Class::kTranscendental];
  return std::max({mfma_passes, vector, lds_clocks});  // 4 clocks each over 4 SIMDs: counts are clocks
}

Stats& Stats::operator+=(const Stats& other) {
  for (std::size_t k = 0; k < count.size(); ++k) count[k] += other.count[k];
  mfma_passes += other.mfma_passes;
  memory_bytes += other.memory_bytes;
  lds_bytes += other.lds_bytes;
  lds_clocks += other.lds_clocks;
  lds_ideal_clocks += other.lds_ideal_clocks;
  same_value_writes += other.same_value_writes;
  for (const auto& [name, n] : other.by_name) by_name[name] += n;
  return *this;
}

namespace {

constexpr u32 kNoInstruction = ~0u;

struct Code {
  u64 begin = 0;  // host address
  std::vector<Inst> insts;
  std::vector<u32> at;  // (pc - begin) / 4 -> position in insts

  const Inst& fetch(u64 pc) const {
    const u64 word = (pc - begin) / 4;
    if (pc < begin || word >= at.size() || at[word] == kNoInstruction) throw Error("jump outside the kernel's code");
    return insts[at[word]];
  }
};

// ---- one instruction -------------------------------------------------------------------------------------------------

// A register of a load in flight must not be touched.
void check_pending(const Wave& w, const Inst& inst) {
  for (const Operand& o : inst.op) {
    for (int k = 0; k < o.count; ++k) {
      if (o.kind == Operand::kVector && w.vector_pending[o.index + k]) {
        finding(inst, "register used while its load is in flight");
      }
      if (o.kind == Operand::kScalar && w.scalar_pending[o.index + k]) {
        finding(inst, "scalar register used while its load is in flight");
      }
    }
  }
}

// Wait states between an MFMA and the next user of its result: none for a C operand in the same registers (the matrix core
// forwards), passes + 1 for another C operand that overlaps, passes + 3 for anything else; one more each on gfx950.
constexpr int kLongestHazard = 16 + 4;
void check_hazards(const Wave& w, const Inst& inst) {
  const bool gfx950 = w.group->architecture == Architecture::kGfx950;
  const bool matrix = inst.kind == Class::kMfma;
  for (std::size_t k = matrix ? 1 : 0; k < inst.op.size(); ++k) {
    const Operand& o = inst.op[k];
    if (o.kind != Operand::kVector) continue;
    for (int r = o.index; r < o.index + o.count; ++r) {
      const Wave::MatrixWrite& write = w.matrix[r];
      if (!write.at) continue;
      const bool same = write.first == o.index && write.registers == o.count;
      const int needed = !matrix || k != 3 ? write.passes + 3 + gfx950 : same ? 0 : write.passes + 1 + gfx950;
      const auto since = static_cast<int>(std::min<u64>(w.states - write.at - 1, kLongestHazard));
      if (since < needed) {
        finding(inst,
                "MFMA result used after " + std::to_string(since) + " of " + std::to_string(needed) + " wait states");
      }
    }
  }
}

// A scalar register that a vector instruction wrote (v_readlane) is no address before five wait states are over.
constexpr int kScalarHazard = 5;
void check_addresses(const Wave& w, const Inst& inst) {
  for (const Operand& o : inst.op) {
    if (o.kind != Operand::kScalar) continue;
    for (int r = o.index; r < o.index + o.count; ++r) {
      if (!w.vector_wrote[r] || w.states - w.vector_wrote[r] > kScalarHazard) continue;
      finding(inst, "scalar register of a vector instruction used as an address after " +
                        std::to_string(w.states - w.vector_wrote[r] - 1) + " of 5 wait states");
    }
  }
}

void step(Wave& w, const Code& code) {
  const Inst& inst = code.fetch(w.pc);
  if (!inst.run) finding(inst, "instruction not implemented");
  if (!w.memory.empty() || !w.lds.empty() || !w.scalar_memory.empty()) check_pending(w, inst);
  const Options& options = *w.group->options;
  if (options.check_hazards && w.states - w.last_matrix <= kLongestHazard + 1) check_hazards(w, inst);
  if (options.check_hazards && inst.kind == Class::kMemory) check_addresses(w, inst);
  if (options.trace)
    std::fprintf(stderr, "w%d %06llx %s\n", w.id, static_cast<unsigned long long>(inst.pc), inst.text.c_str());
  ++(*w.counts)[inst.id];
  w.pc += inst.bytes;
  inst.run(w, inst);
  if (inst.kind == Class::kMfma) {
    const Operand& d = inst.op[0];
    w.last_matrix = w.states;
    for (int r = d.index; r < d.index + d.count; ++r) {
      w.matrix[r] = {w.states, d.index, d.count, static_cast<u8>(inst.passes)};
    }
  }
  if (inst.kind == Class::kVector && !inst.op.empty() && inst.op[0].kind == Operand::kScalar) {
    for (int r = inst.op[0].index; r < inst.op[0].index + inst.op[0].count; ++r) w.vector_wrote[r] = w.states;
  }
  ++w.states;
}

// ---- a launch --------------------------------------------------------------------------------------------------------

struct Launch {
  const Code& code;
  const Options& options;
  Architecture architecture;
  u32 lds_bytes, scratch_bytes;
  u64 entry;
  u32 user_scalars, kernarg_at, preload_at, preload_count;  // SGPRs and argument dwords
  bool wants_kernarg, wants_x, wants_y, wants_z;
  std::vector<u8> kernarg;
  std::vector<Range> buffers;
  Dim3 grid, block;
};

// A work-group with its waves; the memory is reused for the next one.
struct Resident {
  Group group;
  std::vector<std::unique_ptr<Wave>> waves;
  bool done = true;

  void start(const Launch& launch, u64 index, std::vector<u64>& counts) {
    const u32 threads = launch.block.x * launch.block.y * launch.block.z, needed = (threads + kLanes - 1) / kLanes;
    group.architecture = launch.architecture;
    group.options = &launch.options;
    group.buffers = launch.buffers;
    group.lds.assign(launch.lds_bytes, 0xff);  // NaN in every format
    group.shadow.assign(launch.lds_bytes / 4 + 1, {});
    group.interval = 1;
    group.scratch_bytes = launch.scratch_bytes;
    done = false;
    waves.resize(needed);
    for (u32 k = 0; k < needed; ++k) {
      waves[k] = std::make_unique<Wave>();
      Wave& w = *waves[k];
      std::fill_n(&w.v[0][0], 512 * kLanes, 0x7fc0deadu);
      std::fill_n(w.s, 256, 0xdeadbeefu);
      w.group = &group;
      w.counts = &counts;
      w.id = static_cast<int>(k);
      w.pc = launch.entry;
      const u32 lanes = std::min(threads - kLanes * k, u32{kLanes});
      w.set_exec(lanes == kLanes ? ~u64{0} : (u64{1} << lanes) - 1);
      if (launch.wants_kernarg)
        w.set_s64(static_cast<int>(launch.kernarg_at), reinterpret_cast<u64>(launch.kernarg.data()));
      if (launch.options.preload && launch.preload_count) {
        u32 first = launch.kernarg_at + (launch.wants_kernarg ? 2 : 0);
        std::memcpy(&w.s[first], launch.kernarg.data() + 4 * launch.preload_at, 4 * launch.preload_count);
        w.pc += 256;  // behind the loads that older firmware needs
      }
      u32 s = launch.user_scalars;
      if (launch.wants_x) w.s[s++] = static_cast<u32>(index % launch.grid.x);
      if (launch.wants_y) w.s[s++] = static_cast<u32>(index / launch.grid.x % launch.grid.y);
      if (launch.wants_z) w.s[s++] = static_cast<u32>(index / launch.grid.x / launch.grid.y);
      for (u32 l = 0; l < kLanes; ++l) {
        const u32 t = kLanes * k + l, x = launch.block.x, y = launch.block.y;
        w.v[0][l] = t % x | t / x % y << 10 | t / (x * y) << 20;
      }
      w.scratch.assign(std::size_t{launch.scratch_bytes} * kLanes, 0xff);
      if (launch.scratch_bytes) {
        const u64 begin = reinterpret_cast<u64>(w.scratch.data());
        group.buffers.push_back({begin, begin + w.scratch.size()});
      }
    }
    std::sort(group.buffers.begin(), group.buffers.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
  }

  // Once every wave waits at the barrier or has ended, the barrier opens.
  void settle() {
    bool waiting = true;
    done = true;
    for (const auto& w : waves) {
      waiting = waiting && (w->done || w->at_barrier);
      done = done && w->done;
    }
    if (!waiting || done) return;
    ++group.interval;
    for (const auto& w : waves) w->at_barrier = false;
  }
};

// Runs work-groups until `next` says that none is left.
template <typename Next>
Stats run_groups(const Launch& launch, Next next, std::vector<u64>& counts) {
  std::vector<Resident> residents(std::max(1u, launch.options.resident));
  std::mt19937_64 random(launch.options.seed);
  Stats stats;
  for (;;) {
    std::vector<std::pair<Resident*, Wave*>> ready;
    for (Resident& r : residents) {
      if (r.done) {
        const u64 index = next();
        if (index == ~u64{0}) continue;
        r.start(launch, index, counts);
      }
      for (const auto& w : r.waves) {
        if (!w->done && !w->at_barrier) ready.push_back({&r, w.get()});
      }
    }
    if (ready.empty()) break;
    const auto [resident, wave] = ready[launch.options.seed ? random() % ready.size() : 0];
    u64 budget = launch.options.seed ? 1 + random() % 64 : ~u64{0};
    while (budget-- && !wave->done && !wave->at_barrier) step(*wave, launch.code);
    resident->settle();
  }
  for (const Resident& r : residents) stats += r.group.stats;
  return stats;
}

}  // namespace

struct Program::Impl {
  explicit Impl(std::span<const std::byte> elf) : object(elf), decoder(object.architecture()) {}

  CodeObject object;
  Decoder decoder;
  std::mutex lock;
  std::map<std::string, Code> decoded;

  const Code& code(const std::string& name) {
    const std::lock_guard guard(lock);
    const auto [found, fresh] = decoded.try_emplace(name);
    Code& c = found->second;
    if (!fresh) return c;
    const KernelSymbol& kernel = object.kernel(name);
    c.begin = reinterpret_cast<u64>(object.image()) + kernel.code;
    c.at.assign(kernel.code_bytes / 4, kNoInstruction);
    for (u64 at = 0; at + 4 <= kernel.code_bytes;) {
      const u8* bytes = object.image() + kernel.code + at;
      u32 word;
      std::memcpy(&word, bytes, 4);
      if (word == 0 || word == 0xbf9f0000) {  // padding: zeros or s_code_end
        at += 4;
        continue;
      }
      Inst inst = decoder.decode(bytes, kernel.code_bytes - at, kernel.code + at);
      inst.id = static_cast<u32>(c.insts.size());
      c.at[at / 4] = inst.id;
      at += inst.bytes;
      c.insts.push_back(std::move(inst));
    }
    return c;
  }
};

Program::Program(std::span<const std::byte> elf) : impl_(std::make_unique<Impl>(elf)) {}
Program::Program(Program&&) noexcept = default;
Program::~Program() = default;

Program Program::from_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot read " + path);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  return Program(std::as_bytes(std::span(bytes)));
}

std::string_view Program::architecture_of(std::span<const std::byte> elf) {
  const std::optional<Architecture> architecture = CodeObject::architecture_of(elf);
  return architecture ? name_of(*architecture) : "";
}

std::vector<std::string> Program::kernels() const {
  std::vector<std::string> names;
  for (const auto& entry : impl_->object.kernels()) names.push_back(entry.first);
  return names;
}

KernelInfo Program::info(const std::string& kernel) const { return impl_->object.kernel(kernel).info; }

std::map<std::string, int> Program::mnemonics() {
  std::map<std::string, int> names;
  for (const std::string& kernel : kernels()) {
    for (const Inst& inst : impl_->code(kernel).insts) ++names[inst.name];
  }
  return names;
}

std::map<std::string, int> Program::missing() {
  std::map<std::string, int> names;
  for (const std::string& kernel : kernels()) {
    for (const Inst& inst : impl_->code(kernel).insts) {
      if (!inst.run) ++names[inst.name];
    }
  }
  return names;
}

Stats Program::launch(const std::string& kernel, std::span<const std::byte> arguments, Dim3 grid, Dim3 block,
                      std::span<const Range> buffers, const Options& options) {
  if (impl_->object.architecture() == Architecture::kGfx1250) throw Error("gfx1250 code is not executed");
  const KernelSymbol& symbol = impl_->object.kernel(kernel);
  const Code& code = impl_->code(kernel);
  const u8* descriptor = impl_->object.image() + symbol.descriptor;
  const auto field = [descriptor]<typename T>(std::size_t offset, T value) {
    std::memcpy(&value, descriptor + offset, sizeof value);
    return value;
  };
  const auto rsrc2 = field(52, u32{});
  const auto properties = field(56, u16{}), preload = field(58, u16{});
  // User SGPRs in front of the argument pointer, by property bit: private segment buffer, dispatch and queue pointers.
  const u32 kernarg_at = (properties & 1 ? 4u : 0) + (properties & 2 ? 2u : 0) + (properties & 4 ? 2u : 0);
  Launch launch{.code = code,
                .options = options,
                .architecture = impl_->object.architecture(),
                .lds_bytes = field(0, u32{}) + options.dynamic_lds,
                .scratch_bytes = field(4, u32{}),
                .entry = code.begin,
                .user_scalars = rsrc2 >> 1 & 31,
                .kernarg_at = kernarg_at,
                .preload_at = static_cast<u32>(preload >> 7),
                .preload_count = static_cast<u32>(preload & 127),
                .wants_kernarg = (properties & 8) != 0,
                .wants_x = (rsrc2 >> 7 & 1) != 0,
                .wants_y = (rsrc2 >> 8 & 1) != 0,
                .wants_z = (rsrc2 >> 9 & 1) != 0,
                .kernarg = std::vector<u8>(std::max<std::size_t>(field(8, u32{}), arguments.size()) + 64),
                .buffers = std::vector<Range>(buffers.begin(), buffers.end()),
                .grid = grid,
                .block = block};
  std::memcpy(launch.kernarg.data(), arguments.data(), arguments.size());
  const auto add = [&](const u8* begin, std::size_t bytes) {
    launch.buffers.push_back({reinterpret_cast<u64>(begin), reinterpret_cast<u64>(begin) + bytes});
  };
  add(launch.kernarg.data(), launch.kernarg.size());
  add(impl_->object.image(), impl_->object.image_bytes());

  const u64 groups = u64{grid.x} * grid.y * grid.z;
  const u64 wanted = options.threads ? options.threads : std::max(1u, std::thread::hardware_concurrency());
  const auto threads = static_cast<std::size_t>(std::clamp<u64>(wanted, 1, std::max<u64>(groups, 1)));
  std::atomic<u64> next_group = 0;
  std::vector<Stats> stats(threads);
  std::vector<std::vector<u64>> counts(threads, std::vector<u64>(code.insts.size()));
  std::exception_ptr error;
  std::mutex error_lock;
  const auto work = [&](std::size_t t) {
    try {
      const auto next = [&] {
        const u64 index = next_group++;
        return index < groups ? index : ~u64{0};
      };
      stats[t] = run_groups(launch, next, counts[t]);
    } catch (...) {
      next_group = groups;  // the others finish what they have
      const std::lock_guard guard(error_lock);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  for (std::size_t t = 1; t < threads; ++t) pool.emplace_back(work, t);
  work(0);
  for (std::thread& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);

  Stats total;
  for (const Stats& s : stats) total += s;
  for (const std::vector<u64>& by_id : counts) {
    for (const Inst& inst : code.insts) {
      if (!by_id[inst.id]) continue;
      total.count[static_cast<std::size_t>(inst.kind)] += by_id[inst.id];
      total.by_name[inst.name] += by_id[inst.id];
    }
  }
  return total;
}

}  // namespace gfx950emu
