// Loads, stores, atomics, matrices to and from shared memory, asynchronous copies; and the checks of every access.
#include <algorithm>
#include <atomic>

#include "tools/ptxemu/machine.h"
#include "tools/ptxemu/tensor_map.h"

namespace ptxemu {

// ---- where an address leads ----------------------------------------------------------------------------------------------

Place find_shared(Warp& w, const Op& op, u32 address, u32 bytes, u32 alignment) {
  Cta* cta = w.cta;
  if (const u32 rank = address >> kRankShift; rank != 0) {
    if (rank > cta->cluster->ctas.size()) finding(w, op, "shared address of a block outside the cluster");
    cta = cta->cluster->ctas[rank - 1].get();
    if (!cta->started || cta->live_warps == 0) finding(w, op, "shared memory of a block that is not running");
  }
  const u32 at = (address & ((1u << kRankShift) - 1)) - kSharedStart;
  if (at > cta->shared.size() || cta->shared.size() - at < bytes) {
    finding(
        w, op,
        "shared access at byte " + std::to_string(static_cast<i32>(at)) + " of " + std::to_string(cta->shared.size()));
  }
  if (at % alignment) finding(w, op, "misaligned shared access at byte " + std::to_string(at));
  return {cta, at};
}

u8* find_global(Warp& w, const Op& op, u64 address, u64 bytes, u64 alignment) {
  if (w.early && !op.stale) finding(w, op, "global memory before griddepcontrol.wait, and not by ld.relaxed");
  if (address % alignment) finding(w, op, "misaligned access to global memory");
  if (address < w.last_range.begin || address + bytes > w.last_range.end) {
    const std::vector<Range>& memory = *w.cta->cluster->memory;
    auto found = std::upper_bound(memory.begin(), memory.end(), address,
                                  [](u64 value, const Range& range) { return value < range.begin; });
    if (found == memory.begin() || (--found)->end < address + bytes) {
      char text[80];
      std::snprintf(text, sizeof text, "access to %llu bytes at %#llx, outside every allocation",
                    static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(address));
      finding(w, op, text);
    }
    w.last_range = *found;
  }
  return reinterpret_cast<u8*>(address);
}

namespace {

u8* find_param(Warp& w, const Op& op, u64 address, u64 bytes, u64 alignment) {
  std::vector<u8>& parameters = *w.cta->cluster->parameters;
  const u64 at = address & 0xffffffffu;
  if (address >> 32 != kParamTag || at + bytes > parameters.size()) finding(w, op, "access outside the parameters");
  if (at % alignment) finding(w, op, "misaligned access to a parameter");
  return parameters.data() + at;
}

u8* find_local(Warp& w, const Op& op, u64 address, u64 bytes, u64 alignment, int lane) {
  const u64 at = address & 0xffffffffu, frame = w.code->function.local_bytes;
  if (at > frame || frame - at < bytes) finding(w, op, "access outside the thread's local memory");
  if (at % alignment) finding(w, op, "misaligned local access");
  return w.local.data() + frame * static_cast<u64>(lane) + at;
}

u64 address_of(const Warp& w, const Op& op, std::size_t slot, int lane) {
  if (op.wide_address) return w.cells<u64>(op.a[slot])[lane] + static_cast<u64>(op.value);
  return static_cast<u32>(w.cells<u32>(op.a[slot])[lane] + static_cast<u32>(op.value));
}

// Host memory behind an address; shared accesses are ordered.
template <Space kSpace>
u8* resolve(Warp& w, const Op& op, u64 address, u32 bytes, int lane, Access access) {
  if constexpr (kSpace == Space::kGlobal) return find_global(w, op, address, bytes, bytes);
  if constexpr (kSpace == Space::kParam) return find_param(w, op, address, bytes, bytes);
  if constexpr (kSpace == Space::kLocal) return find_local(w, op, address, bytes, bytes, lane);
  if constexpr (kSpace == Space::kShared) {
    const Place place = find_shared(w, op, static_cast<u32>(address), bytes, bytes);
    touch(w, op, place, bytes, access);
    return place.cta->shared.data() + place.at;
  }
  switch (address >> 32) {
    case kSharedTag:
      return resolve<Space::kShared>(w, op, address, bytes, lane, access);
    case kLocalTag:
      return find_local(w, op, address, bytes, bytes, lane);
    case kParamTag:
      return find_param(w, op, address, bytes, bytes);
    default:
      return find_global(w, op, address, bytes, bytes);
  }
}

// Clocks of an access of shared memory: lanes go together as long as they need at most 32 different banks.
void count_wavefronts(Warp& w, const Op& op, u32 mask, u32 bytes) {
  const int together = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  Stats& stats = w.cta->cluster->stats;
  for (int first = 0; first < kLanes; first += together) {
    std::array<std::array<u32, 32>, 32> words;
    std::array<u32, 32> count{};
    u32 most = 0;
    for (int lane = first; lane < first + together; ++lane) {
      if (!(mask >> lane & 1)) continue;
      const auto begin = static_cast<u32>(address_of(w, op, 0, lane)) / 4;
      for (u32 word = begin; word < begin + (bytes + 3) / 4; ++word) {
        const u32 bank = word % 32;
        const auto end = words[bank].begin() + count[bank];
        if (std::find(words[bank].begin(), end, word) != end) continue;
        words[bank][count[bank]++] = word;
        most = std::max(most, count[bank]);
      }
    }
    stats.shared_wavefronts += most;
    stats.shared_ideal_wavefronts += most ? 1 : 0;
  }
}

template <Space kSpace>
void count_bytes(Warp& w, const Op& op, u32 mask, u32 bytes) {
  if constexpr (kSpace == Space::kGlobal)
    w.cta->cluster->stats.global_bytes += u64{bytes} * static_cast<u32>(std::popcount(mask));
  if constexpr (kSpace == Space::kShared) {
    if (w.cta->cluster->options->count_banks) count_wavefronts(w, op, mask, bytes);
  }
}

// ---- loads and stores --------------------------------------------------------------------------------------------------------

template <typename T>
void set(Warp& w, const Op& op, u32 ref, int lane, T value) {
  if (ref == kNone) return;
  using Wide = std::conditional_t<std::is_signed_v<T>, i64, u64>;
  if (op.wide_data) {
    w.cells<u64>(ref)[lane] = static_cast<u64>(static_cast<Wide>(value));
  } else {
    w.cells<u32>(ref)[lane] = static_cast<u32>(static_cast<Wide>(value));
  }
}

template <typename T, Space kSpace>
void load(Warp& w, const Op& op, u32 mask) {
  const u32 bytes = sizeof(T) * op.listed;
  const u32* refs = &w.code->lists[op.list];
  count_bytes<kSpace>(w, op, mask, bytes);
  // Every other early load finds in some lanes what the launch before has not yet written.
  Random& random = *w.cta->cluster->random;
  const bool stale = w.early && op.stale && random() % 2 == 0;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u8* from = resolve<kSpace>(w, op, address_of(w, op, 0, lane), bytes, lane, Access::kRead);
    for (u32 k = 0; k < op.listed; ++k) {
      T value;
      std::memcpy(&value, from + k * sizeof(T), sizeof(T));
      if (stale && random() % 8 == 0) value = static_cast<T>(random() % 2 ? random() : random() % 64);
      set(w, op, refs[k], lane, value);
    }
  }
  if (op.kind == Kind::kBlocking) w.outcome = Outcome::kYield;  // it may be waiting for another block's store
}

template <typename T, Space kSpace>
void store(Warp& w, const Op& op, u32 mask) {
  const u32 bytes = sizeof(T) * op.listed;
  const u32* refs = &w.code->lists[op.list];
  count_bytes<kSpace>(w, op, mask, bytes);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    u8* to = resolve<kSpace>(w, op, address_of(w, op, 0, lane), bytes, lane, Access::kWrite);
    for (u32 k = 0; k < op.listed; ++k) {
      const T value =
          op.wide_data ? static_cast<T>(w.cells<u64>(refs[k])[lane]) : static_cast<T>(w.cells<u32>(refs[k])[lane]);
      std::memcpy(to + k * sizeof(T), &value, sizeof(T));
    }
  }
}

template <typename T>
Handler access(bool is_load, Space space) {
  switch (space) {
    case Space::kGlobal:
    case Space::kConst:
      return is_load ? load<T, Space::kGlobal> : store<T, Space::kGlobal>;
    case Space::kShared:
      return is_load ? load<T, Space::kShared> : store<T, Space::kShared>;
    case Space::kParam:
      return is_load ? load<T, Space::kParam> : nullptr;
    case Space::kLocal:
      return is_load ? load<T, Space::kLocal> : store<T, Space::kLocal>;
    default:
      return is_load ? load<T, Space::kGeneric> : store<T, Space::kGeneric>;
  }
}

Space space_of(const Instruction& i) {
  for (std::string_view part : i.part) {
    if (part == "global") return Space::kGlobal;
    if (part.starts_with("shared")) return Space::kShared;
    if (part.starts_with("param")) return Space::kParam;
    if (part == "local") return Space::kLocal;
    if (part == "const") return Space::kConst;
  }
  return Space::kGeneric;
}

bool compile_access(Builder& b, const Instruction& i, Op& op) {
  const bool is_load = i.part[0] == "ld";
  const Operand& data = i.op[is_load ? 0 : 1];
  const std::string_view type = i.type();
  op.a[0] = b.address(op, i.op[is_load ? 1 : 0]);
  const int bits = type.ends_with("64") ? 64 : type.ends_with("32") ? 32 : type.ends_with("16") ? 16 : 8;
  std::vector<u32> refs;
  const auto add = [&](const Operand& o) {
    refs.push_back(is_load ? b.out(o) : b.in(o, bits == 64 ? 64 : 32));
    op.wide_data = op.wide_data || bits == 64 || b.is_wide(o);
  };
  if (data.kind == Operand::kVector) {
    for (const Operand& o : data.parts) add(o);
  } else {
    add(data);
  }
  op.list = b.list(refs);
  op.listed = static_cast<u32>(refs.size());
  const Space space = space_of(i);
  if (bits == 64) op.run = access<u64>(is_load, space);
  if (bits == 32) op.run = type == "s32" ? access<i32>(is_load, space) : access<u32>(is_load, space);
  if (bits == 16) op.run = type == "s16" ? access<i16>(is_load, space) : access<u16>(is_load, space);
  if (bits == 8) op.run = type == "s8" ? access<i8>(is_load, space) : access<u8>(is_load, space);
  if (is_load && (i.has("acquire") || i.has("volatile") || i.has("relaxed"))) op.kind = Kind::kBlocking;
  op.stale = is_load && i.has("relaxed");
  return op.run != nullptr;
}

// ---- atomics ------------------------------------------------------------------------------------------------------------

template <typename T, auto F>
void atomic(Warp& w, const Op& op, u32 mask) {
  using U = Cell<T>;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u64 address = address_of(w, op, 0, lane);
    u8* at = nullptr;
    if (op.variant == static_cast<u32>(Space::kShared)) {
      const Place place = find_shared(w, op, static_cast<u32>(address), sizeof(T), sizeof(T));
      at = place.cta->shared.data() + place.at;  // not ordered: atomics are how warps may meet
    } else {
      at = resolve<Space::kGeneric>(w, op, address, sizeof(T), lane, Access::kWrite);
    }
    std::atomic_ref<U> memory(*reinterpret_cast<U*>(at));
    U old = memory.load();
    const T b = get<T>(w.cells<T>(op.a[2])[lane]), c = get<T>(w.cells<T>(op.a[3])[lane]);
    while (!memory.compare_exchange_weak(old, put<T>(F(get<T>(old), b, c)))) {
    }
    if (op.a[1] != kNone) w.cells<T>(op.a[1])[lane] = old;
  }
}

template <typename T>
Handler find_atomic(std::string_view what) {
  if (what == "add") return atomic<T, [](T a, T b, T) { return static_cast<T>(a + b); }>;
  if (what == "exch") return atomic<T, [](T, T b, T) { return b; }>;
  if constexpr (std::is_integral_v<T>) {
    if (what == "max") return atomic<T, [](T a, T b, T) { return std::max(a, b); }>;
    if (what == "min") return atomic<T, [](T a, T b, T) { return std::min(a, b); }>;
    if (what == "and") return atomic<T, [](T a, T b, T) { return static_cast<T>(a & b); }>;
    if (what == "or") return atomic<T, [](T a, T b, T) { return static_cast<T>(a | b); }>;
    if (what == "xor") return atomic<T, [](T a, T b, T) { return static_cast<T>(a ^ b); }>;
    if (what == "cas") return atomic<T, [](T a, T b, T c) { return a == b ? c : a; }>;
    if (what == "inc") return atomic<T, [](T a, T b, T) { return a >= b ? T{0} : static_cast<T>(a + 1); }>;
  }
  return nullptr;
}

bool compile_atomic(Builder& b, const Instruction& i, Op& op) {
  const std::string_view type = i.type();
  std::string_view what;
  for (std::string_view known : {"add", "exch", "max", "min", "and", "or", "xor", "cas", "inc"}) {
    if (i.has(known)) what = known;
  }
  const std::size_t first = i.part[0] == "atom" ? 1 : 0;  // red has no result
  if (type == "u32" || type == "b32") op.run = find_atomic<u32>(what);
  if (type == "s32") op.run = find_atomic<i32>(what);
  if (type == "u64" || type == "b64") op.run = find_atomic<u64>(what);
  if (type == "f32") op.run = find_atomic<float>(what);
  if (type == "f64") op.run = find_atomic<double>(what);
  if (!op.run) return false;
  const int bits = type.ends_with("64") ? 64 : 32;
  op.a[0] = b.address(op, i.op[first]);
  op.a[1] = first ? b.out(i.op[0]) : kNone;
  op.a[2] = op.a[3] = b.in(i.op[first + 1], bits);
  if (i.op.size() > first + 2) op.a[3] = b.in(i.op[first + 2], bits);
  op.variant = static_cast<u32>(space_of(i) == Space::kShared ? Space::kShared : Space::kGeneric);
  return true;
}

// ---- matrices: 8 x 8 words of 16 bits -----------------------------------------------------------------------------------

// Lane 8m + r names row r of matrix m; lane l holds words 2 (l % 4) and the next of row l / 4. kTranspose: columns for rows.
template <bool kLoad, bool kTranspose>
void move_matrices(Warp& w, const Op& op, u32) {
  const u32* refs = &w.code->lists[op.list];
  for (u32 m = 0; m < op.listed; ++m) {
    u8* row[8];
    for (int r = 0; r < 8; ++r) {
      const int lane = static_cast<int>(8 * m) + r;
      const auto address = static_cast<u32>(address_of(w, op, 0, lane));
      const Place place = find_shared(w, op, address, 16, 16);
      touch(w, op, place, 16, kLoad ? Access::kRead : Access::kWrite);
      row[r] = place.cta->shared.data() + place.at;
    }
    u32* cell = w.cells<u32>(refs[m]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int k = 0; k < 2; ++k) {
        const int r = kTranspose ? 2 * (lane % 4) + k : lane / 4, c = kTranspose ? lane / 4 : 2 * (lane % 4) + k;
        auto* word = reinterpret_cast<u16*>(row[r]) + c;
        if constexpr (kLoad) {
          cell[lane] = k ? (cell[lane] & 0xffffu) | static_cast<u32>(*word) << 16 : *word;
        } else {
          *word = static_cast<u16>(cell[lane] >> (16 * k));
        }
      }
    }
  }
  if (w.cta->cluster->options->count_banks) {  // a row each: eight lanes of 16 bytes
    count_wavefronts(w, op, op.listed == 4 ? kAll : (1u << (8 * op.listed)) - 1, 16);
  }
}

bool compile_matrices(Builder& b, const Instruction& i, Op& op) {
  const bool is_load = i.part[0] == "ldmatrix", transpose = i.has("trans");
  if (!i.has("m8n8") || i.type() != "b16") return false;
  std::vector<u32> refs;
  const Operand& data = i.op[is_load ? 0 : 1];
  for (const Operand& o : data.kind == Operand::kVector ? data.parts : std::vector<Operand>{data}) {
    refs.push_back(is_load ? b.out(o) : b.in(o, 32));
  }
  op.a[0] = b.address(op, i.op[is_load ? 1 : 0]);
  op.list = b.list(refs);
  op.listed = static_cast<u32>(refs.size());
  op.kind = Kind::kBlocking;
  op.aligned = true;
  op.run = is_load ? (transpose ? move_matrices<true, true> : move_matrices<true, false>)
                   : (transpose ? move_matrices<false, true> : move_matrices<false, false>);
  return true;
}

// ---- cp.async: by thread and group ----------------------------------------------------------------------------------------

// Until it lands, the target holds NaN.
void start_copy(Warp& w, const Op& op, u32 mask) {
  Copy copy{.mask = mask, .bytes = op.width, .from = {}, .to = {}, .from_bytes = {}, .group = w.copy_groups};
  for (u32 left = mask; left; left &= left - 1) {
    const auto lane = static_cast<std::size_t>(std::countr_zero(left));
    const auto l = static_cast<int>(lane);
    copy.to[lane] = static_cast<u32>(w.cells<u32>(op.a[0])[l]) + static_cast<u32>(op.value);
    copy.from[lane] = w.cells<u64>(op.a[1])[l] + op.variant;
    copy.from_bytes[lane] = op.a[2] == kNone ? op.width : std::min(op.width, w.cells<u32>(op.a[2])[l]);
    const Place place = find_shared(w, op, copy.to[lane], op.width, op.width);
    touch(w, op, place, op.width, Access::kWrite);
    std::memset(place.cta->shared.data() + place.at, 0xff, op.width);
    if (copy.from_bytes[lane]) find_global(w, op, copy.from[lane], copy.from_bytes[lane], op.width);
  }
  count_bytes<Space::kGlobal>(w, op, mask, op.width);
  w.copies.push_back(copy);
}

}  // namespace

// Lands the copies of lanes `mask` in groups before `group`.
void land_copies(Warp& w, const Op& op, u32 mask, const std::array<u32, kLanes>& before) {
  for (Copy& copy : w.copies) {
    for (u32 left = copy.mask & mask; left; left &= left - 1) {
      const auto lane = static_cast<std::size_t>(std::countr_zero(left));
      if (copy.group[lane] >= before[lane]) continue;
      const Place place = find_shared(w, op, copy.to[lane], copy.bytes, copy.bytes);
      touch(w, op, place, copy.bytes, Access::kWrite);
      u8* to = place.cta->shared.data() + place.at;
      const u32 bytes = copy.from_bytes[lane];
      if (bytes) std::memcpy(to, find_global(w, op, copy.from[lane], bytes, copy.bytes), bytes);
      std::memset(to + bytes, 0, copy.bytes - bytes);
      copy.mask &= ~(1u << lane);
    }
  }
  while (!w.copies.empty() && w.copies.front().mask == 0) w.copies.pop_front();
}

namespace {

void commit_copies(Warp& w, const Op&, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) ++w.copy_groups[static_cast<std::size_t>(std::countr_zero(left))];
}
void wait_copies(Warp& w, const Op& op, u32 mask) {
  std::array<u32, kLanes> before;
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const auto pending = static_cast<u32>(op.value);
    before[lane] = op.variant ? ~0u : w.copy_groups[lane] - std::min(w.copy_groups[lane], pending);
  }
  land_copies(w, op, mask, before);
}

// ---- bulk copies: the barrier counts their bytes -----------------------------------------------------------------------------

// A copy that lands some time later, on behalf of the thread that asked for it.
void later(Warp& w, std::function<void()> land) { w.cta->cluster->landings.push_back({std::move(land)}); }

u32 swizzled(u32 address, u32 swizzle_bytes) {
  // The 16-byte chunk of a row of 128 (64, 32) bytes is exchanged by the row's number.
  if (swizzle_bytes == 0) return address;
  const u32 mask = swizzle_bytes / 16 - 1;
  return address ^ ((address >> 7 & mask) << 4);
}

// `variant` 0: to shared memory, a[1] the map, a[0] the tile. 1: the other way.
void start_tensor(Warp& w, const Op& op, u32 mask) {
  const u32* refs = &w.code->lists[op.list];
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 to = w.cells<u32>(op.a[0])[lane], barrier = op.variant ? 0 : w.cells<u32>(op.a[2])[lane];
    const u64 map_address = w.cells<u64>(op.a[1])[lane];
    TensorMap map;
    std::memcpy(&map, resolve<Space::kGeneric>(w, op, map_address, 64, lane, Access::kRead), sizeof map);
    if (map.magic != TensorMap::kMagic) finding(w, op, "the tensor map is none");
    if (map.rank != op.listed) finding(w, op, "the tensor map has another rank");
    std::array<i64, 5> first{};
    u32 rows = 1;
    for (u32 k = 0; k < map.rank; ++k) {
      first[k] = static_cast<i32>(w.cells<u32>(refs[k])[lane]);
      if (k) rows *= map.box[k];
    }
    const u32 row_bytes = map.box[0] * map.element_bytes, bytes = rows * row_bytes;
    const Place place = find_shared(w, op, to, bytes, map.swizzle_bytes ? 128 : 16);
    Knowledge read;
    if (op.variant) {
      read = touch_by_engine(w, op, place, bytes);
    } else {
      touch(w, op, place, bytes, Access::kAsyncWrite);
    }
    w.cta->cluster->stats.global_bytes += bytes;
    if (op.variant == 0) {
      std::memset(place.cta->shared.data() + place.at, 0xff, bytes);
      find_mbarrier(w, op, barrier);
    }
    const auto copy = [=, &w, &op] {
      u8* shared = place.cta->shared.data();
      for (u32 row = 0; row < rows; ++row) {
        u64 from = map.base;
        bool inside = true;
        u32 rest = row;
        for (u32 k = 1; k < map.rank; ++k) {
          const i64 at = first[k] + rest % map.box[k];
          rest /= map.box[k];
          inside = inside && at >= 0 && at < static_cast<i64>(map.size[k]);
          from += static_cast<u64>(at) * map.stride[k];
        }
        for (u32 x = 0; x < map.box[0]; ++x) {
          const i64 column = first[0] + x;
          u8* target = shared +
                       swizzled(place.at + kSharedStart + row * row_bytes + x * map.element_bytes, map.swizzle_bytes) -
                       kSharedStart;
          if (inside && column >= 0 && column < static_cast<i64>(map.size[0])) {
            u8* element = find_global(w, op, from + static_cast<u64>(column) * map.element_bytes, map.element_bytes, 1);
            std::memcpy(op.variant ? element : target, op.variant ? target : element, map.element_bytes);
          } else if (op.variant == 0) {
            std::memset(target, 0, map.element_bytes);
          }
        }
      }
      if (op.variant) {
        w.knows.learn(read);
      } else {
        complete_bytes(*w.cta->cluster, find_mbarrier(w, op, barrier), bytes);
      }
    };
    if (op.variant) {
      w.stores[static_cast<std::size_t>(lane)].push_back(copy);
    } else {
      later(w, copy);
    }
  }
}

// cp.async.bulk.wait_group 0 and wait_group.read 0.
void wait_stores(Warp& w, const Op&, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    auto& stores = w.stores[static_cast<std::size_t>(std::countr_zero(left))];
    for (const auto& store : stores) store();
    stores.clear();
  }
}

// cp.async.bulk: `variant` 0 global -> shared, 1 shared -> a neighbour's shared memory.
void start_bulk(Warp& w, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 to = w.cells<u32>(op.a[0])[lane], bytes = w.cells<u32>(op.a[2])[lane],
              barrier = w.cells<u32>(op.a[3])[lane];
    if (bytes % 16) finding(w, op, "a bulk copy of " + std::to_string(bytes) + " bytes, no multiple of 16");
    const u64 from = op.variant ? w.cells<u32>(op.a[1])[lane] : w.cells<u64>(op.a[1])[lane];
    const Place place = find_shared(w, op, to, bytes, 16);
    touch(w, op, place, bytes, Access::kAsyncWrite);
    Knowledge read;
    if (op.variant) read = touch_by_engine(w, op, find_shared(w, op, static_cast<u32>(from), bytes, 16), bytes);
    std::memset(place.cta->shared.data() + place.at, 0xff, bytes);
    find_mbarrier(w, op, barrier);
    if (!op.variant) w.cta->cluster->stats.global_bytes += bytes;
    later(w, [=, &w, &op] {
      const u8* source = nullptr;
      if (op.variant) {
        const Place own = find_shared(w, op, static_cast<u32>(from), bytes, 16);
        source = own.cta->shared.data() + own.at;
      } else {
        source = find_global(w, op, from, bytes, 16);
      }
      std::memcpy(place.cta->shared.data() + place.at, source, bytes);
      Mbarrier& m = find_mbarrier(w, op, barrier);
      m.arriving.learn(read);
      complete_bytes(*w.cta->cluster, m, bytes);
    });
  }
}

// st.async: 4 to 16 bytes to a neighbour.
void store_async(Warp& w, const Op& op, u32 mask) {
  const u32* refs = &w.code->lists[op.list];
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const auto to = static_cast<u32>(address_of(w, op, 0, lane));
    const u32 barrier = w.cells<u32>(op.a[1])[lane], bytes = op.listed * op.width;
    std::array<u8, 16> data{};
    for (u32 k = 0; k < op.listed; ++k) {
      const u64 value = op.wide_data ? w.cells<u64>(refs[k])[lane] : w.cells<u32>(refs[k])[lane];
      std::memcpy(data.data() + k * op.width, &value, op.width);
    }
    const Place place = find_shared(w, op, to, bytes, bytes);
    touch(w, op, place, bytes, Access::kAsyncWrite);
    std::memset(place.cta->shared.data() + place.at, 0xff, bytes);
    find_mbarrier(w, op, barrier);
    later(w, [=, &w, &op] {
      std::memcpy(place.cta->shared.data() + place.at, data.data(), bytes);
      complete_bytes(*w.cta->cluster, find_mbarrier(w, op, barrier), bytes);
    });
  }
}

// ---- addresses ------------------------------------------------------------------------------------------------------------

template <typename T>
void map_rank(Warp& w, const Op& op, u32 mask) {
  const auto* address = w.cells<T>(op.a[1]);
  const u32* rank = w.cells<u32>(op.a[2]);
  auto* d = w.cells<T>(op.a[0]);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (rank[lane] >= w.cta->cluster->ctas.size()) finding(w, op, "a rank outside the cluster");
    if (static_cast<u32>(address[lane]) >> kRankShift) finding(w, op, "mapa of an address that is not the block's own");
    d[lane] = address[lane] | static_cast<T>(rank[lane] + 1) << kRankShift;
  }
}

// Generic to and from a space: `value` is the tag.
void to_space(Warp& w, const Op& op, u32 mask) {
  const u64* s = w.cells<u64>(op.a[1]);
  u64* d = w.cells<u64>(op.a[0]);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    if (s[lane] >> 32 != static_cast<u64>(op.value)) finding(w, op, "an address of another space");
    d[lane] = s[lane] & 0xffffffffu;
  }
}
void from_space(Warp& w, const Op& op, u32 mask) {
  const u64* s = w.cells<u64>(op.a[1]);
  u64* d = w.cells<u64>(op.a[0]);
  lanes(mask, [&](int i) { d[i] = s[i] | static_cast<u64>(op.value) << 32; });
}
void copy_address(Warp& w, const Op& op, u32 mask) {
  const u64* s = w.cells<u64>(op.a[1]);
  u64* d = w.cells<u64>(op.a[0]);
  lanes(mask, [&](int i) { d[i] = s[i]; });
}
void nothing(Warp&, const Op&, u32) {}

}  // namespace

bool compile_memory(Builder& b, const Instruction& i, Op& op) {
  const std::string_view name = i.part[0];
  if (name == "ld" || (name == "st" && i.part[1] != "async")) return compile_access(b, i, op);
  if (name == "atom" || name == "red") return compile_atomic(b, i, op);
  if (name == "ldmatrix" || name == "stmatrix") return compile_matrices(b, i, op);
  if (name == "mapa") {
    const bool wide = i.type() == "u64";
    op.a = {b.out(i.op[0]), b.in(i.op[1], wide ? 64 : 32), b.in(i.op[2], 32)};
    op.run = wide ? map_rank<u64> : map_rank<u32>;
    return i.part[1] == "shared::cluster";
  }
  if (name == "cvta") {
    const Space space = space_of(i);
    op.a = {b.out(i.op[0]), b.in(i.op[1], 64)};
    op.value = static_cast<i64>(space == Space::kShared ? kSharedTag : kLocalTag);
    op.run =
        space == Space::kShared || space == Space::kLocal ? (i.part[1] == "to" ? to_space : from_space) : copy_address;
    return true;
  }
  if (name == "prefetch" || name == "prefetchu") {
    op.run = nothing;
    return true;
  }
  if (name == "st") {  // st.async
    const Operand& data = i.op[1];
    std::vector<u32> refs;
    op.width = i.type().ends_with("64") ? 8 : 4;
    op.wide_data = op.width == 8;
    for (const Operand& o : data.kind == Operand::kVector ? data.parts : std::vector<Operand>{data}) {
      refs.push_back(b.in(o, op.width == 8 ? 64 : 32));
    }
    op.list = b.list(refs);
    op.listed = static_cast<u32>(refs.size());
    Op barrier;
    op.a[1] = b.address(barrier, i.op[2]);
    op.a[0] = b.address(op, i.op[0]);
    op.run = store_async;
    return i.has("mbarrier::complete_tx::bytes") && barrier.value == 0 && !barrier.wide_address;
  }
  if (name != "cp" || i.part[1] != "async") return false;
  if (i.name == "cp.async.commit_group") {
    op.run = commit_copies;
    return true;
  }
  if (i.name == "cp.async.wait_all" || i.name == "cp.async.wait_group") {
    op.run = wait_copies;
    op.variant = i.part[2] == "wait_all";
    if (!op.variant) op.value = i.op[0].value;
    return true;
  }
  if (i.part[2] == "ca" || i.part[2] == "cg") {
    Op from;
    op.a[1] = b.address(from, i.op[1]);
    op.a[0] = b.address(op, i.op[0]);
    op.width = static_cast<u32>(i.op[2].value);
    op.variant = static_cast<u32>(from.value);
    op.a[2] = i.op.size() > 3 ? b.in(i.op[3], 32) : kNone;
    op.run = start_copy;
    return !op.wide_address && from.wide_address && from.value >= 0;
  }
  if (i.name == "cp.async.bulk.commit_group" || (i.part[2] == "bulk" && i.part[3] == "prefetch")) {
    op.run = nothing;
    return true;
  }
  if (i.part[2] == "bulk" && i.part[3] == "wait_group") {
    op.run = wait_stores;
    return i.op[0].value == 0;
  }
  const bool stores = i.has("bulk_group");
  if (i.part[2] != "bulk" || i.has("multicast::cluster") || (!stores && !i.has("mbarrier::complete_tx::bytes"))) {
    return false;
  }
  // Their addresses are plain registers.
  const auto plain = [&](const Operand& o, bool wide) {
    Op address;
    const u32 ref = b.address(address, o);
    if (address.value != 0 || address.wide_address != wide) throw Error("an address of another form than expected");
    return ref;
  };
  if (i.part[3] == "tensor") {
    std::vector<u32> refs;
    for (const Operand& o : i.op[stores ? 0 : 1].parts) refs.push_back(b.in(o, 32));
    op.list = b.list(refs);
    op.listed = static_cast<u32>(refs.size());
    op.variant = stores;
    op.run = start_tensor;
    if (stores) {
      op.a = {plain(i.op[1], false), plain(i.op[0], true)};
      return i.has("global") && i.has("shared::cta");
    }
    op.a = {plain(i.op[0], false), plain(i.op[1], true), plain(i.op[2], false)};
    return i.has("global") && i.has("shared::cluster");
  }
  if (stores) return false;
  op.variant = i.has("shared::cta") && !i.has("global");
  op.a = {plain(i.op[0], false), plain(i.op[1], !op.variant), b.in(i.op[2], 32), plain(i.op[3], false)};
  op.run = start_bulk;
  return true;
}

}  // namespace ptxemu
