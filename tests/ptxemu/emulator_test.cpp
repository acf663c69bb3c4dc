// The PTX emulator by itself: instructions against plain formulas on random numbers, what warps, blocks and clusters do
// together, and that each kind of mistake is found. The programs are small PTX texts written here.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "core/number.h"
#include "tools/ptxemu/ptxemu.h"
#include "tools/ptxemu/tensor_map.h"

namespace ptxemu {
namespace {

using u32 = std::uint32_t;
using i32 = std::int32_t;
using u64 = std::uint64_t;
using i64 = std::int64_t;

float as_float(u32 x) { return std::bit_cast<float>(x); }
u32 as_bits(float x) { return x != x ? 0x7fffffffu : std::bit_cast<u32>(x); }

// A kernel k(in, out) around a body: r60 is the thread, d0 and d1 the buffers.
std::string kernel(const std::string& body, const std::string& declarations = "") {
  return R"(.version 8.0
.target sm_90a
.address_size 64
.extern .shared .align 1024 .b8 dynamic[];
.entry k(.param .u64 in, .param .u64 out) {
  .reg .pred p<9>; .reg .b16 h<9>; .reg .b32 r<64>; .reg .b64 d<16>; .reg .f32 f<64>; .reg .f64 e<9>;
)" + declarations +
         R"(
  mov.u32 r60, %tid.x;
  ld.param.u64 d0, [in];
  ld.param.u64 d1, [out];
)" + body +
         "\n  ret;\n}\n";
}

struct Job {
  std::vector<u32> in, out;
  Launch how{.block = {32, 1, 1}};
  Options options{.threads = 1};

  Stats run(const std::string& text) {
    Module module(text);
    const u64 pointers[] = {reinterpret_cast<u64>(in.data()), reinterpret_cast<u64>(out.data())};
    const Range ranges[] = {{pointers[0], pointers[0] + 4 * in.size()}, {pointers[1], pointers[1] + 4 * out.size()}};
    return module.launch("k", std::as_bytes(std::span(pointers)), how, ranges, options);
  }
};

// What the emulator says of the program, which must not pass.
std::string finding(const std::string& text, Job job = {}) {
  if (job.in.empty()) job.in.resize(1024);
  if (job.out.empty()) job.out.resize(1024);
  try {
    job.run(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

// ---- instructions against formulas ------------------------------------------------------------------------------------------

// Random words, small and large, and the patterns where formulas break.
std::vector<u32> words(std::size_t count) {
  constexpr u32 kSpecial[] = {0,          1,          2,          31,         32,         33,
                              0x7fffffff, 0x80000000, 0xffffffff, 0x3f800000, 0xbf800000, 0x7f800000,
                              0xff800000, 0x7fc00000, 0x00000001, 0x807fffff, 0x00ff00ff, 0x12345678,
                              0x477fe000, 0x38800000, 0x43e00000, 0x4b000000, 0xcf000000, 0x3f808000};
  std::mt19937 random(7);
  std::vector<u32> all(count);
  for (u32& word : all) {
    const auto next = [&] { return static_cast<u32>(random()); };
    const u32 kind = next() % 4;
    word = kind == 0 ? kSpecial[next() % std::size(kSpecial)] : kind == 1 ? next() % 64 : next();
    if (kind == 2) word = as_bits(static_cast<float>(static_cast<i32>(next())) * 0x1p-20f);
  }
  return all;
}

// r0 from r1, r2, r3 (f1.. are the same bits), on 4096 triples.
void expect_formula(const std::string& code, u32 (*formula)(u32, u32, u32)) {
  SCOPED_TRACE(code);
  constexpr std::size_t kThreads = 4096;
  Job job{
      .in = words(4 * kThreads), .out = std::vector<u32>(kThreads), .how = {.grid = {16, 1, 1}, .block = {256, 1, 1}}};
  job.run(kernel(R"(
    mov.u32 r61, %ctaid.x;
    mad.lo.s32 r60, r61, 256, r60;
    mul.wide.u32 d2, r60, 16;
    add.s64 d2, d0, d2;
    ld.global.v4.u32 {r1, r2, r3, r4}, [d2];
    mov.b32 f1, r1; mov.b32 f2, r2; mov.b32 f3, r3;
    )" + code + R"(
    mul.wide.u32 d3, r60, 4;
    add.s64 d3, d1, d3;
    st.global.u32 [d3], r0;)"));
  for (std::size_t i = 0; i < kThreads; ++i) {
    const u32 a = job.in[4 * i], b = job.in[4 * i + 1], c = job.in[4 * i + 2], want = formula(a, b, c);
    ASSERT_EQ(job.out[i], want) << std::hex << a << " " << b << " " << c;
  }
}

TEST(Instructions, Integers) {
  expect_formula("add.s32 r0, r1, r2;", [](u32 a, u32 b, u32) { return a + b; });
  expect_formula("sub.s32 r0, r1, r2;", [](u32 a, u32 b, u32) { return a - b; });
  expect_formula("mad.lo.s32 r0, r1, r2, r3;", [](u32 a, u32 b, u32 c) { return a * b + c; });
  expect_formula("mul.hi.u32 r0, r1, r2;", [](u32 a, u32 b, u32) { return static_cast<u32>(u64{a} * b >> 32); });
  expect_formula("mul.wide.s32 d4, r1, r2; shr.s64 d4, d4, 7; cvt.u32.u64 r0, d4;", [](u32 a, u32 b, u32) {
    return static_cast<u32>(i64{static_cast<i32>(a)} * static_cast<i32>(b) >> 7);
  });
  expect_formula("div.u32 r0, r1, r2; rem.u32 r5, r1, r2; mad.lo.u32 r0, r0, r2, r5;",
                 [](u32 a, u32 b, u32) { return b ? a : 0xffffffffu * b + a; });
  expect_formula("or.b32 r2, r2, 1; rem.s32 r0, r1, r2;", [](u32 a, u32 b, u32) {
    return static_cast<u32>(i64{static_cast<i32>(a)} % i64{static_cast<i32>(b | 1)});
  });
  expect_formula("min.s32 r0, r1, r2; max.u32 r0, r0, r3;", [](u32 a, u32 b, u32 c) {
    return std::max(static_cast<u32>(std::min(static_cast<i32>(a), static_cast<i32>(b))), c);
  });
  expect_formula("shl.b32 r0, r1, r2; shr.s32 r5, r1, r3; xor.b32 r0, r0, r5;", [](u32 a, u32 b, u32 c) {
    return (b > 31 ? 0 : a << b) ^ static_cast<u32>(static_cast<i32>(a) >> std::min(c, 31u));
  });
  expect_formula("bfi.b32 r0, r1, r2, 5, 9;", [](u32 a, u32 b, u32) { return (b & ~(511u << 5)) | (a & 511) << 5; });
  expect_formula("bfe.s32 r0, r1, 3, 7;",
                 [](u32 a, u32, u32) { return static_cast<u32>(static_cast<i32>(a << 22) >> 25); });
  expect_formula("prmt.b32 r0, r1, r2, 0x91f4;", [](u32 a, u32 b, u32) {
    const u32 sign = b & 0x80000000 ? 255 : 0, sign1 = a & 0x8000 ? 255 : 0;
    return (b & 255) | sign << 8 | (a & 0xff00) << 8 | sign1 << 24;
  });
  expect_formula("shf.r.wrap.b32 r0, r1, r2, r3;",
                 [](u32 a, u32 b, u32 c) { return static_cast<u32>((u64{b} << 32 | a) >> (c & 31)); });
  expect_formula("lop3.b32 r0, r1, r2, r3, 0xca;", [](u32 a, u32 b, u32 c) { return (a & b) | (~a & c); });
  expect_formula("popc.b32 r0, r1; clz.b32 r5, r2; add.s32 r0, r0, r5;",
                 [](u32 a, u32 b, u32) { return static_cast<u32>(std::popcount(a) + std::countl_zero(b)); });
  expect_formula("setp.gt.s32 p1, r1, r2; setp.ne.and.u32 p2, r3, 0, p1; selp.b32 r0, r1, r2, p2;",
                 [](u32 a, u32 b, u32 c) { return static_cast<i32>(a) > static_cast<i32>(b) && c ? a : b; });
  expect_formula("cvt.u16.u32 h1, r1; cvt.s32.s16 r0, h1; not.b32 r0, r0;",
                 [](u32 a, u32, u32) { return ~static_cast<u32>(static_cast<std::int16_t>(a)); });
  expect_formula("mov.b64 d4, {r1, r2}; shl.b64 d4, d4, 12; mov.b64 {r5, r0}, d4;",
                 [](u32 a, u32 b, u32) { return b << 12 | a >> 20; });
  expect_formula("mov.b32 {h1, h2}, r1; mov.b32 r0, {h2, h1};", [](u32 a, u32, u32) { return a << 16 | a >> 16; });
}

TEST(Instructions, Floats) {
  expect_formula("fma.rn.f32 f4, f1, f2, f3; mov.b32 r0, f4;",
                 [](u32 a, u32 b, u32 c) { return as_bits(std::fma(as_float(a), as_float(b), as_float(c))); });
  expect_formula("mul.f32 f4, f1, f2; add.f32 f4, f4, f3; mov.b32 r0, f4;", [](u32 a, u32 b, u32 c) {
    volatile float product = as_float(a) * as_float(b);
    return as_bits(product + as_float(c));
  });
  expect_formula("div.rn.f32 f4, f1, f2; mov.b32 r0, f4;",
                 [](u32 a, u32 b, u32) { return as_bits(as_float(a) / as_float(b)); });
  expect_formula("max.f32 f4, f1, f2; mov.b32 r0, f4;", [](u32 a, u32 b, u32) {
    const float x = as_float(a), y = as_float(b);
    if (x != x || y != y) return as_bits(x != x ? y : x);
    return x == y ? a & b : as_bits(std::max(x, y));  // of +0 and -0: +0
  });
  expect_formula("setp.ltu.f32 p1, f1, f2; setp.eq.f32 p2, f1, f3; selp.b32 r0, 1, 0, p1; @p2 add.s32 r0, r0, 2;",
                 [](u32 a, u32 b, u32 c) {
                   return static_cast<u32>(!(as_float(a) >= as_float(b))) +
                          2 * static_cast<u32>(as_float(a) == as_float(c));
                 });
  expect_formula("cvt.rn.f32.s32 f4, r1; mov.b32 r0, f4;",
                 [](u32 a, u32, u32) { return as_bits(static_cast<float>(static_cast<i32>(a))); });
  expect_formula("cvt.rzi.s32.f32 r0, f1;", [](u32 a, u32, u32) {
    const float x = as_float(a);
    if (x != x) return 0u;
    return static_cast<u32>(static_cast<i32>(std::clamp<double>(x, -0x1p31, 0x1p31 - 1)));
  });
  expect_formula("neg.f32 f4, f1; abs.f32 f5, f2; mov.b32 r0, f4; mov.b32 r5, f5; xor.b32 r0, r0, r5;",
                 [](u32 a, u32 b, u32) { return (a ^ 0x80000000u) ^ (b & 0x7fffffffu); });
  expect_formula(
      "cvt.f64.f32 e1, f1; cvt.f64.f32 e2, f2; mul.f64 e1, e1, e2; cvt.rn.f32.f64 f4, e1; mov.b32 r0, f4;",
      [](u32 a, u32 b, u32) { return as_bits(static_cast<float>(static_cast<double>(as_float(a)) * as_float(b))); });
}

u32 bf16_bits(float x) { return x != x ? 0x7fff : pasa::float_to_bf16(x); }
u32 f16_bits(float x) { return x != x ? 0x7fff : pasa::float_to_f16(x); }

TEST(Instructions, SmallFloats) {
  expect_formula("cvt.rn.bf16x2.f32 r0, f1, f2;",
                 [](u32 a, u32 b, u32) { return bf16_bits(as_float(a)) << 16 | bf16_bits(as_float(b)); });
  expect_formula("cvt.rn.f16x2.f32 r0, f1, f2;",
                 [](u32 a, u32 b, u32) { return f16_bits(as_float(a)) << 16 | f16_bits(as_float(b)); });
  expect_formula("mul.rn.bf16x2 r0, r1, r2;", [](u32 a, u32 b, u32) {
    return bf16_bits(as_float(a & 0xffff0000u) * as_float(b & 0xffff0000u)) << 16 |
           bf16_bits(as_float(a << 16) * as_float(b << 16));
  });
  // All codes, twice.
  expect_formula("cvt.u16.u32 h1, r1; cvt.rn.f16x2.e4m3x2 r0, h1;", [](u32 a, u32, u32) {
    const auto value = [](u32 code) {
      return f16_bits(pasa::fp8_to_float(pasa::Fp8::kE4m3fn, static_cast<std::uint8_t>(code)));
    };
    return value(a >> 8) << 16 | value(a);
  });
  // The sum rounds once: 1 + 2^-9 is a tie of bf16, what comes below it decides.
  Job job{.in = std::vector<u32>(32), .out = std::vector<u32>(32)};
  job.run(kernel(
      "mov.u32 r1, 0x3f803f80; mov.u32 r2, 0x3b003b00; mov.u32 r3, 0x00013f80; fma.rn.bf16x2 r0, r2, r1, r3; st.global.u32 [d1], r0;"));
  EXPECT_EQ(job.out[0], 0x3b003f80u);
}

// ---- lanes, warps, blocks, clusters ---------------------------------------------------------------------------------------------

const std::string kStoreR0 = "mul.wide.u32 d9, r60, 4; add.s64 d9, d1, d9; st.global.u32 [d9], r0;";

std::vector<u32> result(const std::string& body, Launch how = {.block = {32, 1, 1}}, std::vector<u32> in = {},
                        std::size_t size = 0) {
  Job job{.in = std::move(in), .out = std::vector<u32>(size ? size : how.block.count() * how.grid.count()), .how = how};
  job.in.resize(std::max<std::size_t>(job.in.size(), 4));
  job.run(kernel(body));
  return job.out;
}

TEST(Warp, PathsMeetAgain) {
  // Lane l adds up 0..l in a loop of its own length; then all exchange.
  const std::vector<u32> out = result(R"(
    mov.u32 r0, 0; mov.u32 r1, 0;
  loop:
    add.s32 r0, r0, r1;
    add.s32 r1, r1, 1;
    setp.le.u32 p1, r1, r60;
    @p1 bra loop;
    and.b32 r2, r60, 1;
    setp.eq.u32 p2, r2, 0;
    @p2 bra even;
    add.s32 r0, r0, 1000;
    bra.uni join;
  even:
    add.s32 r0, r0, 2000;
  join:
    shfl.sync.bfly.b32 r0, r0, 1, 31, -1;)" +
                                      kStoreR0);
  for (u32 lane = 0; lane < 32; ++lane) {
    const u32 from = lane ^ 1;
    EXPECT_EQ(out[lane], from * (from + 1) / 2 + (from % 2 ? 1000 : 2000)) << lane;
  }
}

TEST(Warp, Exchange) {
  for (u32 lane = 0; const u32 x : result("shfl.sync.up.b32 r0|p1, r60, 3, 0, -1; @!p1 mov.u32 r0, 77;" + kStoreR0)) {
    EXPECT_EQ(x, lane < 3 ? 77 : lane - 3);
    ++lane;
  }
  for (u32 lane = 0; const u32 x : result("shfl.sync.idx.b32 r0, r60, 5, 0x181f, -1;" + kStoreR0))
    EXPECT_EQ(x, lane++ / 8 * 8 + 5);
  for (const u32 x : result("setp.gt.u32 p1, r60, 20; vote.sync.ballot.b32 r0, p1, -1;" + kStoreR0))
    EXPECT_EQ(x, ~u32{0} << 21);
  for (const u32 x : result("redux.sync.add.u32 r0, r60, -1;" + kStoreR0)) EXPECT_EQ(x, 496u);
  for (u32 lane = 0; const u32 x : result("shr.u32 r1, r60, 3; match.any.sync.b32 r0, r1, -1;" + kStoreR0))
    EXPECT_EQ(x, 255u << lane++ / 8 * 8);
  for (u32 lane = 0; const u32 x : result("mov.u32 r0, 0; elect.sync _|p1, -1; @p1 mov.u32 r0, 1;" + kStoreR0))
    EXPECT_EQ(x, lane++ == 0);
}

TEST(Block, BarriersOrderSharedMemory) {
  const std::vector<u32> out = result(R"(
    shl.b32 r1, r60, 2;
    mov.u32 r2, dynamic;
    add.s32 r3, r2, r1;
    st.shared.u32 [r3], r60;
    bar.sync 1, 128;
    xor.b32 r4, r1, 508;
    add.s32 r4, r4, r2;
    ld.shared.u32 r0, [r4];
    setp.eq.u32 p1, r60, 100;
    bar.red.or.pred p2, 0, p1;
    @p2 add.s32 r0, r0, 1000;)" + kStoreR0,
                                      {.block = {128, 1, 1}, .dynamic_shared_bytes = 512});
  for (u32 t = 0; t < 128; ++t) EXPECT_EQ(out[t], 1000 + (t ^ 127));
}

TEST(Block, Atomics) {
  EXPECT_EQ(result("atom.global.add.u32 r0, [d1], r60; red.global.max.u32 [d1+4], r60;",
                   {.grid = {4, 1, 1}, .block = {64, 1, 1}}, {}, 2),
            (std::vector<u32>{4 * 2016, 63}));
}

// Every block writes its rank into its right neighbour.
TEST(Cluster, NeighboursShareMemory) {
  const std::vector<u32> out =
      result(R"(
    mov.u32 r1, %cluster_ctarank;
    add.s32 r2, r1, 1; and.b32 r2, r2, 3;
    mov.u32 r3, dynamic;
    mapa.shared::cluster.u32 r4, r3, r2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    setp.eq.u32 p1, r60, 0;
    @p1 st.shared::cluster.u32 [r4], r1;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    ld.shared.u32 r0, [dynamic];
    mov.u32 r5, %ctaid.x; mad.lo.s32 r60, r5, 32, r60;)" +
                 kStoreR0,
             {.grid = {8, 1, 1}, .block = {32, 1, 1}, .cluster = {4, 1, 1}, .dynamic_shared_bytes = 16});
  for (u32 i = 0; i < 256; ++i) EXPECT_EQ(out[i], (i / 32 + 3) % 4);
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------------------

std::vector<u32> counting(std::size_t count) {
  std::vector<u32> all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<u32>(i);
  return all;
}

std::string copy_and_read(const std::string& wait) {
  return R"(
    shl.b32 r1, r60, 4; mov.u32 r2, dynamic; add.s32 r2, r2, r1;
    mul.wide.u32 d2, r60, 16; add.s64 d2, d0, d2;
    cp.async.cg.shared.global [r2], [d2], 16;
    cp.async.commit_group;)" +
         wait + "ld.shared.u32 r0, [r2+4];" + kStoreR0;
}
TEST(Copies, LandAtTheirWait) {
  const Launch how{.block = {32, 1, 1}, .dynamic_shared_bytes = 512};
  const std::vector<u32> waited = result(copy_and_read("cp.async.wait_group 0;"), how, counting(128));
  const std::vector<u32> early = result(copy_and_read("cp.async.wait_group 1;"), how, counting(128));
  for (u32 t = 0; t < 32; ++t) {
    EXPECT_EQ(waited[t], 4 * t + 1);
    EXPECT_EQ(early[t], 0xffffffffu) << "what is on its way must not be seen";
  }
}

// Thread 0 asks for a bulk copy, all wait for its bytes.
std::string bulk(const std::string& wait, const std::string& count = "1", const std::string& bytes = "128") {
  return R"(
    mov.u32 r2, dynamic; add.s32 r3, r2, 1024;
    setp.eq.u32 p1, r60, 0;
    @!p1 bra ready;
    mbarrier.init.shared::cta.b64 [r3], )" +
         count + R"(;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], )" +
         bytes + R"(;
    mov.u32 r4, 128;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [r2], [d0], r4, [r3];
  ready:
    bar.sync 0;)" +
         wait + R"(
    and.b32 r5, r60, 31; shl.b32 r5, r5, 2; add.s32 r5, r5, r2;
    ld.shared.u32 r0, [r5];)" +
         kStoreR0;
}
const std::string kWaitPhase0 = "wait: mbarrier.try_wait.parity.shared::cta.b64 p2, [r3], 0; @!p2 bra wait;";
constexpr Launch kTwoWarps{.block = {64, 1, 1}, .dynamic_shared_bytes = 2048};

TEST(Copies, BulkCopiesCompleteTheirBarrier) {
  const std::vector<u32> out = result(bulk(kWaitPhase0), kTwoWarps, counting(64));
  for (u32 t = 0; t < 64; ++t) EXPECT_EQ(out[t], t % 32);
}

// A cluster of two: block 0's first warp writes 32 words and hands them to its neighbour, which reads them and says so; then block
// 0's other warp, behind `wait`, writes over them.
std::string hand_over(const std::string& wait) {
  return R"(
    mov.u32 r1, %cluster_ctarank; mov.u32 r2, dynamic; add.s32 r3, r2, 1024; add.s32 r6, r2, 1032;
    and.b32 r5, r60, 31; shl.b32 r5, r5, 2; add.s32 r5, r5, r2;
    setp.eq.u32 p1, r60, 0; setp.lt.u32 p2, r60, 32; setp.eq.u32 p3, r1, 0;
    @!p1 bra set;
    mbarrier.init.shared::cta.b64 [r3], 1; mbarrier.init.shared::cta.b64 [r6], 1;
    fence.mbarrier_init.release.cluster;
    @!p3 mbarrier.arrive.expect_tx.shared::cta.b64 _, [r3], 128;
  set:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mov.u32 r0, 0;
    @!p3 bra second;
    @!p2 bra copied;
    st.shared.u32 [r5], r60;
    bar.warp.sync -1;
    @!p1 bra copied;
    fence.proxy.async.shared::cta;
    mapa.shared::cluster.u32 r7, r2, 1; mapa.shared::cluster.u32 r8, r3, 1; mov.u32 r9, 128;
    cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [r7], [r2], r9, [r8];
  copied:
    bar.sync 0;)" +
         wait + R"(
    @!p2 st.shared.u32 [r5], 77;
    bra end;
  second:
    wait: mbarrier.try_wait.parity.shared::cta.b64 p4, [r3], 0; @!p4 bra wait;
    ld.shared.u32 r0, [r5];
    mapa.shared::cluster.u32 r7, r6, 0;
    @p1 mbarrier.arrive.shared::cluster.b64 _, [r7];
  end:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    mad.lo.s32 r60, r1, 64, r60;)" +
         kStoreR0;
}
const std::string kUntilTaken = "taken: mbarrier.try_wait.parity.shared::cta.b64 p4, [r6], 0; @!p4 bra taken;";
constexpr Launch kTwoBlocks{.grid = {2, 1, 1}, .block = {64, 1, 1}, .cluster = {2, 1, 1}, .dynamic_shared_bytes = 2048};

TEST(Copies, BulkCopiesReachTheNeighbour) {
  const std::vector<u32> out = result(hand_over(kUntilTaken), kTwoBlocks, counting(128));
  for (u32 t = 0; t < 64; ++t) EXPECT_EQ(out[64 + t], t % 32);
}

// ---- products --------------------------------------------------------------------------------------------------------------------

// Matrices through ldmatrix and mma.sync: identity layouts in, a product out.
TEST(Products, LdmatrixAndMma) {
  // A [16, 16] row-major and B^T [8, 16] row-major as bf16 in shared memory, rows of 32 bytes.
  std::mt19937 random(3);
  std::vector<float> a(256), b(128);
  for (float& x : a) x = static_cast<float>(random() % 17) - 8;
  for (float& x : b) x = static_cast<float>(random() % 17) - 8;
  std::vector<u32> in(192);
  auto* words16 = reinterpret_cast<std::uint16_t*>(in.data());
  for (std::size_t i = 0; i < 256; ++i) words16[i] = pasa::float_to_bf16(a[i]);
  for (std::size_t i = 0; i < 128; ++i) words16[256 + i] = pasa::float_to_bf16(b[i]);
  const std::vector<u32> out = result(R"(
    mov.u32 r2, dynamic; mov.u32 r1, 0;
  copy:
    mad.lo.s32 r3, r1, 32, r60; mul.wide.u32 d2, r3, 4; add.s64 d2, d0, d2; ld.global.u32 r4, [d2];
    shl.b32 r3, r3, 2; add.s32 r3, r3, r2; st.shared.u32 [r3], r4;
    add.s32 r1, r1, 1; setp.lt.u32 p1, r1, 6; @p1 bra copy;
    bar.warp.sync -1;
    and.b32 r5, r60, 15; shr.u32 r6, r60, 4; mad.lo.s32 r7, r5, 32, r2; mad.lo.s32 r7, r6, 16, r7;
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {r10, r11, r12, r13}, [r7];
    and.b32 r5, r60, 7; shr.u32 r6, r60, 3; and.b32 r6, r6, 1; mad.lo.s32 r8, r5, 32, r2; mad.lo.s32 r8, r6, 16, r8;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {r14, r15}, [r8+512];
    mov.f32 f1, 0f00000000;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {f4, f5, f6, f7}, {r10, r11, r12, r13}, {r14, r15}, {f1, f1, f1, f1};
    mul.wide.u32 d3, r60, 16; add.s64 d3, d1, d3; st.global.v4.f32 [d3], {f4, f5, f6, f7};)",
                                      {.block = {32, 1, 1}, .dynamic_shared_bytes = 768}, in, 128);
  for (u32 lane = 0; lane < 32; ++lane) {
    for (u32 r = 0; r < 4; ++r) {
      const u32 m = lane / 4 + r / 2 * 8, n = lane % 4 * 2 + r % 2;
      float want = 0;
      for (u32 k = 0; k < 16; ++k) want += a[m * 16 + k] * b[n * 16 + k];
      EXPECT_EQ(as_float(out[4 * lane + r]), want) << m << ", " << n;
    }
  }
}

// wgmma: A [64, 64] and B [64, 64] of bf16 under the 128-byte swizzle, d = A B or A B^T. `before`, `after`: what stands
// between the stores and the product, and between the product and the use of its result.
struct Wgmma {
  bool transpose = false, a_in_registers = false;
  std::string before = "fence.proxy.async.shared::cta; bar.sync 0;", fence = "wgmma.fence.sync.aligned;",
              after = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;";

  std::string text() const {
    std::string list = "{f16";
    for (int i = 17; i < 48; ++i) list += ", f" + std::to_string(i);
    list += "}";
    std::string body = R"(
    mov.u32 r2, dynamic; mov.u32 r1, 0;
  copy:
    mad.lo.s32 r3, r1, 128, r60; mul.wide.u32 d2, r3, 4; add.s64 d2, d0, d2; ld.global.u32 r4, [d2];
    shl.b32 r3, r3, 2; add.s32 r3, r3, r2; st.shared.u32 [r3], r4;
    add.s32 r1, r1, 1; setp.lt.u32 p1, r1, 32; @p1 bra copy;
    )" + before;
    if (a_in_registers) {  // the fragment, from where the swizzle put it: row 16 w + l / 4 (+ 8), columns 2 (l % 4) (+ 8)
      body +=
          "shr.u32 r5, r60, 5; shl.b32 r5, r5, 4; and.b32 r6, r60, 31; shr.u32 r7, r6, 2; add.s32 r5, r5, r7; and.b32 r8, r5, 7;"
          "mad.lo.s32 r9, r5, 128, r2; and.b32 r6, r60, 3; shl.b32 r6, r6, 2; add.s32 r9, r9, r6;";
      for (int step = 0; step < 4; ++step) {
        for (int half = 0; half < 2; ++half) {
          const std::string low = std::to_string(20 + 4 * step + 2 * half),
                            high = std::to_string(21 + 4 * step + 2 * half);
          body += "xor.b32 r10, r8, " + std::to_string(2 * step + half) +
                  "; shl.b32 r10, r10, 4; add.s32 r10, r10, r9;" + "ld.shared.u32 r" + low +
                  ", [r10]; ld.shared.u32 r" + high + ", [r10+1024];";
        }
      }
    }
    body += fence;
    for (int step = 0; step < 4; ++step) {
      const std::string a_step = std::to_string(2 * step), b_step = std::to_string(transpose ? 128 * step : 2 * step);
      body += "shr.u32 r11, r2, 4; add.s32 r12, r11, 512; add.s32 r11, r11, " + a_step + "; add.s32 r12, r12, " +
              b_step + ";" +
              "mov.u32 r13, 1073741888; mov.b64 d4, {r11, r13}; mov.b64 d5, {r12, r13}; setp.ne.b32 p3, " +
              std::to_string(step) + ", 0;";
      const std::string r = std::to_string(20 + 4 * step), r1 = std::to_string(21 + 4 * step),
                        r2 = std::to_string(22 + 4 * step), r3 = std::to_string(23 + 4 * step);
      const std::string a = a_in_registers ? "{r" + r + ", r" + r1 + ", r" + r2 + ", r" + r3 + "}" : "d4";
      body += "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " + list + ", " + a + ", d5, p3, 1, 1, " +
              (a_in_registers ? "" : "0, ") + (transpose ? "1;" : "0;");
    }
    body += after + "mul.wide.u32 d6, r60, 128; add.s64 d6, d1, d6;";
    for (int i = 0; i < 32; ++i)
      body += "st.global.f32 [d6+" + std::to_string(4 * i) + "], f" + std::to_string(16 + i) + ";";
    return kernel(body);
  }
  static Job job() {
    return {.in = std::vector<u32>(4096),
            .out = std::vector<u32>(4096),
            .how = {.block = {128, 1, 1}, .dynamic_shared_bytes = 16384}};
  }
};

TEST(Products, Wgmma) {
  for (const bool transpose : {false, true}) {
    for (const bool registers : {false, true}) {
      SCOPED_TRACE(testing::Message() << transpose << registers);
      std::mt19937 random(5);
      std::vector<float> matrix[2];
      Job job = Wgmma::job();
      for (int which = 0; which < 2; ++which) {
        for (u32 row = 0; row < 64; ++row) {
          for (u32 column = 0; column < 64; ++column) {
            matrix[which].push_back(static_cast<float>(random() % 9) - 4);
            const u32 at = row * 64 + ((column / 8) ^ (row % 8)) * 8 + column % 8;
            reinterpret_cast<std::uint16_t*>(job.in.data())[static_cast<u32>(which) * 4096 + at] =
                pasa::float_to_bf16(matrix[which].back());
          }
        }
      }
      job.run(Wgmma{.transpose = transpose, .a_in_registers = registers}.text());
      for (u32 thread = 0; thread < 128; ++thread) {
        for (u32 i = 0; i < 32; ++i) {
          const u32 m = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + thread % 4 * 2 + i % 2;
          float want = 0;
          for (u32 k = 0; k < 64; ++k)
            want += matrix[0][m * 64 + k] * (transpose ? matrix[1][k * 64 + n] : matrix[1][n * 64 + k]);
          ASSERT_EQ(as_float(job.out[thread * 32 + i]), want) << m << ", " << n;
        }
      }
    }
  }
}

// ---- mistakes ----------------------------------------------------------------------------------------------------------------------

#define EXPECT_FINDING(text, what) EXPECT_NE((text).find(what), std::string::npos) << (text)

Job job_of(Launch how) { return {.in = {}, .out = {}, .how = how}; }

TEST(Mistakes, UnknownInstructionsAreNamed) {
  EXPECT_FINDING(finding(kernel("add.rz.f32 f1, f2, f3; frobnicate.b32 r0, r1;")), "add.rz.f32 frobnicate.b32");
}

TEST(Mistakes, Accesses) {
  EXPECT_FINDING(finding(kernel("ld.global.u32 r0, [d0+4096];")), "outside every allocation");
  EXPECT_FINDING(finding(kernel("ld.global.u32 r0, [d0+-4];")), "outside every allocation");
  EXPECT_FINDING(finding(kernel("ld.global.v4.u32 {r0, r1, r2, r3}, [d0+8];")), "misaligned");
  const Job shared = job_of({.block = {32, 1, 1}, .dynamic_shared_bytes = 64});
  EXPECT_FINDING(finding(kernel("ld.shared.u32 r0, [dynamic+64];"), shared), "shared access at byte 64 of 64");
  EXPECT_FINDING(finding(kernel("mov.u32 r1, 0; ld.shared.u32 r0, [r1];"), shared), "shared access");
  EXPECT_FINDING(finding(kernel("ld.shared.u32 r0, [dynamic+2];"), shared), "misaligned");
}

TEST(Mistakes, BeforeTheLaunchBeforeHasEnded) {
  EXPECT_NE(finding(kernel("ld.global.u32 r0, [d0]; griddepcontrol.wait;")).find("before griddepcontrol.wait"),
            std::string::npos);
  EXPECT_NE(finding(kernel("st.global.u32 [d1], r60; griddepcontrol.wait;")).find("before griddepcontrol.wait"),
            std::string::npos);
  EXPECT_EQ(finding(kernel("prefetch.global.L2 [d0]; griddepcontrol.wait; ld.global.u32 r0, [d0];")), "nothing");
  // A relaxed load may, but what it returns is not to be relied on.
  Job job{.in = std::vector<u32>(1, 1000),
          .out = std::vector<u32>(64 * 32),
          .how = {.grid = {64, 1, 1}, .block = {32, 1, 1}}};
  job.run(kernel(R"(
    mov.u32 r1, %ctaid.x;
    mad.lo.u32 r1, r1, 32, r60;
    mad.wide.u32 d2, r1, 4, d1;
    ld.relaxed.gpu.global.u32 r2, [d0];
    griddepcontrol.wait;
    ld.relaxed.gpu.global.u32 r3, [d0];
    sub.u32 r2, r2, 1000;
    setp.eq.u32 p1, r3, 1000;
    selp.u32 r2, r2, 7, p1;
    st.global.u32 [d2], r2;)"));
  const auto right = std::count(job.out.begin(), job.out.end(), 0u);
  EXPECT_GT(right, 1024);
  EXPECT_LT(right, 2048);
}

TEST(Mistakes, SharedMemoryStartsAsNan) {
  for (const u32 x :
       result("ld.shared.u32 r0, [dynamic+4];" + kStoreR0, {.block = {32, 1, 1}, .dynamic_shared_bytes = 64})) {
    EXPECT_EQ(x, 0xffffffffu);
  }
}

// Warp 0 writes, warp 1 reads (or the other way round), with or without a barrier.
std::string meet(const std::string& first, const std::string& between, const std::string& second) {
  return kernel("setp.lt.u32 p1, r60, 32; @p1 " + first + between + "@!p1 " + second);
}
TEST(Mistakes, Races) {
  Job job = job_of(kTwoWarps);
  const std::string store = "st.shared.u32 [dynamic], r60;", load = "ld.shared.u32 r0, [dynamic];";
  const std::string byte = "st.shared.u8 [dynamic + 2], r60;";
  for (job.options.seed = 0; job.options.seed < 8; ++job.options.seed) {
    EXPECT_FINDING(finding(meet(store, "", load), job), "race");
    EXPECT_FINDING(finding(meet(load, "", store), job), "race");
    EXPECT_FINDING(finding(meet(store, "", store), job), "race");
    EXPECT_FINDING(finding(meet(byte, "", byte), job), "race");
    EXPECT_FINDING(finding(meet(byte, "", load), job), "race");
    EXPECT_EQ(finding(meet(byte, "", "st.shared.u8 [dynamic + 1], r60;"), job), "nothing");
    EXPECT_EQ(finding(meet(store, "bar.sync 0;", load), job), "nothing");
    EXPECT_EQ(finding(meet(load, "bar.sync 0;", store), job), "nothing");
    EXPECT_EQ(finding(meet(load, "", load), job), "nothing");
  }
}

TEST(Mistakes, Barriers) {
  const Job job = job_of(kTwoWarps);
  EXPECT_FINDING(finding(kernel("setp.lt.u32 p1, r60, 32; @p1 bar.sync 1, 64;"), job), "deadlock");
  EXPECT_FINDING(finding(kernel("setp.lt.u32 p1, r60, 16; @p1 bar.sync 0;"), job), "by a part of the warp");
  EXPECT_FINDING(finding(kernel("bar.sync 1, 32;  bar.sync 1, 33;"), job), "no multiple of 32");
  EXPECT_FINDING(finding(kernel("setp.lt.u32 p1, r60, 32; @p1 bar.sync 1, 64; @!p1 bar.sync 1, 96;"), job),
                 "different numbers of threads");
  const auto apart = [](const std::string& sync) {
    return kernel("setp.lt.u32 p1, r60, 32; @p1 " + sync + " 1, 64; @!p1 " + sync + " 1, 64;");
  };
  EXPECT_FINDING(finding(apart("bar.sync"), job), "at another instruction");
  EXPECT_FINDING(finding(apart("barrier.sync.aligned"), job), "at another instruction");
  EXPECT_EQ(finding(apart("barrier.sync"), job), "nothing");
}

TEST(Mistakes, Mbarriers) {
  const Job job = job_of(kTwoWarps);
  EXPECT_EQ(finding(kernel(bulk(kWaitPhase0)), job), "nothing");
  EXPECT_FINDING(finding(kernel(bulk(kWaitPhase0, "2")), job), "deadlock");
  EXPECT_FINDING(finding(kernel(bulk(kWaitPhase0, "1", "256")), job), "deadlock");
  EXPECT_FINDING(finding(kernel(bulk("mbarrier.arrive.shared::cta.b64 _, [r3];" + kWaitPhase0, "2")), job),
                 "more arrivals");
  EXPECT_FINDING(finding(kernel("mov.u32 r3, dynamic;" + kWaitPhase0), job), "no mbarrier was initialised");
  EXPECT_FINDING(
      finding(kernel("mov.u32 r3, dynamic; setp.eq.u32 p1, r60, 0; @p1 mbarrier.init.shared::cta.b64 [r3], 64;"
                     "setp.gt.u32 p1, r60, 31; @p1 nanosleep.u32 100; @p1 mbarrier.arrive.shared::cta.b64 _, [r3];"),
              job),
      "mbarrier");
}

// What a copy to the neighbour reads may be written when the neighbour has it, not when the warp that asked for the copy says so.
TEST(Mistakes, ACopysSourceIsWrittenOver) {
  const Job job = job_of(kTwoBlocks);
  EXPECT_EQ(finding(kernel(hand_over(kUntilTaken)), job), "nothing");
  EXPECT_FINDING(finding(kernel(hand_over("")), job), "was read by the copy engine of rank 0");
}

// A warp writes 32 words, which leave by a tensor map; then the other one, behind `wait` of the thread that sent them, writes over them.
std::string sent_by_map(const std::string& wait, std::vector<u32>& out) {
  Job job{.in = std::vector<u32>(64),
          .out = std::vector<u32>(32),
          .how = {.block = {64, 1, 1}, .dynamic_shared_bytes = 1024}};
  TensorMap map{};
  map.magic = TensorMap::kMagic;
  map.base = reinterpret_cast<u64>(job.out.data());
  map.rank = 2, map.element_bytes = 4;
  map.size[0] = map.box[0] = 32, map.size[1] = map.box[1] = 1, map.stride[1] = 128;
  const std::size_t at = -reinterpret_cast<u64>(job.in.data()) % 64;  // maps are aligned
  std::memcpy(reinterpret_cast<char*>(job.in.data()) + at, &map, sizeof map);
  const std::string program = kernel("add.s64 d0, d0, " + std::to_string(at) + R"(;
    mov.u32 r2, dynamic; and.b32 r5, r60, 31; shl.b32 r5, r5, 2; add.s32 r5, r5, r2; mov.u32 r6, 0;
    setp.lt.u32 p2, r60, 32; setp.ne.u32 p1, r60, 0;
    @!p2 bra sent;
    st.shared.u32 [r5], r60;
    bar.warp.sync -1;
    @p1 bra sent;
    fence.proxy.async.shared::cta;
    cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [d0, {r6, r6}], [r2];
    cp.async.bulk.commit_group;)" + wait +
                                     R"(
  sent:
    bar.sync 0;
    @!p2 st.shared.u32 [r5], 77;
    bar.sync 0;
    @!p1 cp.async.bulk.wait_group 0;)");
  try {
    job.run(program);
  } catch (const Error& error) {
    return error.what();
  }
  out = job.out;
  return "nothing";
}

TEST(Mistakes, AStoresSourceIsWrittenOver) {
  std::vector<u32> out;
  EXPECT_EQ(sent_by_map("cp.async.bulk.wait_group.read 0;", out), "nothing");
  EXPECT_EQ(out, counting(32));
  EXPECT_FINDING(sent_by_map("", out), "was read by the copy engine and nothing orders");
}

// Nobody waits for the copy: its target still holds NaN.
TEST(Mistakes, AReadBeforeTheWaitSeesNan) {
  Job job{.in = counting(64), .out = std::vector<u32>(64), .how = kTwoWarps, .options = {.seed = 0, .threads = 1}};
  job.run(kernel(bulk("") + kWaitPhase0));
  EXPECT_EQ(job.out, std::vector<u32>(64, 0xffffffffu));
}

TEST(Mistakes, Lanes) {
  EXPECT_FINDING(finding(kernel("setp.lt.u32 p1, r60, 16; @p1 shfl.sync.bfly.b32 r0, r60, 16, 31, 0xffff;")),
                 "takes no part");
  EXPECT_FINDING(finding(kernel("setp.lt.u32 p1, r60, 16; @p1 shfl.sync.bfly.b32 r0, r60, 1, 31, -1;")), "deadlock");
  EXPECT_FINDING(finding(kernel("shfl.sync.bfly.b32 r0, r60, 1, 31, 0xffff;")), "does not name it");
}

TEST(Mistakes, Clusters) {
  const Job job = job_of({.grid = {2, 1, 1}, .block = {32, 1, 1}, .cluster = {2, 1, 1}, .dynamic_shared_bytes = 16});
  const std::string look = "mov.u32 r1, dynamic; mapa.shared::cluster.u32 r2, r1, 1; ld.shared::cluster.u32 r0, [r2];";
  const std::string others = "mov.u32 r5, %cluster_ctarank; setp.eq.u32 p1, r5, 1; @p1 ret;";
  Job in_order = job;
  in_order.options.seed = 0;
  EXPECT_FINDING(finding(kernel("mov.u32 r1, dynamic; mapa.shared::cluster.u32 r2, r1, 2;"), job),
                 "rank outside the cluster");
  EXPECT_FINDING(
      finding(
          kernel(others +
                 "mov.u32 r9, 0; spin: add.s32 r9, r9, 1; setp.lt.u32 p2, r9, 4; @p2 nanosleep.u32 9; @p2 bra spin;" +
                 look),
          in_order),
      "not running");
  EXPECT_FINDING(finding(kernel("barrier.cluster.wait.aligned;"), job), "without having arrived");
  EXPECT_FINDING(finding(kernel("barrier.cluster.arrive.aligned; barrier.cluster.arrive.aligned;"), job),
                 "arrives twice");
}

TEST(Mistakes, WgmmaOrder) {
  const Job job = Wgmma::job();
  EXPECT_EQ(finding(Wgmma{}.text(), job), "nothing");
  EXPECT_EQ(finding(Wgmma{.before = "bar.sync 0; fence.proxy.async.shared::cta;"}.text(), job), "nothing");
  EXPECT_FINDING(finding(Wgmma{.before = "bar.sync 0;"}.text(), job), "without fence.proxy.async");
  EXPECT_FINDING(finding(Wgmma{.before = "fence.proxy.async.shared::cta;"}.text(), job), "race");
  EXPECT_FINDING(finding(Wgmma{.fence = ""}.text(), job), "after the last wgmma.fence");
  EXPECT_FINDING(finding(Wgmma{.after = "wgmma.commit_group.sync.aligned;"}.text(), job), "has not been waited for");
  EXPECT_FINDING(
      finding(Wgmma{.after = "wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;"}.text(), job),
      "has not been waited for");
  // A tile that is overwritten under the product.
  EXPECT_FINDING(
      finding(
          Wgmma{
              .after =
                  "wgmma.commit_group.sync.aligned; setp.lt.u32 p4, r60, 32; @p4 st.shared.u32 [dynamic+8192], r60; wgmma.wait_group.sync.aligned 0;"}
              .text(),
          job),
      "byte 8192");
}

TEST(Mistakes, Registers) {
  const Job job = job_of({.block = {512, 1, 1}});
  EXPECT_EQ(
      finding(
          kernel(
              "setp.lt.u32 p1, r60, 256; @p1 bra low; setmaxnreg.dec.sync.aligned.u32 96; ret; low: setmaxnreg.inc.sync.aligned.u32 160;"),
          job),
      "nothing");
  EXPECT_FINDING(finding(kernel("setmaxnreg.inc.sync.aligned.u32 160; bar.sync 0;"), job), "deadlock");
}

TEST(Counts, InstructionsAndBytes) {
  Job job{.in = std::vector<u32>(64),
          .out = std::vector<u32>(64),
          .how = {.block = {32, 1, 1}, .dynamic_shared_bytes = 8192},
          .options = {.count_banks = true, .threads = 1}};
  const Stats stats = job.run(
      kernel("mov.u32 r2, dynamic; mad.lo.s32 r3, r60, 128, r2; st.shared.u32 [r3], r60; ld.global.u32 r0, [d0];"));
  EXPECT_EQ(stats.shared_wavefronts, 32u);  // all lanes in one bank
  EXPECT_EQ(stats.shared_ideal_wavefronts, 1u);
  EXPECT_EQ(stats.global_bytes, 128u);
  EXPECT_EQ(stats.by_name.at("st.shared.u32"), 1u);
  EXPECT_EQ(stats.thread_instructions, 32 * stats.instructions);
}

}  // namespace
}  // namespace ptxemu
