// How threads meet: warp-level exchange, barriers, mbarriers, clusters, fences; and who knows of whose accesses.
#include <algorithm>

#include "tools/ptxemu/machine.h"

namespace ptxemu {

void land_copies(Warp& w, const Op& op, u32 mask, const std::array<u32, kLanes>& before);  // memory.cpp

// ---- order ----------------------------------------------------------------------------------------------------------------

namespace {

// What the warp did so far is known to whoever learns from `to`.
void release(Warp& w, Knowledge& to) {
  to.learn(w.knows);
  ++w.knows.seen[w.number];
}
void acquire(Warp& w, const Knowledge& from) {
  const u32 clock = w.clock();
  w.knows.learn(from);
  w.knows.seen[w.number] = clock;
}

std::string name_of(const Cluster& cluster, u32 warp) {
  const auto warps = static_cast<u32>(cluster.ctas[0]->warps.size()), per_cta = warps + 1;
  return (warp % per_cta == warps ? "the copy engine" : "warp " + std::to_string(warp % per_cta)) +
         (cluster.ctas.size() > 1 ? " of rank " + std::to_string(warp / per_cta) : "");
}

}  // namespace

void touch(Warp& w, const Op& op, const Place& place, u32 bytes, Access access) {
  Cta& cta = *place.cta;
  if (cta.shadow.empty()) return;  // not asked for
  const bool writes = access == Access::kWrite || access == Access::kAsyncWrite;
  const bool async = access == Access::kAsyncRead || access == Access::kAsyncWrite;
  const std::size_t readers = cta.warps.size() + 1;
  const u32 first_warp = cta.warps[0]->number;
  const u32* seen = w.knows.seen.data();  // of the warp itself: all
  for (u32 word = place.at / 4; word <= (place.at + bytes - 1) / 4; ++word) {
    const u32 first = std::max(place.at, 4 * word), last = std::min(place.at + bytes, 4 * word + 4);
    const auto race = [&](u32 byte, u32 other, const char* did) {
      finding(w, op,
              "race: byte " + std::to_string(byte) + " was " + did + " by " + name_of(*cta.cluster, other) +
                  " and nothing orders that before this " + (writes ? "write" : "read"));
    };
    for (u32 byte = first; byte < last; ++byte) {
      const Shadow& s = cta.shadow[byte];
      if (s.clock > seen[s.writer]) race(byte, s.writer, "written");
      if (access == Access::kAsyncRead && s.clock > w.knows.fenced[s.writer]) {
        finding(w, op,
                "byte " + std::to_string(byte) + " was written by " + name_of(*cta.cluster, s.writer) +
                    " through the generic proxy, without fence.proxy.async before this read");
      }
    }
    u32* reads = &cta.reads[word * readers];
    if (!writes) {
      if (&cta == w.cta) reads[w.id] = w.clock();
      continue;
    }
    bool read_late = false;
    for (u32 k = 0; k < readers; ++k) read_late |= reads[k] > seen[first_warp + k];
    for (u32 k = 0; read_late && k < readers; ++k) {
      if (reads[k] > seen[first_warp + k]) race(first, first_warp + k, "read");
    }
    // What a bulk copy writes, its barrier orders.
    for (u32 byte = first; byte < last; ++byte) cta.shadow[byte] = {async ? 0 : w.clock(), static_cast<u16>(w.number)};
  }
}

Knowledge touch_by_engine(Warp& w, const Op& op, const Place& place, u32 bytes) {
  touch(w, op, place, bytes, Access::kAsyncRead);
  Knowledge done;
  Cta& cta = *place.cta;
  if (cta.shadow.empty()) return done;
  const std::size_t engine = cta.warps.size(), readers = engine + 1;
  ++cta.engine;
  for (u32 word = place.at / 4; word <= (place.at + bytes - 1) / 4; ++word) {
    cta.reads[word * readers + engine] = cta.engine;
  }
  done.seen.resize(w.knows.seen.size()), done.fenced.resize(w.knows.seen.size());
  done.seen[cta.warps[0]->number + engine] = cta.engine;
  return done;
}

// ---- mbarriers ------------------------------------------------------------------------------------------------------------

Mbarrier& find_mbarrier(Warp& w, const Op& op, u32 address) {
  const Place place = find_shared(w, op, address, 8, 8);
  const auto found = place.cta->mbarriers.find(place.at);
  if (found == place.cta->mbarriers.end())
    finding(w, op, "no mbarrier was initialised at byte " + std::to_string(place.at));
  Mbarrier& m = found->second;
  if (!place.cta->shadow.empty() && m.init_clock > w.knows.seen[m.init_warp] && m.init_warp != w.number) {
    finding(w, op,
            "the mbarrier at byte " + std::to_string(place.at) + " was initialised by " +
                name_of(*w.cta->cluster, m.init_warp) + " and nothing orders that before this use");
  }
  return m;
}

namespace {

void settle(Cluster& cluster, Mbarrier& m) {
  if (m.pending != 0 || m.bytes != 0) return;
  ++m.phase;
  m.pending = m.expected;
  m.completed = m.arriving;
  ++cluster.events;
}

void arrive(Warp& w, const Op& op, Mbarrier& m, i64 count) {
  if (count > m.pending) finding(w, op, "more arrivals than the mbarrier expects");
  m.pending -= count;
  settle(*w.cta->cluster, m);
}

u64 mbarrier_address(const Warp& w, const Op& op, int lane) {
  if (op.wide_address) {
    const u64 address = w.cells<u64>(op.a[1])[lane] + static_cast<u64>(op.value);
    return address & 0xffffffffu;  // generic: the tag is dropped
  }
  return static_cast<u32>(w.cells<u32>(op.a[1])[lane] + static_cast<u32>(op.value));
}

template <typename Body>
void each_lane(u32 mask, Body&& body) {
  for (; mask; mask &= mask - 1) body(std::countr_zero(mask));
}

void init_mbarrier(Warp& w, const Op& op, u32 mask) {
  each_lane(mask, [&](int lane) {
    const Place place = find_shared(w, op, static_cast<u32>(mbarrier_address(w, op, lane)), 8, 8);
    const u32 count = w.cells<u32>(op.a[2])[lane];
    if (count == 0) finding(w, op, "an mbarrier of 0 arrivals");
    touch(w, op, place, 8, Access::kWrite);
    Mbarrier m;
    m.expected = count;
    m.pending = count;
    m.init_warp = w.number;
    m.init_clock = w.clock();
    place.cta->mbarriers[place.at] = m;
  });
}
void drop_mbarrier(Warp& w, const Op& op, u32 mask) {
  each_lane(mask, [&](int lane) {
    find_mbarrier(w, op, static_cast<u32>(mbarrier_address(w, op, lane)));
    const Place place = find_shared(w, op, static_cast<u32>(mbarrier_address(w, op, lane)), 8, 8);
    place.cta->mbarriers.erase(place.at);
  });
}

// `variant`: kArrive with a count, or with bytes announced; kExpect: bytes alone.
enum : u32 { kArrive, kArriveExpect, kExpect };
void arrive_mbarrier(Warp& w, const Op& op, u32 mask) {
  each_lane(mask, [&](int lane) {
    Mbarrier& m = find_mbarrier(w, op, static_cast<u32>(mbarrier_address(w, op, lane)));
    const u32 number = op.a[2] == kNone ? 1 : w.cells<u32>(op.a[2])[lane];
    if (op.a[0] != kNone) w.cells<u64>(op.a[0])[lane] = m.phase;
    release(w, m.arriving);
    if (op.variant != kArrive) m.bytes += number;
    if (op.variant != kExpect) arrive(w, op, m, op.variant == kArrive ? number : 1);
  });
}

// `variant` bits: 1 parity (else a state), 2 may wait.
void wait_mbarrier(Warp& w, const Op& op, u32 mask) {
  u32 done = 0;
  each_lane(mask, [&](int lane) {
    Mbarrier& m = find_mbarrier(w, op, static_cast<u32>(mbarrier_address(w, op, lane)));
    const bool complete =
        op.variant & 1 ? (m.phase & 1) != (w.cells<u32>(op.a[2])[lane] & 1) : m.phase > w.cells<u64>(op.a[2])[lane];
    if (!complete) return;
    done |= 1u << lane;
    if (!m.completed.seen.empty()) acquire(w, m.completed);
  });
  // try_wait waits, but not for ever: now and then it comes back without.
  const Options& options = *w.cta->cluster->options;
  if (!done && (op.variant & 2) && (options.seed == 0 || w.now->token || (*w.cta->cluster->random)() % 4)) {
    w.now->token = 1;
    w.outcome = Outcome::kBlocked;
    return;
  }
  w.now->token = 0;
  if (!done) w.outcome = Outcome::kYield;
  w.p[op.a[0]] = (w.p[op.a[0]] & ~mask) | done;
}

// cp.async.mbarrier.arrive: an arrival of each thread once its copies so far have landed.
void arrive_behind_copies(Warp& w, const Op& op, u32 mask) {
  std::array<u32, kLanes> before = w.copy_groups;
  for (u32& group : before) ++group;
  auto knows = std::make_shared<Knowledge>(w.knows);
  ++w.knows.seen[w.number];
  each_lane(mask, [&](int lane) {
    const auto address = static_cast<u32>(mbarrier_address(w, op, lane));
    Mbarrier& m = find_mbarrier(w, op, address);
    if (!op.variant) ++m.pending;  // without .noinc the arrival is one more
    w.cta->cluster->landings.push_back({[=, &w, &op] {
      land_copies(w, op, 1u << lane, before);
      Mbarrier& barrier = find_mbarrier(w, op, address);
      barrier.arriving.learn(*knows);
      barrier.arriving.seen[w.number] = std::max(barrier.arriving.seen[w.number], w.clock());
      ++w.knows.seen[w.number];
      arrive(w, op, barrier, 1);
    }});
  });
}

}  // namespace

void complete_bytes(Cluster& cluster, Mbarrier& m, i64 bytes) {
  m.bytes -= bytes;
  settle(cluster, m);
}

// ---- barriers of a block ------------------------------------------------------------------------------------------------------

namespace {

void open_if_full(Cta& cta, Barrier& b) {
  const u32 expected = b.threads ? b.threads : kLanes * cta.live_warps;
  if (b.arrived == 0 || b.arrived < expected) return;
  b.result_any = b.any;
  b.result_all = b.all;
  b.result_count = b.count;
  b.any = false, b.all = true, b.count = 0;
  b.arrived = 0, b.waits = nullptr;
  ++b.generation;
  b.completed = b.arriving;
  ++cta.cluster->events;
}

// `variant`: what it is; `width` 1: an aligned form; a[0] result, a[1] number, a[2] threads, a[3] source predicate.
enum : u32 { kSync, kArriveOnly, kAnd, kOr, kCount };
void bar(Warp& w, const Op& op, u32 mask) {
  const u32 number = w.cells<u32>(op.a[1])[std::countr_zero(mask)];
  if (number >= w.cta->barriers.size()) finding(w, op, "there are 16 barriers");
  Barrier& b = w.cta->barriers[number];
  if (w.now->token == 0) {
    const u32 threads = op.a[2] == kNone ? 0 : w.cells<u32>(op.a[2])[std::countr_zero(mask)];
    if (threads % kLanes) finding(w, op, "a barrier's threads are no multiple of 32");
    if (b.arrived && b.threads != threads) finding(w, op, "warps name different numbers of threads for one barrier");
    b.threads = threads;
    b.arrived += kLanes;
    if (threads && b.arrived > threads) finding(w, op, "more warps arrive at the barrier than it has threads");
    if (op.width && op.variant != kArriveOnly) {
      if (b.waits && b.waits != &op) finding(w, op, "other warps wait at another instruction for this aligned barrier");
      b.waits = &op;
    }
    if (op.variant >= kAnd) {
      const u32 p = w.p[op.a[3]] & mask;
      b.any = b.any || p != 0;
      b.all = b.all && p == mask;
      b.count += static_cast<u32>(std::popcount(p));
    }
    w.now->token = b.generation + 1;
    release(w, b.arriving);
    open_if_full(*w.cta, b);
    if (op.variant == kArriveOnly) {
      w.now->token = 0;
      return;
    }
  }
  if (b.generation < w.now->token) {
    w.outcome = Outcome::kBlocked;
    return;
  }
  w.now->token = 0;
  acquire(w, b.completed);
  if (op.variant == kAnd || op.variant == kOr) {
    const u32 result = (op.variant == kAnd ? b.result_all : b.result_any) ? kAll : 0;
    w.p[op.a[0]] = (w.p[op.a[0]] & ~mask) | (result & mask);
  }
  if (op.variant == kCount) {
    u32* d = w.cells<u32>(op.a[0]);
    lanes(mask, [&](int i) { d[i] = b.result_count; });
  }
}

// ---- the barrier of a cluster --------------------------------------------------------------------------------------------------

void open_if_full(Cluster& cluster) {
  if (cluster.arrived == 0 || cluster.arrived < cluster.live_warps) return;
  cluster.arrived = 0;
  ++cluster.generation;
  cluster.completed = cluster.arriving;
  ++cluster.events;
}
void cluster_arrive(Warp& w, const Op& op, u32) {
  if (w.cluster_arrived) finding(w, op, "arrives twice at the cluster's barrier without a wait");
  Cluster& cluster = *w.cta->cluster;
  w.cluster_arrived = true;
  w.cluster_token = cluster.generation + 1;
  ++cluster.arrived;
  release(w, cluster.arriving);
  open_if_full(cluster);
}
void cluster_wait(Warp& w, const Op& op, u32) {
  Cluster& cluster = *w.cta->cluster;
  if (!w.cluster_arrived) finding(w, op, "waits at the cluster's barrier without having arrived");
  if (cluster.generation < w.cluster_token) {
    w.outcome = Outcome::kBlocked;
    return;
  }
  w.cluster_arrived = false;
  acquire(w, cluster.completed);
}

}  // namespace

void leave(Warp& w) {
  Cta& cta = *w.cta;
  --cta.live_warps;
  --cta.cluster->live_warps;
  if (w.cluster_arrived) --cta.cluster->arrived;
  for (Barrier& b : cta.barriers) {
    if (b.threads == 0) open_if_full(cta, b);
  }
  open_if_full(*cta.cluster);
  ++cta.cluster->events;
}

// ---- a warp among itself ------------------------------------------------------------------------------------------------------

namespace {

// True once every member lane is here.
bool together(Warp& w, const Op& op, u32 mask, u32 ref) {
  const u32 members = w.cells<u32>(ref)[std::countr_zero(mask)];
  if (mask & ~members) finding(w, op, "a lane executes a .sync that does not name it");
  if (((members & w.alive) & ~mask) == 0) return true;
  w.outcome = Outcome::kBlocked;
  return false;
}

enum : u32 { kIdx, kUp, kDown, kBfly };
void shuffle(Warp& w, const Op& op, u32 mask) {
  if (!together(w, op, mask, op.a[5])) return;
  const u32 *a = w.cells<u32>(op.a[2]), *b = w.cells<u32>(op.a[3]), *c = w.cells<u32>(op.a[4]);
  std::array<u32, kLanes> result{};
  u32 inside = 0;
  each_lane(mask, [&](int i) {
    const auto lane = static_cast<u32>(i), by = b[i] & 31, segment = c[i] >> 8 & 31, clamp = c[i] & 31;
    const u32 most = (lane & segment) | (clamp & ~segment);
    u32 from = op.variant == kIdx    ? (lane & segment) | (by & ~segment)
               : op.variant == kUp   ? lane - by
               : op.variant == kDown ? lane + by
                                     : lane ^ by;
    const bool valid = op.variant == kUp ? static_cast<i32>(from) >= static_cast<i32>(most) : from <= most;
    if (valid) inside |= 1u << lane;
    if (!valid) from = lane;
    if (!(mask >> from & 1))
      finding(w, op, "lane " + std::to_string(lane) + " asks lane " + std::to_string(from) + ", which takes no part");
    result[lane] = a[from];
  });
  if (op.a[0] != kNone) {
    u32* d = w.cells<u32>(op.a[0]);
    each_lane(mask, [&](int i) { d[i] = result[static_cast<std::size_t>(i)]; });
  }
  if (op.a[1] != kNone) w.p[op.a[1]] = (w.p[op.a[1]] & ~mask) | inside;
}

enum : u32 { kVoteAll, kVoteAny, kVoteUni, kBallot };
void vote(Warp& w, const Op& op, u32 mask) {
  if (!together(w, op, mask, op.a[2])) return;
  const u32 p = (w.p[op.a[1]] ^ (op.width ? kAll : 0)) & mask;
  if (op.variant == kBallot) {
    u32* d = w.cells<u32>(op.a[0]);
    lanes(mask, [&](int i) { d[i] = p; });
    return;
  }
  const bool result = op.variant == kVoteAll ? p == mask : op.variant == kVoteAny ? p != 0 : p == 0 || p == mask;
  w.p[op.a[0]] = (w.p[op.a[0]] & ~mask) | (result ? mask : 0);
}

void elect(Warp& w, const Op& op, u32 mask) {
  if (!together(w, op, mask, op.a[2])) return;
  const int leader = std::countr_zero(mask);
  if (op.a[0] != kNone) {
    u32* d = w.cells<u32>(op.a[0]);
    lanes(mask, [&](int i) { d[i] = static_cast<u32>(leader); });
  }
  w.p[op.a[1]] = (w.p[op.a[1]] & ~mask) | 1u << leader;
}

void match_any(Warp& w, const Op& op, u32 mask) {
  if (!together(w, op, mask, op.a[2])) return;
  const u32* a = w.cells<u32>(op.a[1]);
  std::array<u32, kLanes> result{};
  each_lane(mask, [&](int i) {
    each_lane(mask, [&](int k) { result[static_cast<std::size_t>(i)] |= static_cast<u32>(a[i] == a[k]) << k; });
  });
  u32* d = w.cells<u32>(op.a[0]);
  each_lane(mask, [&](int i) { d[i] = result[static_cast<std::size_t>(i)]; });
}

template <typename T, auto F>
void reduce(Warp& w, const Op& op, u32 mask) {
  if (!together(w, op, mask, op.a[2])) return;
  const u32* a = w.cells<u32>(op.a[1]);
  T result = get<T>(a[std::countr_zero(mask)]);
  each_lane(mask & (mask - 1), [&](int i) { result = static_cast<T>(F(result, get<T>(a[i]))); });
  u32* d = w.cells<u32>(op.a[0]);
  lanes(mask, [&](int i) { d[i] = put<T>(result); });
}
template <typename T>
Handler reduction(std::string_view what) {
  if (what == "add")
    return reduce<T, [](T a, T b) { return static_cast<T>(static_cast<u32>(a) + static_cast<u32>(b)); }>;
  if (what == "min") return reduce<T, [](T a, T b) { return std::min(a, b); }>;
  if (what == "max") return reduce<T, [](T a, T b) { return std::max(a, b); }>;
  if (what == "and") return reduce<T, [](T a, T b) { return a & b; }>;
  if (what == "or") return reduce<T, [](T a, T b) { return a | b; }>;
  if (what == "xor") return reduce<T, [](T a, T b) { return a ^ b; }>;
  return nullptr;
}

void sync_warp(Warp& w, const Op& op, u32 mask) { together(w, op, mask, op.a[0]); }
void active_mask(Warp& w, const Op& op, u32 mask) {
  u32* d = w.cells<u32>(op.a[0]);
  lanes(mask, [&](int i) { d[i] = mask; });
}

// ---- the rest --------------------------------------------------------------------------------------------------------------

void nothing(Warp&, const Op&, u32) {}
void wait_for_grid(Warp& w, const Op&, u32) { w.early = false; }
void yield(Warp& w, const Op&, u32) { w.outcome = Outcome::kYield; }
void trap(Warp& w, const Op& op, u32) { finding(w, op, "trap"); }

void fence_proxy(Warp& w, const Op&, u32) {
  for (std::size_t k = 0; k < w.knows.seen.size(); ++k)
    w.knows.fenced[k] = std::max(w.knows.fenced[k], w.knows.seen[k]);
  ++w.knows.seen[w.number];
}

// The registers of an SM are 64 K; a warp that wants more waits until others have given some back.
void set_registers(Warp& w, const Op& op, u32) {
  const auto wanted = static_cast<u32>(op.value);
  if (wanted % 8 || wanted < 24 || wanted > 256) finding(w, op, "registers must be a multiple of 8 from 24 to 256");
  if (op.variant ? wanted < w.registers : wanted > w.registers)
    finding(w, op, "has " + std::to_string(w.registers) + " registers");
  u32 others = 0;
  for (const auto& other : w.cta->warps) others += other.get() == &w ? 0 : other->registers;
  if ((others + wanted) * kLanes > 65536) {
    w.outcome = Outcome::kBlocked;
    return;
  }
  w.registers = wanted;
  ++w.cta->cluster->events;
}

bool blocking(Op& op, Handler run) {
  op.kind = Kind::kBlocking;
  op.run = run;
  return run != nullptr;
}

bool compile_mbarrier(Builder& b, const Instruction& i, Op& op) {
  const std::string_view what = i.part[1];
  if (what == "init") {
    op.a[1] = b.address(op, i.op[0]);
    op.a[2] = b.in(i.op[1], 32);
    op.run = init_mbarrier;
    return true;
  }
  if (what == "inval") {
    op.a[1] = b.address(op, i.op[0]);
    op.run = drop_mbarrier;
    return true;
  }
  if (what == "arrive" || what == "expect_tx") {
    const std::size_t first = i.op[0].kind == Operand::kAddress ? 0 : 1;
    op.a[0] = first ? b.out(i.op[0]) : kNone;
    op.a[1] = b.address(op, i.op[first]);
    op.a[2] = i.op.size() > first + 1 ? b.in(i.op[first + 1], 32) : kNone;
    op.variant = what == "expect_tx" ? kExpect : i.has("expect_tx") ? kArriveExpect : kArrive;
    op.run = arrive_mbarrier;
    return !i.has("noComplete");
  }
  if (what == "try_wait" || what == "test_wait") {
    op.a[0] = b.predicate(i.op[0]);
    op.a[1] = b.address(op, i.op[1]);
    op.variant = (i.has("parity") ? 1 : 0) | (what == "try_wait" ? 2 : 0);
    op.a[2] = b.in(i.op[2], i.has("parity") ? 32 : 64);
    return blocking(op, wait_mbarrier);
  }
  return false;
}

bool compile_barrier(Builder& b, const Instruction& i, Op& op) {
  const bool cta = i.has("cta");
  const std::string_view what = i.part[cta ? 2 : 1];
  if (what == "warp") {
    op.a[0] = b.in(i.op[0], 32);
    return blocking(op, sync_warp);
  }
  op.aligned = true;
  if (what == "cluster") {
    op.kind = Kind::kBlocking;
    op.run = i.part[2] == "arrive" ? cluster_arrive : cluster_wait;
    return i.part[2] == "arrive" || i.part[2] == "wait";
  }
  op.a[2] = kNone;
  op.width = i.part[0] == "bar" || i.has("aligned");
  if (what == "sync" || what == "arrive") {
    op.variant = what == "sync" ? kSync : kArriveOnly;
    op.a[1] = b.in(i.op[0], 32);
    if (i.op.size() > 1) op.a[2] = b.in(i.op[1], 32);
    return blocking(op, bar);
  }
  if (what == "red") {  // result, number[, threads], predicate
    op.variant = i.has("and") ? kAnd : i.has("or") ? kOr : kCount;
    op.a[0] = op.variant == kCount ? b.out(i.op[0]) : b.predicate(i.op[0]);
    op.a[1] = b.in(i.op[1], 32);
    if (i.op.size() > 3) op.a[2] = b.in(i.op[2], 32);
    op.a[3] = b.predicate(i.op.back());
    return blocking(op, bar);
  }
  return false;
}

}  // namespace

bool compile_sync(Builder& b, const Instruction& i, Op& op) {
  const std::string_view name = i.part[0];
  if (name == "bar" || name == "barrier") return compile_barrier(b, i, op);
  if (name == "mbarrier") return compile_mbarrier(b, i, op);
  if (name == "shfl") {
    const std::string_view how = i.part[2];
    const std::size_t first = i.pair ? 2 : 1;
    op.variant = how == "idx" ? kIdx : how == "up" ? kUp : how == "down" ? kDown : kBfly;
    op.a = {b.out(i.op[0]),
            i.pair && i.op[1].kind != Operand::kSink ? b.predicate(i.op[1]) : kNone,
            b.in(i.op[first], 32),
            b.in(i.op[first + 1], 32),
            b.in(i.op[first + 2], 32),
            b.in(i.op[first + 3], 32)};
    return blocking(op, shuffle);
  }
  if (name == "vote") {
    const std::string_view how = i.part[2];
    op.variant = how == "all" ? kVoteAll : how == "any" ? kVoteAny : how == "uni" ? kVoteUni : kBallot;
    Operand source = i.op[1];
    op.width = source.kind == Operand::kNegated;
    if (op.width) source.kind = Operand::kRegister;
    op.a = {op.variant == kBallot ? b.out(i.op[0]) : b.predicate(i.op[0]), b.predicate(source), b.in(i.op[2], 32)};
    return blocking(op, vote);
  }
  if (name == "elect") {
    op.a = {b.out(i.op[0]), b.predicate(i.op[1]), b.in(i.op[2], 32)};
    return i.pair && blocking(op, elect);
  }
  if (i.name == "match.any.sync.b32" || name == "redux") {
    op.a = {b.out(i.op[0]), b.in(i.op[1], 32), b.in(i.op[2], 32)};
    if (name == "match") return blocking(op, match_any);
    return blocking(op, i.type() == "s32" ? reduction<i32>(i.part[2]) : reduction<u32>(i.part[2]));
  }
  if (name == "activemask") {
    op.a[0] = b.out(i.op[0]);
    op.run = active_mask;
    return true;
  }
  if (name == "fence" && i.has("proxy")) {
    op.run = fence_proxy;
    return i.has("async");
  }
  if (name == "fence" || name == "membar" || name == "griddepcontrol") {
    op.run = i.has("wait") ? wait_for_grid : nothing;
    b.code.overlaps = b.code.overlaps || i.has("wait");
    return true;
  }
  if (name == "nanosleep") return blocking(op, yield);
  if (name == "trap") {
    op.run = trap;
    return true;
  }
  if (name == "setmaxnreg") {
    op.variant = i.has("inc");
    op.value = i.op[0].value;
    op.aligned = true;
    return blocking(op, set_registers);
  }
  if (i.name.starts_with("cp.async.mbarrier.arrive")) {
    op.a[1] = b.address(op, i.op[0]);
    op.variant = i.has("noinc");
    op.run = arrive_behind_copies;
    return true;
  }
  return false;
}

}  // namespace ptxemu
