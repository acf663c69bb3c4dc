// The CPU backends: which instruction sets this machine has, how the work is cut into parts, and how parts become rows.
//
// A part is (row, split, up to max_heads heads); OpenMP threads take parts as they get free, each with a scratch of its own
// in the caller's workspace. Rows cut into splits leave partials there, which are merged in split order: the result depends
// on the number of splits, never on the number of threads. Rows go in waves, so that the partials stay small.
#include "cpu/backend.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/softmax.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pasa::cpu {

void finish_heads(const Problem& p, const Part& part, const float* ref, const float* top, const float* l,
                  float* scale) {
  for (int h = 0; h < part.heads; ++h) {
    if (part.acc) {  // the contract of partials: relative to the exact maximum
      const float shift = l[h] == 0 ? 0 : ref[h] == top[h] ? 1 : std::exp2(ref[h] - top[h]);
      scale[h] = shift * p.value_scale;
      part.m[h] = top[h];
      part.l[h] = l[h] * shift;
      continue;
    }
    const int head = part.head + h;
    const Finish end = finish(ref[h], l[h], p.sink ? p.sink[head] : -kInfinity);
    scale[h] = end.scale * p.value_scale;
    if (p.lse) p.lse[part.row * p.lse_stride[0] + head * p.lse_stride[1]] = end.lse;
    if (p.max_logits) p.max_logits[part.row * p.max_logits_stride[0] + head * p.max_logits_stride[1]] = top[h] * kLn2;
  }
}

namespace {

constexpr std::size_t kAlign = 256;
constexpr std::size_t kPartialBytes = std::size_t{32} << 20;  // of one wave

std::size_t aligned(std::size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// A plan's decisions.
struct Detail {
  int threads;
  std::size_t scratch_bytes;  // of one thread
  std::int64_t wave_rows;     // rows between two merges; all of them if nothing is merged
};

// The partials of `rows` rows, in the caller's tensors or in the workspace: acc [rows, splits, heads, 512], then m and l.
struct Partials {
  float *acc, *m, *l;
};

// Fewer rows than threads, or not many more: cut rows so that no thread waits long for the last. A part costs its keys and
// a fixed toll (queries, output, merge) worth about 64 keys, and must be long enough to be worth waking a thread: 20 us or
// so, 192 keys at 16 heads.
int choose_splits(const Problem& p, int threads) {
  const std::int64_t rows = p.tokens * ((p.heads + 127) / 128);
  if (rows == 0 || threads == 1 || rows >= 8 * std::int64_t{threads}) return 1;
  const std::int64_t keys = p.average_keys();
  const std::int64_t least = std::max<std::int64_t>(64, 192 * 32 / (p.heads + 16));
  int best = 1;
  std::int64_t best_cost = 0;
  for (int splits = 1; splits <= 64 && (splits == 1 || keys / splits >= least); ++splits) {
    const std::int64_t rounds = (rows * splits + threads - 1) / threads;
    const std::int64_t cost = rounds * ((keys + splits - 1) / splits + (splits == 1 ? 32 : 64));
    if (splits == 1 || cost < best_cost) best = splits, best_cost = cost;
  }
  return best;
}

int threads_of(const Problem& p) { return p.threads ? p.threads : omp_get_max_threads(); }

std::size_t partial_floats(const Shape& p, int splits) {  // of one row
  return static_cast<std::size_t>(splits) * static_cast<std::size_t>(p.heads) * (kValueDim + 2);
}

}  // namespace

// The CPU's own name and the threads of the plan.
std::string machine(const Problem& p) {
  static const std::string kName = [] {
    std::string brand = "CPU";
#if defined(__x86_64__)
    unsigned words[12];
    constexpr unsigned kFirst = 0x80000002u;
    bool known = true;
    for (unsigned i = 0; i < 3; ++i) {
      unsigned* w = words + 4 * i;
      known &= __get_cpuid(kFirst + i, w, w + 1, w + 2, w + 3) != 0;
    }
    if (known)
      brand.assign(reinterpret_cast<const char*>(words), strnlen(reinterpret_cast<const char*>(words), sizeof words));
    brand.erase(brand.find_last_not_of(' ') + 1);
    brand.erase(0, brand.find_first_not_of(' '));
#endif
    return brand;
  }();
  return concat(kName, ", ", threads_of(p), " threads");
}

void make_plan(const Kernel& kernel, const Problem& p, Plan& plan) {
  Detail detail{};
  detail.threads = threads_of(p);
  plan.splits = p.splits ? p.splits : choose_splits(p, detail.threads);
  detail.scratch_bytes = aligned(kernel.scratch_bytes(p));
  detail.wave_rows = std::max<std::int64_t>(1, p.tokens);
  plan.workspace_bytes = detail.scratch_bytes * static_cast<std::size_t>(detail.threads);
  if (plan.splits > 1 && !p.skip_reduce) {
    const std::size_t row_bytes = partial_floats(p, plan.splits) * sizeof(float);
    detail.wave_rows =
        std::clamp<std::int64_t>(static_cast<std::int64_t>(kPartialBytes / row_bytes), 1, detail.wave_rows);
    plan.workspace_bytes += aligned(row_bytes * static_cast<std::size_t>(detail.wave_rows));
  }
  plan.summary = concat("threads ", detail.threads, ", splits ", plan.splits);
  plan.detail = std::make_shared<const Detail>(detail);
}

namespace {

// One (row, head) of a merge: sum of 2^(m - top) * (l, acc) over the splits. Partials lie `stride` (in heads) apart.
struct Merged {
  float m, l;
};
Merged merge(const Partials& from, std::int64_t splits, std::int64_t stride, float* acc) {
  float top = -kInfinity, sum = 0;
  for (std::int64_t s = 0; s < splits; ++s) {
    if (from.l[s * stride] != 0) top = std::max(top, from.m[s * stride]);
  }
  std::memset(acc, 0, kValueDim * sizeof(float));
  for (std::int64_t s = 0; s < splits; ++s) {
    const float l = from.l[s * stride];
    if (l == 0) continue;  // whatever its acc holds
    const float weight = merge_weight(from.m[s * stride], top);
    sum += weight * l;
    const float* part = from.acc + s * stride * kValueDim;
    for (int d = 0; d < kValueDim; ++d) acc[d] += weight * part[d];
  }
  return {top, sum};
}

template <typename T>
void store_row(const float* acc, float scale, T* out, T (*convert)(float)) {
  for (int d = 0; d < kValueDim; ++d) out[d] = convert(scale == 0 ? 0.0f : acc[d] * scale);
}

Partials at(const Partials& base, std::int64_t head_row) {
  return {base.acc + head_row * kValueDim, base.m + head_row, base.l + head_row};
}

}  // namespace

void run_plan(const Kernel& kernel, const Problem& p, const Plan& plan, void* workspace) {
  const Detail& detail = *static_cast<const Detail*>(plan.detail.get());
  const std::int64_t splits = plan.splits, heads = p.heads;
  const bool merged = splits > 1 && !plan.partial;
  auto* const memory = static_cast<std::byte*>(workspace);

  Partials partials{p.acc, p.m, p.l};
  if (merged) {
    auto* floats = reinterpret_cast<float*>(memory + detail.scratch_bytes * static_cast<std::size_t>(detail.threads));
    const std::int64_t count = detail.wave_rows * splits * heads;
    partials = {floats, floats + count * kValueDim, floats + count * (kValueDim + 1)};
  }

  const std::int64_t groups = (heads + kernel.max_heads - 1) / kernel.max_heads;
  const std::int64_t wave_parts = std::min(detail.wave_rows, p.tokens) * splits * groups;
  const auto team = static_cast<int>(std::min<std::int64_t>(detail.threads, wave_parts));
  // Big enough that taking parts costs nothing, small enough that threads end together.
  const auto grain = static_cast<int>(std::clamp<std::int64_t>(wave_parts / (16 * team), 1, 64));

#pragma omp parallel num_threads(team) if (team > 1)
  {
    std::byte* const scratch = memory + detail.scratch_bytes * static_cast<std::size_t>(omp_get_thread_num());
    for (std::int64_t wave = 0; wave < p.tokens; wave += detail.wave_rows) {
      const std::int64_t rows = std::min(detail.wave_rows, p.tokens - wave);
#pragma omp for schedule(dynamic, grain)
      for (std::int64_t i = 0; i < rows * splits * groups; ++i) {
        const std::int64_t group = i % groups, split = i / groups % splits, row = i / groups / splits;
        Part part{.row = wave + row, .split = static_cast<int>(split), .splits = static_cast<int>(splits)};
        part.head = static_cast<int>(group) * kernel.max_heads;
        part.heads = std::min(kernel.max_heads, p.heads - part.head);
        if (splits > 1) {
          const std::int64_t first = merged ? row : part.row;
          const Partials to = at(partials, (first * splits + split) * heads + part.head);
          part.acc = to.acc, part.m = to.m, part.l = to.l;
        }
        kernel.attend(p, part, scratch);
      }
      if (!merged) continue;
#pragma omp for schedule(static)
      for (std::int64_t i = 0; i < rows * heads; ++i) {
        const std::int64_t row = i / heads, head = i % heads, t = wave + row;
        float acc[kValueDim];
        const Merged all = merge(at(partials, row * splits * heads + head), splits, heads, acc);
        const Finish end = finish(all.m, all.l, p.sink ? p.sink[head] : -kInfinity);
        std::uint16_t* out = p.out + t * p.out_stride[0] + head * p.out_stride[1];
        store_row<std::uint16_t>(acc, end.scale, out, p.word == Word16::kBf16 ? float_to_bf16 : float_to_f16);
        if (p.lse) p.lse[t * p.lse_stride[0] + head * p.lse_stride[1]] = end.lse;
        if (p.max_logits) p.max_logits[t * p.max_logits_stride[0] + head * p.max_logits_stride[1]] = all.m * kLn2;
      }
    }
  }
}

// pasa_reduce for every CPU kernel.
void reduce(const Reduce& r, void*) {
  const std::int64_t heads = r.heads;
  // A merge reads its partials and never writes them.
  const Partials partials{const_cast<float*>(r.acc), const_cast<float*>(r.m), const_cast<float*>(r.l)};
#pragma omp parallel for schedule(static) if (r.tokens * heads > 64)
  for (std::int64_t i = 0; i < r.tokens * heads; ++i) {
    const std::int64_t t = i / heads, head = i % heads;
    float acc[kValueDim];
    const Merged all = merge(at(partials, t * r.splits * heads + head), r.splits, heads, acc);
    const Finish end = finish(all.m, all.l, r.sink ? r.sink[head] : -kInfinity);
    const std::int64_t out = t * r.out_stride[0] + head * r.out_stride[1];
    if (r.out_dtype == PASA_F32) {
      store_row<float>(acc, end.scale, static_cast<float*>(r.out) + out, [](float x) { return x; });
    } else {
      store_row<std::uint16_t>(acc, end.scale, static_cast<std::uint16_t*>(r.out) + out,
                               r.out_dtype == PASA_BF16 ? float_to_bf16 : float_to_f16);
    }
    if (r.lse) r.lse[t * r.lse_stride[0] + head * r.lse_stride[1]] = end.lse;
  }
}

namespace {

std::string accept(const Problem&) { return {}; }

// TDPBF16PS has no fp16 twin, and an fp16 query holds more bits than bf16.
[[maybe_unused]] std::string decline_f16(const Problem& p) {
  return p.word == Word16::kF16 ? "tiles multiply bf16 only, q is fp16" : "";
}

}  // namespace

extern const Kernel kPortableKernel;

}  // namespace pasa::cpu

namespace pasa {

extern const Backend kCpuPortable;
const Backend kCpuPortable = cpu::backend<cpu::kPortableKernel>(
    "cpu:portable", [] { return std::string(); }, cpu::accept);

}  // namespace pasa

#if defined(__x86_64__)
namespace pasa::cpu {

extern const Kernel kAvx2Kernel, kAvx512Kernel, kAvx512Bf16Kernel, kAmxKernel;

namespace {

// Tiles need the CPU's bits, the system's (XCR0 17 and 18) and, once a process, its leave: arch_prctl ARCH_REQ_XCOMP_PERM.
bool has_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  unsigned low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3u << 17;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return (low & kTileState) == kTileState && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

bool has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma");
}

std::string amx_unavailable() {
  static const bool has = has_avx512() && __builtin_cpu_supports("avx512bf16") && has_amx();
  return has ? "" : "this CPU or system has no AMX-bf16 tiles";
}
std::string avx512_bf16_unavailable() {
  static const bool has = has_avx512() && __builtin_cpu_supports("avx512bf16");
  return has ? "" : "this CPU has no AVX-512 BF16";
}
// Intel's CPUs take a bf16 dot product at half the rate of an fp32 FMA, AMD's at the same: twice the work.
std::string decline_slow_bf16(const Problem& p) {
  static const bool is_fast = __builtin_cpu_is("amd");
  if (!is_fast && p.kernel != "cpu:avx512_bf16") return "this CPU does more with fp32";
  return decline_f16(p);
}
std::string avx512_unavailable() {
  static const bool has = has_avx512();
  return has ? "" : "this CPU has no AVX-512 (F, BW, VL, DQ)";
}
std::string avx2_unavailable() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has ? "" : "this CPU has no AVX2 and FMA";
}

}  // namespace
}  // namespace pasa::cpu

namespace pasa {

extern const Backend kCpuAmx, kCpuAvx512Bf16, kCpuAvx512, kCpuAvx2;
const Backend kCpuAmx = cpu::backend<cpu::kAmxKernel>("cpu:amx", cpu::amx_unavailable, cpu::decline_f16);
const Backend kCpuAvx512Bf16 =
    cpu::backend<cpu::kAvx512Bf16Kernel>("cpu:avx512_bf16", cpu::avx512_bf16_unavailable, cpu::decline_slow_bf16);
const Backend kCpuAvx512 = cpu::backend<cpu::kAvx512Kernel>("cpu:avx512", cpu::avx512_unavailable, cpu::accept);
const Backend kCpuAvx2 = cpu::backend<cpu::kAvx2Kernel>("cpu:avx2", cpu::avx2_unavailable, cpu::accept);

}  // namespace pasa
#endif
