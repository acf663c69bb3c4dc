// cpu_ceilings: what one x86 CPU with AMX can do at most in each part of cpu/attention_tiles.h. Each line: name, median rate,
// [min .. max] over the runs, the same per core cycle. bench/ceilings.h is the short form that `pasa bench` uses.
//
//   clock     the real core clock (virtual machines report a made-up one)
//   vector    fp32 FMA and VDPBF16PS, operands in registers
//   tile      TDPBF16PS: tiles resident; tiles loaded (1x4, 1x6, 2x2 accumulators) from L1, L2, L3
//   read      sequential reads of a buffer of L1, L2, L3 and DRAM size
//   gather    random rows of 584 bytes (packed pages) and 1024 bytes, small and large pool
//   convert   e4m3 -> bf16 with a power-of-two scale, five ways, each first checked bit by bit
//   layout    per 64 tokens: pair interleave for V, dword transpose for K, softmax of 64 x 16
//
// Run:   ./cpu_ceilings [--threads N] [--runs N] [--only SECTION] [--large-mib N]
//
// Thread i is pinned to CPU i. Every run starts all threads together and takes the slowest; a chain
// of dependent adds before and after it gives the clock for the per-cycle column, so a slow moment
// of a shared machine lowers the rate but hardly the per-cycle number. AMX is the exception: the
// tile unit is shared with the other hyperthread of the core. While a neighbour uses it, bare
// TDPBF16PS halves and TDPBF16PS with tile loads falls to a quarter: read median and maximum.
#include <immintrin.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/number.h"

namespace {

using Clock = std::chrono::steady_clock;
using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;

struct {
  int threads = 1, runs = 9;
  std::size_t large_mib = 2048;
  std::string_view only;
} settings;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Hides a register value from the optimiser: the loop around it can be neither folded nor hoisted.
template <typename V>
[[gnu::always_inline]] inline void keep(V& v) {
  asm volatile("" : "+v"(v));
}

// ---- clock

// Cycles per second of the core this thread runs on. 256 dependent adds take 256 cycles whatever
// else is in flight.
double core_hz(int rounds = 4000) {
  const auto start = Clock::now();
  u32 x = 1;
  for (int i = 0; i < rounds; ++i) {
    asm volatile(".rept 256\n\tadd $1, %0\n\t.endr" : "+r"(x));
  }
  return 256.0 * rounds / seconds_since(start);
}

// ---- the measuring frame

struct Sample {
  double rate;       // work per second, all threads
  double per_cycle;  // work per core cycle and thread
};

void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Linux hands out the tile registers only on request (arch_prctl ARCH_REQ_XCOMP_PERM, feature 18).
bool request_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

// body(thread) does `work` units; it is repeated so that one run takes about 20 ms.
void measure(const char* name, const char* unit, double work, const std::function<void(int)>& body) {
  std::vector<Sample> samples;
  std::atomic<int> ready{0};
  std::atomic<int> go{0};
  std::vector<double> seconds(static_cast<std::size_t>(settings.threads)),
      hz(static_cast<std::size_t>(settings.threads));
  int repeats = 1;
  auto worker = [&](int t) {
    pin(t);
    body(t);  // warm up; also gives each thread its own first touch
    if (t == 0) {
      const auto start = Clock::now();
      body(0);
      repeats = std::max(1, static_cast<int>(0.02 / std::max(1e-9, seconds_since(start))));
    }
    for (int run = 0; run < settings.runs; ++run) {
      ready.fetch_add(1);
      if (t == 0) {
        while (ready.load() != (run + 1) * settings.threads) _mm_pause();
        go.store(run + 1);
      }
      while (go.load() < run + 1) _mm_pause();
      const double before = core_hz(200);
      const auto start = Clock::now();
      for (int i = 0; i < repeats; ++i) body(t);
      seconds[static_cast<std::size_t>(t)] = seconds_since(start);
      const double after = core_hz(200);
      hz[static_cast<std::size_t>(t)] = 0.5 * (before + after);
      static std::atomic<int> finished{0};
      finished.fetch_add(1);
      if (t == 0) {
        while (finished.load() != settings.threads) _mm_pause();
        finished.store(0);
        const double slowest = *std::max_element(seconds.begin(), seconds.end());
        double clock = 0;
        for (double h : hz) clock += h / settings.threads;
        samples.push_back({work * repeats * settings.threads / slowest, work * repeats / slowest / clock});
      }
    }
  };
  std::vector<std::thread> others;
  for (int t = 1; t < settings.threads; ++t) others.emplace_back(worker, t);
  worker(0);
  for (auto& o : others) o.join();
  std::sort(samples.begin(), samples.end(), [](auto a, auto b) { return a.rate < b.rate; });
  std::vector<double> cycles;
  for (auto& s : samples) cycles.push_back(s.per_cycle);
  std::sort(cycles.begin(), cycles.end());
  const auto mid = samples.size() / 2;
  if (unit[0] == 'M') {  // things that take many cycles each: the time of one is easier to read than a rate
    std::printf("%-34s %10.3f %-7s  cycles each %9.1f [%8.1f .. %8.1f]\n", name, samples[mid].rate / 1e6, unit,
                1 / cycles[mid], 1 / cycles.back(), 1 / cycles.front());
    std::fflush(stdout);
    return;
  }
  std::printf("%-34s %10.2f %-7s [%8.2f .. %8.2f]  per cycle %9.3f [%8.3f .. %8.3f]\n", name, samples[mid].rate / 1e9,
              unit, samples.front().rate / 1e9, samples.back().rate / 1e9, cycles[mid], cycles.front(), cycles.back());
  std::fflush(stdout);
}

bool section(std::string_view name) {
  if (!settings.only.empty() && settings.only != name) return false;
  std::printf("-- %.*s, %d thread(s)\n", static_cast<int>(name.size()), name.data(), settings.threads);
  return true;
}

// Anonymous memory that asks for 2 MiB pages; without them a random gather from 2 GiB measures the
// page walker.
struct Buffer {
  Buffer(std::size_t bytes, bool huge) : bytes_((bytes + 0x1fffff) & ~std::size_t{0x1fffff}) {
    data_ = static_cast<u8*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (data_ == MAP_FAILED) std::abort();
    madvise(data_, bytes_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::uint64_t x = 88172645463325252u;
    for (std::size_t i = 0; i < bytes_; i += 8) {
      x ^= x << 13, x ^= x >> 7, x ^= x << 17;
      const std::uint64_t v = x & 0xbfbfbfbfbfbfbfbfu;
      std::memcpy(data_ + i, &v, 8);
    }
  }
  ~Buffer() { munmap(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  u8* data_;
  std::size_t bytes_;
};

// ---- vector units

void vector_units() {
  constexpr int kLoops = 20000;
  measure("fp32 FMA, 16 accumulators", "GFLOP/s", kLoops * 16 * 32.0, [](int) {
    __m512 acc[16];
    for (auto& a : acc) a = _mm512_set1_ps(1.0f);
    __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
    keep(x);
    keep(y);
    for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
      for (auto& a : acc) {
        a = _mm512_fmadd_ps(a, x, y);
        keep(a);
      }
    }
  });
  measure("VDPBF16PS, 16 accumulators", "GFLOP/s", kLoops * 16 * 64.0, [](int) {
    __m512 acc[16];
    for (auto& a : acc) a = _mm512_set1_ps(1.0f);
    __m512i x = _mm512_set1_epi16(0x3f00), y = _mm512_set1_epi16(0x3e80);
    keep(x);
    keep(y);
    for (int i = 0; i < kLoops; ++i) {
#pragma GCC unroll 16
      for (auto& a : acc) {
        a = _mm512_dpbf16_ps(a, (__m512bh)x, (__m512bh)y);
        keep(a);
      }
    }
  });
}

// ---- tile unit

struct alignas(64) TileConfig {
  u8 palette = 1, start_row = 0, reserved[14] = {};
  u16 colsb[16] = {};
  u8 rows[16] = {};
};

// rows: of tiles 0 to 5; tiles 6 and 7 always have 16.
// The barrier matters: g++ 12 declares only the first 8 bytes of the block as an input of LDTILECFG
// and drops the other stores at -O2 (illegal instruction at the first tile use). Tile loads and
// stores need the same care around real data.
void configure_tiles(int rows = 16) {
  TileConfig c;
  for (int i = 0; i < 8; ++i) c.colsb[i] = 64, c.rows[i] = static_cast<u8>(i < 6 ? rows : 16);
  asm volatile("" ::"r"(&c) : "memory");
  _tile_loadconfig(&c);
}

constexpr double kTdpFlops = 16.0 * 16 * 32 * 2;

void tile_unit() {
  if (!request_tiles()) {
    std::puts("no AMX tiles here");
    return;
  }
  constexpr int kLoops = 2000;
  measure("TDPBF16PS, resident, 4 acc", "GFLOP/s", kLoops * 4 * kTdpFlops, [](int) {
    configure_tiles();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < kLoops; ++i) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
  });
  measure("TDPBF16PS, resident, 8-row A", "GFLOP/s", kLoops * 4 * kTdpFlops / 2, [](int) {
    configure_tiles(8);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < kLoops; ++i) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
  });
  measure("TDPBF16PS, resident, 2 acc", "GFLOP/s", kLoops * 4 * kTdpFlops, [](int) {
    configure_tiles();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    for (int i = 0; i < kLoops; ++i) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(0, 5, 6);
      _tile_dpbf16ps(1, 5, 7);
    }
    _tile_release();
  });

  // Operand panels: dense 1 KiB tiles, or rows of 1024 bytes as a [tokens, 512] bf16 buffer has
  // them.
  struct Where {
    const char* name;
    std::size_t bytes;
  };
  for (const Where w : {Where{"L1", 16 << 10}, Where{"L2", 768 << 10}, Where{"L3", 12 << 20}}) {
    Buffer memory(w.bytes * static_cast<std::size_t>(settings.threads) + (64 << 10), true);
    const std::size_t tiles = w.bytes / 1024;
    const std::size_t loops = std::max<std::size_t>(tiles / 4, 2000 / 4);
    auto label = [&](const char* what) {
      static char text[64];
      std::snprintf(text, sizeof text, "%s from %s", what, w.name);
      return text;
    };
    measure(label("TILELOADD dense"), "GB/s", static_cast<double>(loops * 4 * 1024), [&](int t) {
      configure_tiles();
      const u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 4 >= tiles) ? 0 : j + 4) {
        _tile_loadd(4, base + j * 1024, 64);
        _tile_loadd(5, base + j * 1024 + 1024, 64);
        _tile_loadd(6, base + j * 1024 + 2048, 64);
        _tile_loadd(7, base + j * 1024 + 3072, 64);
      }
      _tile_release();
    });
    measure(label("TILELOADD stride 1024"), "GB/s", static_cast<double>(loops * 4 * 1024), [&](int t) {
      configure_tiles();
      const u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      // 16 tiles side by side make 16 rows of 1024 bytes.
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 4 >= tiles) ? 0 : j + 4) {
        const u8* p = base + (j / 16) * 16384 + (j % 16) * 64;
        _tile_loadd(4, p, 1024);
        _tile_loadd(5, p + 64, 1024);
        _tile_loadd(6, p + 128, 1024);
        _tile_loadd(7, p + 192, 1024);
      }
      _tile_release();
    });
    measure(label("1x4: A L1, 4 B streamed,"), "GFLOP/s", static_cast<double>(loops * 4) * kTdpFlops, [&](int t) {
      configure_tiles();
      alignas(64) static thread_local u8 a[16 * 1024];
      const u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 4 >= tiles) ? 0 : j + 4) {
        const u8* p = base + j * 1024;
        _tile_loadd(4, a + (i % 16) * 1024, 64);
        _tile_loadd(5, p, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(6, p + 1024, 64);
        _tile_dpbf16ps(1, 4, 6);
        _tile_loadd(7, p + 2048, 64);
        _tile_dpbf16ps(2, 4, 7);
        _tile_loadd(5, p + 3072, 64);
        _tile_dpbf16ps(3, 4, 5);
      }
      _tile_release();
    });
    measure(label("1x6: A L1, 6 B streamed,"), "GFLOP/s", static_cast<double>(loops * 6) * kTdpFlops, [&](int t) {
      configure_tiles();
      alignas(64) static thread_local u8 a[16 * 1024];
      const u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      _tile_zero(4);
      _tile_zero(5);
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 6 >= tiles - 6) ? 0 : j + 6) {
        const u8* p = base + j * 1024;
        _tile_loadd(6, a + (i % 16) * 1024, 64);
        _tile_loadd(7, p, 64);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(7, p + 1024, 64);
        _tile_dpbf16ps(1, 6, 7);
        _tile_loadd(7, p + 2048, 64);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(7, p + 3072, 64);
        _tile_dpbf16ps(3, 6, 7);
        _tile_loadd(7, p + 4096, 64);
        _tile_dpbf16ps(4, 6, 7);
        _tile_loadd(7, p + 5120, 64);
        _tile_dpbf16ps(5, 6, 7);
      }
      _tile_release();
    });
    measure(label("2x2: 2 A L1, 2 B streamed,"), "GFLOP/s", static_cast<double>(loops * 4) * kTdpFlops, [&](int t) {
      configure_tiles();
      alignas(64) static thread_local u8 a[16 * 1024];
      const u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 2 >= tiles) ? 0 : j + 2) {
        const u8* p = base + j * 1024;
        _tile_loadd(4, a + (i % 8) * 2048, 64);
        _tile_loadd(6, p, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, p + 1024, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + (i % 8) * 2048 + 1024, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_release();
    });
    measure(label("2x2: 2 A and 2 B streamed,"), "GFLOP/s", static_cast<double>(loops * 4) * kTdpFlops, [&](int t) {
      configure_tiles();
      const u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 4 >= tiles) ? 0 : j + 4) {
        const u8* p = base + j * 1024;
        _tile_loadd(4, p, 64);
        _tile_loadd(6, p + 1024, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, p + 2048, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, p + 3072, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      _tile_release();
    });
    measure(label("load+store acc, 4 tiles,"), "Mtile/s", static_cast<double>(loops * 4), [&](int t) {
      configure_tiles();
      u8* base = memory.data_ + w.bytes * static_cast<std::size_t>(t);
      for (std::size_t i = 0, j = 0; i < loops; ++i, j = (j + 4 >= tiles) ? 0 : j + 4) {
        _tile_loadd(0, base + j * 1024, 64);
        _tile_loadd(1, base + j * 1024 + 1024, 64);
        _tile_loadd(2, base + j * 1024 + 2048, 64);
        _tile_loadd(3, base + j * 1024 + 3072, 64);
        _tile_stored(0, base + j * 1024, 64);
        _tile_stored(1, base + j * 1024 + 1024, 64);
        _tile_stored(2, base + j * 1024 + 2048, 64);
        _tile_stored(3, base + j * 1024 + 3072, 64);
      }
      _tile_release();
    });
  }
}

// ---- memory

void read_lines(const u8* p, std::size_t bytes) {
  __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
  for (std::size_t i = 0; i < bytes; i += 256) {
    a = _mm512_xor_si512(a, _mm512_load_si512(p + i));
    b = _mm512_xor_si512(b, _mm512_load_si512(p + i + 64));
    c = _mm512_xor_si512(c, _mm512_load_si512(p + i + 128));
    d = _mm512_xor_si512(d, _mm512_load_si512(p + i + 192));
    keep(a);
    keep(b);
    keep(c);
    keep(d);  // four chains: the compiler would join them into one
  }
  a = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
  keep(a);
}

void sequential_read() {
  struct Where {
    const char* name;
    std::size_t bytes;
  };
  for (const Where w : {Where{"read L1 (24 KiB)", 24 << 10}, Where{"read L2 (1 MiB)", 1 << 20},
                        Where{"read L3 (24 MiB)", 24 << 20}, Where{"read DRAM (large)", settings.large_mib << 20}}) {
    const std::size_t each = w.bytes / static_cast<std::size_t>(w.bytes > (64u << 20) ? settings.threads : 1);
    Buffer memory(each * static_cast<std::size_t>(settings.threads), true);
    const std::size_t rounds = std::max<std::size_t>(1, (1u << 20) / each);
    measure(w.name, "GB/s", static_cast<double>(each * rounds), [&](int t) {
      for (std::size_t r = 0; r < rounds; ++r) read_lines(memory.data_ + each * static_cast<std::size_t>(t), each);
    });
  }
}

// One row copied into an L1-resident tile, as a kernel's gather would, with a prefetch `ahead` rows
// before use.
template <int kRowBytes, bool kPacked>
void gather(const char* name, const Buffer& pool, int ahead) {
  constexpr std::size_t kPage = 64;
  const std::size_t row_bytes = kPacked ? 584 : kRowBytes;
  const std::size_t rows = pool.bytes_ / row_bytes / kPage * kPage;
  constexpr std::size_t kPicks = 1 << 15;
  std::vector<std::vector<u32>> picks(static_cast<std::size_t>(settings.threads));
  std::mt19937_64 random(7);
  for (auto& p : picks) {
    p.resize(kPicks + 64);
    for (auto& x : p) x = static_cast<u32>(random() % rows);
  }
  auto row_at = [&](u32 slot) -> const u8* {
    if constexpr (kPacked) return pool.data_ + (slot / kPage) * (kPage * 584) + (slot % kPage) * 576;
    return pool.data_ + std::size_t{slot} * kRowBytes;
  };
  auto scales_at = [&](u32 slot) {
    return pool.data_ + (slot / kPage) * (kPage * 584) + kPage * 576 + (slot % kPage) * 8;
  };
  measure(name, "GB/s", static_cast<double>(kPicks * row_bytes), [&, ahead](int t) {
    alignas(64) u8 tile[1024];
    const auto& mine = picks[static_cast<std::size_t>(t)];
    __m512i sum = _mm512_setzero_si512();
    for (std::size_t i = 0; i < kPicks; ++i) {
      if (ahead > 0) {
        const u8* next = row_at(mine[i + static_cast<std::size_t>(ahead)]);
        for (int o = 0; o < kRowBytes; o += 64) _mm_prefetch(reinterpret_cast<const char*>(next + o), _MM_HINT_T0);
        if constexpr (kPacked)
          _mm_prefetch(reinterpret_cast<const char*>(scales_at(mine[i + static_cast<std::size_t>(ahead)])),
                       _MM_HINT_T0);
      }
      const u8* p = row_at(mine[i]);
#pragma GCC unroll 16
      for (int o = 0; o < kRowBytes; o += 64) _mm512_store_si512(tile + o, _mm512_loadu_si512(p + o));
      asm volatile("" ::"r"(tile) : "memory");
      if constexpr (kPacked) {
        std::uint64_t s;
        std::memcpy(&s, scales_at(mine[i]), 8);
        sum = _mm512_add_epi64(sum, _mm512_set1_epi64(static_cast<long long>(s)));
      }
    }
    keep(sum);
  });
}

void gathers() {
  for (bool huge : {true, false}) {
    Buffer large(settings.large_mib << 20, huge), small(20 << 20, huge);
    for (int ahead : {0, 4, 12}) {
      char name[64];
      auto label = [&](const char* what) {
        std::snprintf(name, sizeof name, "%s, %s, ahead %d", what, huge ? "2M pages" : "4K pages", ahead);
        return name;
      };
      gather<576, true>(label("584 B, large"), large, ahead);
      gather<1024, false>(label("1024 B, large"), large, ahead);
      gather<576, true>(label("584 B, 20 MiB"), small, ahead);
      gather<1024, false>(label("1024 B, 20 MiB"), small, ahead);
    }
  }
}

// ---- e4m3 -> bf16

float decode_e4m3(u8 code) { return pasa::fp8_to_float(pasa::Fp8::kE4m3fn, code); }

// Each method turns 64 codes that share one scale byte (2^(byte-127)) into 64 bf16 in order.
// All codes but NaN, all scale bytes that keep the result normal; a kernel tests for the rest once
// a row.

// 1. Byte tables: bf16 has two bytes, each a function of the 7 magnitude bits: VPERMI2B looks up 64
// of them at once.
struct ByPermute {
  __m512i low[2], high[2];
  ByPermute() {
    alignas(64) u8 lo[128], hi[128];
    for (int c = 0; c < 128; ++c) {
      const u16 b = c == 127 ? 0x7fc0 : pasa::float_to_bf16(decode_e4m3(static_cast<u8>(c)));
      lo[c] = static_cast<u8>(b), hi[c] = static_cast<u8>(b >> 8);
    }
    for (int i = 0; i < 2; ++i) low[i] = _mm512_load_si512(lo + 64 * i), high[i] = _mm512_load_si512(hi + 64 * i);
  }
  void operator()(const u8* codes, u8 scale, u16* out) const {
    // The 64 codes are put into an order in which in-lane interleaving ends up sequential.
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
    const __m512i c = _mm512_permutexvar_epi64(order, _mm512_loadu_si512(codes));
    const __m512i lo = _mm512_permutex2var_epi8(low[0], c, low[1]);
    const __m512i hi = _mm512_permutex2var_epi8(high[0], c, high[1]);
    const __m512i signs = _mm512_and_si512(c, _mm512_set1_epi8(static_cast<char>(0x80)));
    const __m512i hs = _mm512_or_si512(hi, signs);
    const __m512i shift = _mm512_set1_epi16(static_cast<short>((scale - 127) * 128));
    // The exponent moves by an integer add; zero must stay zero, and masks of words follow from the
    // low result.
    const __m512i a = _mm512_unpacklo_epi8(lo, hs), b = _mm512_unpackhi_epi8(lo, hs);
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    _mm512_storeu_si512(out, _mm512_mask_add_epi16(a, _mm512_test_epi16_mask(a, magnitude), a, shift));
    _mm512_storeu_si512(out + 32, _mm512_mask_add_epi16(b, _mm512_test_epi16_mask(b, magnitude), b, shift));
  }
};

// 2. Shift and multiply: the 7 bits moved to bf16's place are the value times 2^-120 (subnormals
// included); fp32 mends it.
//    Correct, and the trick of choice on GPUs; here every subnormal operand costs a microcode
//    assist.
struct ByMultiply {
  void operator()(const u8* codes, u8 scale, u16* out) const {
    const __m512 factor = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_set1_epi32(scale << 23)), _mm512_set1_ps(0x1p120f));
    for (int i = 0; i < 64; i += 32) {
      const __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
      // sign to bit 15, magnitude to bits 4..10
      const __m512i bits = _mm512_or_si512(_mm512_and_si512(_mm512_slli_epi16(x, 8), _mm512_set1_epi16(-32768)),
                                           _mm512_and_si512(_mm512_slli_epi16(x, 4), _mm512_set1_epi16(0x7f0)));
      // even and odd words become floats without a widening shuffle: shift left, or mask
      const __m512 even = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), factor);
      const __m512 odd = _mm512_mul_ps(
          _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(static_cast<int>(0xffff0000)))), factor);
      // results have at most four significant bits, so the upper half of the float is the bf16
      const __m512i packed = _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_srli_epi32(_mm512_castps_si512(even), 16),
                                                     _mm512_castps_si512(odd));
      _mm512_storeu_si512(out + i, packed);
    }
  }
};

// 3. Integers only: rebias normal codes with one add; the eight subnormal magnitudes come from an
// in-register table.
struct ByInteger {
  __m512i small;
  ByInteger() {
    alignas(64) u16 t[32];
    for (int i = 0; i < 32; ++i) t[i] = pasa::float_to_bf16(decode_e4m3(static_cast<u8>(i & 7)));
    small = _mm512_load_si512(t);
  }
  void operator()(const u8* codes, u8 scale, u16* out) const {
    const __m512i shift = _mm512_set1_epi16(static_cast<short>((scale - 127) * 128));
    const __m512i rebias = _mm512_add_epi16(_mm512_set1_epi16(120 * 128), shift);
    for (int i = 0; i < 64; i += 32) {
      const __m512i x = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
      const __m512i magnitude = _mm512_and_si512(_mm512_slli_epi16(x, 4), _mm512_set1_epi16(0x7f0));
      const __mmask32 subnormal = _mm512_testn_epi16_mask(x, _mm512_set1_epi16(0x78));
      const __mmask32 nonzero = _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x7f));
      __m512i v = _mm512_add_epi16(magnitude, rebias);
      v = _mm512_mask_add_epi16(v, subnormal, _mm512_permutexvar_epi16(x, small), shift);
      v = _mm512_maskz_mov_epi16(nonzero, v);
      v = _mm512_ternarylogic_epi32(v, _mm512_slli_epi16(x, 8), _mm512_set1_epi16(-32768), 0xf8 /* v | (x & m) */);
      _mm512_storeu_si512(out + i, v);
    }
  }
};

// 4. No widening at all: even codes (shifted up) and odd codes (as they lie) are words with the
// code in the high byte.
//    Output order is all even dims, then all odd ones; the query is packed in the same order, so
//    nothing is lost.
template <bool kBranch>
struct BySplit {
  static constexpr bool kEvenOdd = true;
  ByInteger exact;
  void operator()(const u8* codes, u8 scale, u16* out) const {
    const __m512i x = _mm512_loadu_si512(codes);
    const __m512i shift = _mm512_set1_epi16(static_cast<short>((scale - 127) * 128));
    const __m512i rebias = _mm512_add_epi16(_mm512_set1_epi16(120 * 128), shift);
    const __m512i keep = _mm512_set1_epi16(static_cast<short>(0x87f0));
    const __m512i even = _mm512_slli_epi16(x, 8);
    __m512i e = _mm512_add_epi16(_mm512_and_si512(_mm512_srai_epi16(even, 4), keep), rebias);
    __m512i o = _mm512_add_epi16(_mm512_and_si512(_mm512_srai_epi16(x, 4), keep), rebias);
    // zero and the seven subnormals: rare in cached keys, whose largest value per 64 sits near 448
    const __mmask64 small = _mm512_testn_epi8_mask(x, _mm512_set1_epi8(0x78));
    if (!kBranch || __builtin_expect(small != 0, 0)) {
      const __m512i sign = _mm512_set1_epi16(-32768);
      auto mend = [&](__m512i v, __m512i word) {
        const __mmask32 sub = _mm512_testn_epi16_mask(word, _mm512_set1_epi16(0x7800));
        const __mmask32 any = _mm512_test_epi16_mask(word, _mm512_set1_epi16(0x0700));
        const __m512i t = _mm512_permutexvar_epi16(_mm512_srli_epi16(word, 8), exact.small);
        const __m512i scaled = _mm512_mask_add_epi16(t, any, t, shift);
        return _mm512_mask_mov_epi16(v, sub, _mm512_ternarylogic_epi32(scaled, word, sign, 0xf8));
      };
      e = mend(e, even);
      o = mend(o, x);
    }
    _mm512_storeu_si512(out, e);
    _mm512_storeu_si512(out + 32, o);
  }
};

template <typename Method>
constexpr bool splits_even_odd = requires {
  Method::kEvenOdd;
};

template <typename Method>
void convert(const char* name, bool typical = false) {
  const Method method;
  for (int scale : {110, 119, 127, 130}) {
    for (int base = 0; base < 256; base += 64) {
      alignas(64) u8 codes[64];
      alignas(64) u16 got[64];
      for (int i = 0; i < 64; ++i) codes[i] = static_cast<u8>(base + i);
      method(codes, static_cast<u8>(scale), got);
      for (int i = 0; i < 64; ++i) {
        if ((codes[i] & 0x7f) == 0x7f) continue;
        const u16 want = pasa::float_to_bf16(std::ldexp(decode_e4m3(codes[i]), scale - 127));
        const int at = splits_even_odd<Method> ? (i % 2) * 32 + i / 2 : i;
        if (got[at] != want) {
          std::printf("%s: code %02x scale %d gives %04x, not %04x\n", name, codes[i], scale, got[at], want);
          std::exit(1);
        }
      }
    }
  }
  constexpr int kRows = 16;  // 16 rows of 448 codes in, 16 rows of 512 bf16 out: both in L1
  Buffer in(kRows * 576 * static_cast<std::size_t>(settings.threads), true),
      out(kRows * 1024 * static_cast<std::size_t>(settings.threads), true);
  if (typical) {  // codes of normal values scaled so that the largest of 64 uses the top binade
    std::mt19937 random(3);
    std::normal_distribution<float> normal(0.0f, 130.0f);
    for (std::size_t i = 0; i < in.bytes_; ++i) {
      const float v = normal(random), a = std::min(448.0f, std::fabs(v));
      int best = 0;
      for (int c = 0; c < 127; ++c)
        if (std::fabs(decode_e4m3(static_cast<u8>(c)) - a) < std::fabs(decode_e4m3(static_cast<u8>(best)) - a))
          best = c;
      in.data_[i] = static_cast<u8>(best | (v < 0 ? 0x80 : 0));
    }
  }
  measure(name, "Gelem/s", kRows * 448.0 * 20, [&](int t) {
    const u8* src = in.data_ + kRows * 576 * static_cast<std::size_t>(t);
    u8* dst = out.data_ + kRows * 1024 * static_cast<std::size_t>(t);
    for (int r = 0; r < 20; ++r) {
      for (int row = 0; row < kRows; ++row) {
        for (int g = 0; g < 7; ++g) {
          method(src + row * 576 + g * 64, static_cast<u8>(112 + (g & 7)),
                 reinterpret_cast<u16*>(dst + row * 1024) + g * 64);
        }
      }
      asm volatile("" ::"r"(dst) : "memory");
    }
  });
}

void conversions() {
  convert<ByPermute>("VPERMI2B byte tables");
  convert<ByMultiply>("shift, mask, fp32 multiply");
  convert<ByInteger>("integer rebias + small table");
  convert<BySplit<false>>("even/odd split, no branch");
  convert<BySplit<true>>("even/odd split, rare branch", true);
}

// ---- layouts

// exp2 of 16 floats <= 0, to about 2^-11 relative: enough for a probability that becomes bf16.
__m512 exp2_small(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.0f));
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 p = _mm512_set1_ps(0.0558263f);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.2401397f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.6931472f));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, whole);
}

void transpose_dwords(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

void layouts() {
  Buffer memory((512 << 10) * static_cast<std::size_t>(settings.threads), true);
  constexpr double kBlocks = 20;
  // rows of two tokens interleaved word by word: [64, 512] -> [32][512][2], the B operand of P V
  measure("V pair interleave, blocks of 64", "Mblk/s", kBlocks, [&](int t) {
    const u8* in = memory.data_ + (512 << 10) * static_cast<std::size_t>(t);
    u8* out = memory.data_ + (512 << 10) * static_cast<std::size_t>(t) + (128 << 10);
    for (int b = 0; b < kBlocks; ++b) {
      for (int row = 0; row < 64; row += 2) {
        for (int c = 0; c < 16; ++c) {
          const __m512i x = _mm512_load_si512(in + row * 1024 + c * 64),
                        y = _mm512_load_si512(in + row * 1024 + 1024 + c * 64);
          _mm512_store_si512(out + row * 1024 + c * 128, _mm512_unpacklo_epi16(x, y));
          _mm512_store_si512(out + row * 1024 + c * 128 + 64, _mm512_unpackhi_epi16(x, y));
        }
      }
      asm volatile("" ::"r"(out) : "memory");
    }
  });
  // [64, 512] -> [256][64][2], the B operand of Q K^T when heads are the rows
  measure("K dword transpose, blocks of 64", "Mblk/s", kBlocks, [&](int t) {
    const u8* in = memory.data_ + (512 << 10) * static_cast<std::size_t>(t);
    u8* out = memory.data_ + (512 << 10) * static_cast<std::size_t>(t) + (128 << 10);
    for (int b = 0; b < kBlocks; ++b) {
      for (int row = 0; row < 64; row += 16) {
        for (int c = 0; c < 16; ++c) {
          __m512i r[16];
#pragma GCC unroll 16
          for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(in + (row + i) * 1024 + c * 64);
          transpose_dwords(r);
#pragma GCC unroll 16
          for (int i = 0; i < 16; ++i) _mm512_store_si512(out + (c * 16 + i) * 256 + row * 4, r[i]);
        }
      }
      asm volatile("" ::"r"(out) : "memory");
    }
  });
  // Real scores first: subnormal garbage would cost an assist per operand and measure that.
  for (int t = 0; t < settings.threads; ++t) {
    float* s = reinterpret_cast<float*>(memory.data_ + (512 << 10) * static_cast<std::size_t>(t));
    for (int i = 0; i < 64 * 16; ++i) s[i] = static_cast<float>((i * 37) % 101) - 50.0f;
  }
  // S^T [64 tokens][16 heads] fp32 -> running max and sum per head (one vector each), P [16
  // heads][64 tokens] bf16
  measure("softmax 64 tokens x 16 heads", "Mblk/s", kBlocks * 16, [&](int t) {
    const u8* base = memory.data_ + (512 << 10) * static_cast<std::size_t>(t);
    const float* s = reinterpret_cast<const float*>(base);
    u8* p = memory.data_ + (512 << 10) * static_cast<std::size_t>(t) + (128 << 10);
    __m512 max = _mm512_set1_ps(-1e30f), sum = _mm512_setzero_ps();
    const __m512 scale = _mm512_set1_ps(0.0637f);
    for (int b = 0; b < kBlocks * 16; ++b) {
      __m512 m[4] = {max, max, max, max};
#pragma GCC unroll 4
      for (int i = 0; i < 64; ++i) m[i & 3] = _mm512_max_ps(m[i & 3], _mm512_load_ps(s + i * 16));
      const __m512 now = _mm512_max_ps(_mm512_max_ps(m[0], m[1]), _mm512_max_ps(m[2], m[3]));
      const __m512 top = _mm512_mul_ps(now, scale);
      sum = _mm512_mul_ps(sum, exp2_small(_mm512_sub_ps(_mm512_mul_ps(max, scale), top)));
      max = now;
      for (int half = 0; half < 2; ++half) {
        __m512i r[16];
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) {
          const __m512 a = exp2_small(_mm512_fmsub_ps(_mm512_load_ps(s + (half * 32 + 2 * i) * 16), scale, top));
          const __m512 c = exp2_small(_mm512_fmsub_ps(_mm512_load_ps(s + (half * 32 + 2 * i + 1) * 16), scale, top));
          sum = _mm512_add_ps(sum, _mm512_add_ps(a, c));
          // bf16 of a in the low half of each dword, of c in the high half: one rounding add, one
          // blend
          const __m512i half_ulp = _mm512_set1_epi32(0x8000);
          const __m512i lo = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(a), half_ulp), 16);
          r[i] = _mm512_mask_blend_epi16(0xaaaaaaaa, lo, _mm512_add_epi32(_mm512_castps_si512(c), half_ulp));
        }
        transpose_dwords(r);
#pragma GCC unroll 16
        for (int i = 0; i < 16; ++i) _mm512_store_si512(p + half * 1024 + i * 64, r[i]);
      }
      asm volatile("" ::"r"(p) : "memory");
    }
    keep(sum);
  });
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    if (key == "--threads") settings.threads = std::atoi(argv[i + 1]);
    if (key == "--runs") settings.runs = std::atoi(argv[i + 1]);
    if (key == "--only") settings.only = argv[i + 1];
    if (key == "--large-mib") settings.large_mib = static_cast<std::size_t>(std::atol(argv[i + 1]));
  }
  request_tiles();
  if (section("clock")) {
    measure("dependent adds", "GHz", 256.0 * 2000, [](int) { core_hz(2000); });
  }
  if (section("vector")) vector_units();
  if (section("tile")) tile_unit();
  if (section("read")) sequential_read();
  if (section("gather")) gathers();
  if (section("convert")) conversions();
  if (section("layout")) layouts();
}
