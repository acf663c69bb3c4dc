// Runs a launch: the lanes of a warp along their paths, warps in random order, clusters on the host's threads.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mutex>
#include <thread>

#include "tools/ptxemu/machine.h"

namespace ptxemu {

Stats& Stats::operator+=(const Stats& other) {
  instructions += other.instructions;
  thread_instructions += other.thread_instructions;
  global_bytes += other.global_bytes;
  shared_wavefronts += other.shared_wavefronts;
  shared_ideal_wavefronts += other.shared_ideal_wavefronts;
  for (const auto& [name, n] : other.by_name) by_name[name] += n;
  return *this;
}

namespace {

std::string place_of(const Warp& w) {
  const Dim3& at = w.cta->index;
  return "block " + std::to_string(at.x) + "," + std::to_string(at.y) + "," + std::to_string(at.z) + " warp " +
         std::to_string(w.id);
}

}  // namespace

void finding(const Warp& w, const Op& op, const std::string& what) {
  throw Error(w.code->function.name + ": " + w.code->where(op.id) + ", " + place_of(w) + ": " + what);
}

namespace {

// ---- a warp ----------------------------------------------------------------------------------------------------------------

// The lanes that are furthest behind go first, so that paths meet again; where two fragments are at one place they become
// one. Runs until nothing can go on, a yield, or `budget` instructions; false if there was nothing to do.
bool run(Warp& w, u64 budget) {
  const std::vector<Op>& ops = w.code->ops;
  const bool trace = w.cta->cluster->options->trace;
  bool progress = false;
  for (Fragment& f : w.fragments) f.blocked = false;
  while (w.alive) {
    Fragment* f = nullptr;
    for (Fragment& other : w.fragments) {
      if (!other.blocked && (!f || other.pc < f->pc)) f = &other;
    }
    if (!f) return progress;
    w.now = f;
    // Where this fragment meets or overtakes another one.
    const auto meeting = [&] {
      u32 limit = ~0u;
      for (const Fragment& other : w.fragments) {
        if (&other != f && (other.pc >= f->pc || !other.blocked)) limit = std::min(limit, other.pc);
      }
      return limit;
    };
    u32 limit = meeting(), pc = f->pc;
    for (;;) {
      if (pc >= limit) {
        f->pc = pc;
        const auto other = std::find_if(w.fragments.begin(), w.fragments.end(),
                                        [&](const Fragment& g) { return &g != f && g.pc == pc; });
        if (other == w.fragments.end()) break;  // others are behind
        other->mask |= f->mask;
        other->blocked = false;
        w.fragments.erase(w.fragments.begin() + (f - w.fragments.data()));
        break;
      }
      const Op& op = ops[pc];
      u32 mask = f->mask;
      if (op.predicate >= 0) mask &= op.negated ? ~w.p[op.predicate] : w.p[op.predicate];
      if (trace) std::fprintf(stderr, "%s %08x %5u %s\n", place_of(w).c_str(), mask, pc, w.code->where(op.id).c_str());
      ++w.counts[2 * op.id];
      w.counts[2 * op.id + 1] += static_cast<u32>(std::popcount(mask));
      if (op.fragment && mask) check_fragment(w, op);
      if (op.kind == Kind::kPlain) {
        if (mask) op.run(w, op, mask);
        ++pc;
      } else if (op.kind == Kind::kBranch) {
        if (mask == f->mask) {
          pc = static_cast<u32>(op.value);
        } else if (mask == 0) {
          ++pc;
        } else {
          f->mask &= ~mask;
          f->pc = pc + 1;
          w.fragments.push_back({static_cast<u32>(op.value), mask});
          progress = true;
          // The place may be another fragment's already.
          Fragment& taken = w.fragments.back();
          for (Fragment& other : w.fragments) {
            if (&other == &taken || other.pc != taken.pc) continue;
            other.mask |= taken.mask;
            other.blocked = false;
            w.fragments.pop_back();
            break;
          }
          break;
        }
        if (w.fragments.size() > 1) f->pc = pc, limit = meeting();
      } else if (op.kind == Kind::kExit) {
        if (mask != f->mask) {
          ++pc;
          w.alive &= ~mask;
          f->mask &= ~mask;
          progress = true;
          for (Fragment& other : w.fragments) other.blocked = false;
          continue;
        }
        w.alive &= ~mask;
        w.fragments.erase(w.fragments.begin() + (f - w.fragments.data()));
        for (Fragment& other : w.fragments) other.blocked = false;
        if (w.alive == 0) {
          if (!w.products.empty()) finding(w, op, "leaves while its wgmma products are under way");
          leave(w);
          return true;
        }
        progress = true;
        break;
      } else {
        if (mask) {
          if (op.aligned && mask != w.alive) {
            if (f->mask == w.alive) finding(w, op, "executed by a part of the warp");
            w.outcome = Outcome::kBlocked;
          } else {
            w.outcome = Outcome::kNext;
            op.run(w, op, mask);
          }
          if (w.outcome == Outcome::kBlocked) {
            --w.counts[2 * op.id];
            f->pc = pc;
            f->blocked = true;
            break;
          }
          if (w.outcome == Outcome::kYield) {
            f->pc = pc + 1;
            return true;
          }
        }
        ++pc;
      }
      progress = true;
      if (--budget == 0) {
        f->pc = pc;
        return true;
      }
    }
  }
  return progress;
}

// ---- a cluster ---------------------------------------------------------------------------------------------------------------

u32 product_of(const Dim3& d) { return static_cast<u32>(d.count()); }

// The cluster's blocks; the memory is kept from one cluster to the next.
void start(Cluster& cluster, u64 index, std::vector<u64>& counts) {
  const Code& code = *cluster.code;
  const Launch& launch = cluster.launch;
  const Dim3 clusters{launch.grid.x / launch.cluster.x, launch.grid.y / launch.cluster.y,
                      launch.grid.z / launch.cluster.z};
  const Dim3 at{static_cast<u32>(index % clusters.x), static_cast<u32>(index / clusters.x % clusters.y),
                static_cast<u32>(index / clusters.x / clusters.y)};
  const u32 ranks = product_of(launch.cluster), threads = product_of(launch.block),
            warps = (threads + kLanes - 1) / kLanes;
  const u32 shared_bytes = code.dynamic_shared_at + launch.dynamic_shared_bytes;
  for (const auto& cta : cluster.ctas) {
    cluster.clock = std::max(cluster.clock, cta->engine);
    for (const auto& w : cta->warps) cluster.clock = std::max(cluster.clock, w->clock());
  }
  cluster.landings.clear();
  cluster.live_warps = ranks * warps;
  cluster.arrived = 0;
  cluster.generation = 0;
  cluster.arriving = cluster.completed = {};
  cluster.ctas.resize(ranks);
  for (u32 rank = 0; rank < ranks; ++rank) {
    if (!cluster.ctas[rank]) cluster.ctas[rank] = std::make_unique<Cta>();
    Cta& cta = *cluster.ctas[rank];
    const Dim3& size = launch.cluster;
    cta.cluster = &cluster;
    cta.rank = rank;
    cta.index = {at.x * size.x + rank % size.x, at.y * size.y + rank / size.x % size.y,
                 at.z * size.z + rank / size.x / size.y};
    cta.live_warps = warps;
    cta.started = true;
    cta.shared.assign(shared_bytes, 0xff);  // NaN in every format
    // What stands here from the cluster before is older than every warp's clock: known to all.
    if (cluster.options->check_races) {
      cta.shadow.resize(shared_bytes);
      cta.reads.resize((shared_bytes / 4 + 1) * (warps + 1));
    }
    cta.engine = cluster.clock;
    cta.barriers = {};
    cta.mbarriers.clear();
    cta.warps.resize(warps);
    for (u32 k = 0; k < warps; ++k) {
      std::unique_ptr<Warp>& slot = cta.warps[k];
      std::unique_ptr<u8[]> storage =
          slot ? std::move(slot->storage) : std::make_unique<u8[]>(code.register_bytes + 64);
      slot = std::make_unique<Warp>();
      Warp& w = *slot;
      w.storage = std::move(storage);
      w.base[0] = reinterpret_cast<u8*>((reinterpret_cast<u64>(w.storage.get()) + 63) / 64 * 64);
      w.base[1] = reinterpret_cast<u8*>(const_cast<u32*>(code.constants.data()));
      std::fill_n(reinterpret_cast<u32*>(w.base[0]), code.register_bytes / 4, 0x7fc0deadu);
      w.predicate_storage.assign(code.predicates, 0);
      w.predicate_storage[kTrue] = kAll;
      w.p = w.predicate_storage.data();
      w.cta = &cta;
      w.code = &code;
      w.id = k;
      w.number = rank * (warps + 1) + k;
      const u32 lanes_here = std::min(threads - kLanes * k, u32{kLanes});
      w.alive = lanes_here == kLanes ? kAll : (1u << lanes_here) - 1;
      for (u32 lane = 0; lane < kLanes; ++lane) {
        const u32 t = kLanes * k + lane, x = launch.block.x, y = launch.block.y;
        w.tid[0][lane] = t % x, w.tid[1][lane] = t / x % y, w.tid[2][lane] = t / x / y;
      }
      w.fragments = {{0, w.alive}};
      w.pending.assign(code.fragment_bytes / (kLanes * 4), 0);
      w.dirty.assign(w.pending.size(), 1);
      w.registers = std::min(65536 / (warps * kLanes) / 8 * 8, 255u);
      w.knows.seen.assign(ranks * (warps + 1), cluster.clock);
      w.knows.fenced.assign(ranks * (warps + 1), cluster.clock);
      ++w.knows.seen[w.number];
      w.local.assign(code.function.local_bytes * kLanes, 0xff);
      w.counts = counts.data();
      w.early = code.overlaps;
    }
  }
}

[[noreturn]] void report_deadlock(const std::vector<std::unique_ptr<Cluster>>& residents) {
  std::string text = residents[0]->code->function.name + ": deadlock:";
  int lines = 0;
  for (const auto& cluster : residents) {
    for (const auto& cta : cluster->ctas) {
      for (const auto& w : cta->warps) {
        for (const Fragment& f : w->fragments) {
          if (++lines > 64) continue;
          char mask[16];
          std::snprintf(mask, sizeof mask, "%08x", f.mask);
          text += "\n  " + place_of(*w) + " lanes " + mask + " at " + w->code->where(w->code->ops[f.pc].id);
        }
      }
    }
  }
  throw Error(text);
}

// Warps of resident clusters in random order, each for a while, until all have left.
void run_residents(std::vector<std::unique_ptr<Cluster>>& residents, Random& random, u64 seed) {
  std::vector<Warp*> ready;
  constexpr u64 kPatience = 20'000'000;  // turns of warps that only look again: see Outcome::kYield
  u64 idle_turns = 0;
  for (;;) {
    ready.clear();
    bool live = false;
    std::vector<Landing>* landings = nullptr;
    for (const auto& cluster : residents) {
      live = live || cluster->live_warps > 0;
      if (!cluster->landings.empty()) landings = &cluster->landings;
      for (const auto& cta : cluster->ctas) {
        for (const auto& w : cta->warps) {
          if (w->alive && w->stalled_at != cluster->events) ready.push_back(w.get());
        }
      }
    }
    if (!live) {
      if (landings) throw Error(residents[0]->code->function.name + ": the blocks left while copies were on their way");
      return;
    }
    // Copies land when nobody can do without them, or at random.
    if (landings && (ready.empty() || (seed && random() % 16 == 0))) {
      const std::size_t which = seed ? random() % landings->size() : 0;
      const std::function<void()> land = std::move((*landings)[which].land);
      landings->erase(landings->begin() + static_cast<std::ptrdiff_t>(which));
      land();
      for (const auto& cluster : residents) ++cluster->events;
      continue;
    }
    if (ready.empty() || ++idle_turns > kPatience) report_deadlock(residents);
    // A few turns before looking at everybody again.
    for (std::size_t turn = 0; turn < ready.size(); ++turn) {
      Warp& w = *ready[seed ? random() % ready.size() : turn];
      if (!w.alive || w.stalled_at == w.cta->cluster->events) continue;
      const u64 events = w.cta->cluster->events;
      if (!run(w, seed ? 16 + random() % 512 : ~u64{0}) && events == w.cta->cluster->events) w.stalled_at = events;
    }
  }
}

}  // namespace

// ---- the module ---------------------------------------------------------------------------------------------------------------

struct Module::Impl {
  explicit Impl(std::string ptx) : text(std::move(ptx)) {}

  Text text;
  std::mutex lock;
  std::map<std::string, std::unique_ptr<Code>> compiled;

  const Code& code(const std::string& kernel) {
    const std::lock_guard guard(lock);
    std::unique_ptr<Code>& code = compiled[kernel];
    if (!code) code = compile(text, kernel);
    return *code;
  }
};

Module::Module(std::string ptx) : impl_(std::make_unique<Impl>(std::move(ptx))) {}
Module::Module(Module&&) noexcept = default;
Module::~Module() = default;

Module Module::from_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot read " + path);
  return Module(std::string((std::istreambuf_iterator<char>(file)), {}));
}

std::vector<std::string> Module::kernels() const { return impl_->text.kernels(); }
void Module::check(const std::string& kernel) { impl_->code(kernel); }
std::uint64_t Module::static_shared_bytes(const std::string& kernel) {
  return impl_->code(kernel).function.shared_bytes;
}

std::vector<Module::Parameter> Module::parameters(const std::string& kernel) {
  std::vector<Parameter> all;
  for (const Variable& v : impl_->code(kernel).function.parameters) all.push_back({v.at, v.bytes});
  return all;
}

Stats Module::launch(const std::string& kernel, std::span<const std::byte> arguments, const Launch& how,
                     std::span<const Range> memory, const Options& options) {
  const Code& code = impl_->code(kernel);
  const u32 threads = product_of(how.block);
  const auto refuse = [&](const std::string& what) { throw Error(kernel + ": launch: " + what); };
  if (threads == 0 || threads > 1024) refuse(std::to_string(threads) + " threads");
  if (code.function.max_threads && threads > code.function.max_threads) {
    refuse(std::to_string(threads) + " threads, compiled for " + std::to_string(code.function.max_threads));
  }
  if (how.grid.x % how.cluster.x || how.grid.y % how.cluster.y || how.grid.z % how.cluster.z)
    refuse("the grid is no multiple of the cluster");
  if (code.dynamic_shared_at + how.dynamic_shared_bytes > 227 * 1024) refuse("more than 227 KiB of shared memory");
  if (arguments.size() != code.function.parameter_bytes) refuse("the arguments have another size");

  std::vector<u8> parameters(reinterpret_cast<const u8*>(arguments.data()),
                             reinterpret_cast<const u8*>(arguments.data()) + arguments.size());
  std::vector<Range> ranges(memory.begin(), memory.end());
  for (const auto& entry : impl_->text.variables()) {
    if (entry.second.space != Space::kShared) ranges.push_back({entry.second.at, entry.second.at + entry.second.bytes});
  }
  std::array<u64, 8> workspace{};
  ranges.push_back(
      {reinterpret_cast<u64>(workspace.data()), reinterpret_cast<u64>(workspace.data() + workspace.size())});
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });

  const u64 clusters = how.grid.count() / how.cluster.count();
  const u64 wanted = how.cooperative   ? 1
                     : options.threads ? options.threads
                                       : std::max(1u, std::thread::hardware_concurrency());
  const auto workers = static_cast<std::size_t>(std::clamp<u64>(wanted, 1, std::max<u64>(clusters, 1)));
  std::atomic<u64> next_cluster = 0;
  std::vector<Stats> stats(workers);
  std::vector<std::vector<u64>> counts(workers, std::vector<u64>(2 * code.function.code.size()));
  std::exception_ptr error;
  std::mutex error_lock;
  const auto work = [&](std::size_t worker) {
    try {
      std::vector<std::unique_ptr<Cluster>> residents;
      Random random;
      const auto make = [&] {
        residents.push_back(std::make_unique<Cluster>());
        Cluster& cluster = *residents.back();
        cluster.code = &code;
        cluster.options = &options;
        cluster.memory = &ranges;
        cluster.parameters = &parameters;
        cluster.launch = how;
        cluster.random = &random;
        if (how.cooperative) cluster.grid_workspace = reinterpret_cast<u64>(workspace.data());
      };
      if (how.cooperative) {
        random.state = options.seed;
        for (u64 index = 0; index < clusters; ++index) {
          make();
          start(*residents.back(), index, counts[worker]);
        }
        if (clusters) run_residents(residents, random, options.seed);
      } else {
        make();
        for (u64 index = next_cluster++; index < clusters; index = next_cluster++) {
          random.state = options.seed << 32 ^ index;
          start(*residents[0], index, counts[worker]);
          run_residents(residents, random, options.seed);
        }
      }
      for (const auto& cluster : residents) stats[worker] += cluster->stats;
    } catch (...) {
      next_cluster = clusters;  // the others finish what they have
      const std::lock_guard guard(error_lock);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> pool;
  for (std::size_t worker = 1; worker < workers; ++worker) pool.emplace_back(work, worker);
  work(0);
  for (std::thread& thread : pool) thread.join();
  if (error) std::rethrow_exception(error);

  Stats total;
  for (const Stats& s : stats) total += s;
  for (const std::vector<u64>& count : counts) {
    for (std::size_t k = 0; k < code.function.code.size(); ++k) {
      if (count[2 * k] == 0) continue;
      total.instructions += count[2 * k];
      total.thread_instructions += count[2 * k + 1];
      total.by_name[code.function.code[k].name] += count[2 * k];
    }
  }
  return total;
}

}  // namespace ptxemu
