// Every precondition of the operator, broken one at a time, through the C ABI: the status, the argument that the message
// names, and that no output byte was written. Rows are named after the numbers of the error list: D (the operator), F and P
// (what the FlashMLA-style and prefill forms add to it).
//
// M: dense MLA decode.
//
// Not here, because the operator cannot see them: F1, F3, F4, F6, F7, F10, F11 and P5, P6, P8, P9 and parts of M (arguments of
// adapters), B and C (index builders, cache operations), section 7 (the command line, tests/cli_test.py).
#include "core/problem.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/rig.h"

namespace pasa {
namespace {

using test::dense;
using test::Rig;

// "shape: kv_scales is [4096, 4], ..." blames kv_scales: the argument is the first word behind the category.
bool blames(const std::string& message, pasa_status status, const std::string& argument) {
  const std::string start = std::string(pasa_status_name(status)) + ": " + argument;
  if (!message.starts_with(start) || message.find('\n') != std::string::npos) return false;
  const char next = message.size() > start.size() ? message[start.size()] : '\0';
  return std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '_';
}

struct PlanOwner {
  pasa_plan* plan = nullptr;
  explicit PlanOwner(const Rig& rig) { EXPECT_EQ(pasa_plan_create(&rig.problem, &plan), PASA_OK) << pasa_last_error(); }
  ~PlanOwner() { pasa_plan_destroy(plan); }
};

pasa_status run(const pasa_plan* plan, const Rig& rig) {
  std::vector<std::uint8_t> memory(pasa_plan_workspace_bytes(plan) + 256);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return pasa_run(plan, &rig.problem, memory.data() + (256 - address % 256) % 256, pasa_plan_workspace_bytes(plan),
                  nullptr);
}

enum class When { kAlways, kPlanOnly, kRunOnly };  // which of the two calls can see the fault

struct Fault {
  const char* name;
  pasa_status status;
  const char* argument;
  pasa_kv_format main;
  pasa_kv_format extra;
  void (*spoil)(Rig& rig);
  When when = When::kAlways;
};

std::ostream& operator<<(std::ostream& out, const Fault& fault) { return out << fault.name; }

constexpr auto kNo = PASA_KV_NONE;
constexpr auto kBf16 = PASA_KV_BF16;
constexpr auto kF16 = PASA_KV_F16;
constexpr auto kOcp = PASA_KV_FP8_E4M3FN;
constexpr auto kFnuz = PASA_KV_FP8_E4M3FNUZ;
constexpr auto kDs = PASA_KV_FP8_DS_MLA;
constexpr auto kPacked = PASA_KV_PACKED_BF16;
constexpr auto kV32 = PASA_KV_FP8_V32;

void shift(pasa_tensor& tensor, std::ptrdiff_t bytes) { tensor.data = static_cast<char*>(tensor.data) + bytes; }

const Fault kFaults[] = {
    // D1: one device.
    {"D1_kv", PASA_ERROR_DEVICE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.device = PASA_CUDA; }},
    {"D1_kv_scales", PASA_ERROR_DEVICE, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales.device = PASA_CUDA; }},
    {"D1_kv_indices", PASA_ERROR_DEVICE, "kv_indices", kDs, kNo, [](Rig& r) { r.problem.main.indices.device = PASA_CUDA; }},
    {"D1_kv_indptr", PASA_ERROR_DEVICE, "kv_indptr", kDs, kNo, [](Rig& r) { r.problem.main.indptr.device = PASA_HIP; }},
    {"D1_kv_lengths", PASA_ERROR_DEVICE, "kv_lengths", kDs, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, true);
       r.problem.main.lengths.device = PASA_CUDA;
     },
     When::kPlanOnly},
    {"D1_attn_sink", PASA_ERROR_DEVICE, "attn_sink", kDs, kNo, [](Rig& r) { r.problem.attn_sink.device = PASA_CUDA; }},
    {"D1_out", PASA_ERROR_DEVICE, "out", kDs, kNo, [](Rig& r) { r.problem.out.device = PASA_CUDA; }},
    {"D1_lse", PASA_ERROR_DEVICE, "lse", kDs, kNo, [](Rig& r) { r.problem.lse.device = PASA_CUDA; }},
    {"D1_max_logits", PASA_ERROR_DEVICE, "max_logits", kDs, kNo, [](Rig& r) { r.problem.max_logits.device = PASA_CUDA; }},
    {"D1_extra_kv", PASA_ERROR_DEVICE, "extra_kv", kDs, kDs, [](Rig& r) { r.problem.extra.kv.device = PASA_CUDA; }},
    {"D1_extra_indices", PASA_ERROR_DEVICE, "extra_indices", kDs, kDs,
     [](Rig& r) { r.problem.extra.indices.device = PASA_CUDA; }},

    // D2, D3, D4: q.
    {"D2_f32", PASA_ERROR_DTYPE, "q", kDs, kNo, [](Rig& r) { r.problem.q.dtype = PASA_F32; }},
    {"D2_fp8", PASA_ERROR_DTYPE, "q", kDs, kNo, [](Rig& r) { r.problem.q.dtype = PASA_F8_E4M3FN; }},
    {"D3_rank", PASA_ERROR_RANK, "q", kDs, kNo, [](Rig& r) { r.problem.q.rank = 2; }},
    {"D3_last_dim", PASA_ERROR_STRIDE, "q", kDs, kNo, [](Rig& r) { r.problem.q.stride[2] = 2; }},
    {"D3_negative", PASA_ERROR_STRIDE, "q", kDs, kNo, [](Rig& r) { r.problem.q.stride[0] = -1024; }},
    {"D4_dim", PASA_ERROR_SHAPE, "q", kDs, kNo, [](Rig& r) { r.problem.q.shape[2] = 500; }},
    {"D4_dim_576_with_ds_mla", PASA_ERROR_SHAPE, "q", kDs, kNo,
     [](Rig& r) { r.problem.q = dense(r.problem.q.data, PASA_BF16, {Rig::kTokens, Rig::kHeads, 576}); }},
    {"D4_dim_512_with_v32", PASA_ERROR_SHAPE, "q", kV32, kNo, [](Rig& r) { r.problem.q.shape[2] = 512; }},
    {"D4_no_heads", PASA_ERROR_SHAPE, "q", kDs, kNo, [](Rig& r) { r.problem.q.shape[1] = 0; }},
    {"D4_negative_tokens", PASA_ERROR_SHAPE, "q", kDs, kNo, [](Rig& r) { r.problem.q.shape[0] = -1; }},

    // D5: rank of the main pool.
    {"D5_uniform_4d", PASA_ERROR_RANK, "kv", kOcp, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 1, 512}); }},
    {"D5_uniform_paged", PASA_ERROR_SHAPE, "kv", kOcp, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 512}); }},
    {"D5_packed_2d", PASA_ERROR_RANK, "kv", kDs, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {20, 584}); }},
    {"D5_packed_bf16_2d", PASA_ERROR_RANK, "kv", kPacked, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_BF16, {20, 512}); }},
    {"F2_two_kv_heads", PASA_ERROR_SHAPE, "kv", kDs, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 2, 2, 584}); }},

    // D6, D7, D23: dtype of the pools.
    {"D6_bf16_pool_f16_q", PASA_ERROR_DTYPE, "kv", kBf16, kNo, [](Rig& r) { r.problem.q.dtype = r.problem.out.dtype = PASA_F16; }},
    {"D6_f16_pool_bf16_q", PASA_ERROR_DTYPE, "kv", kF16, kNo, [](Rig& r) { r.problem.q.dtype = r.problem.out.dtype = PASA_BF16; }},
    {"D23_packed_f16_q", PASA_ERROR_DTYPE, "kv", kPacked, kNo, [](Rig& r) { r.problem.q.dtype = r.problem.out.dtype = PASA_F16; }},
    {"D23_packed_f16_pool", PASA_ERROR_DTYPE, "kv", kPacked, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_F16; }},
    {"D23_extra_f16", PASA_ERROR_DTYPE, "extra_kv", kBf16, kF16, [](Rig&) {}, When::kPlanOnly},
    {"D7_bf16", PASA_ERROR_DTYPE, "kv", kOcp, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_BF16; }},
    {"D7_fnuz_tensor_called_ocp", PASA_ERROR_DTYPE, "kv", kOcp, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_F8_E4M3FNUZ; }},
    {"F2_ds_mla_bf16", PASA_ERROR_DTYPE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_BF16; }},
    {"F2_v32_i32", PASA_ERROR_DTYPE, "kv", kV32, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_I32; }},

    // D8, D9: scales of uniform fp8.
    {"D8_dtype", PASA_ERROR_DTYPE, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales.dtype = PASA_F16; }},
    {"D8_rank", PASA_ERROR_RANK, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales.rank = 1; }},
    {"D8_groups", PASA_ERROR_SHAPE, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales.shape[1] = 4; }},
    {"D8_slots", PASA_ERROR_SHAPE, "kv_scales", kFnuz, kNo, [](Rig& r) { r.problem.main.kv_scales.shape[0] = 19; }},
    {"D8_last_dim", PASA_ERROR_STRIDE, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales.stride[1] = 2; }},
    {"D8_overlap", PASA_ERROR_STRIDE, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales.stride[0] = 7; }},
    {"D9_missing", PASA_ERROR_COMBINATION, "kv_scales", kOcp, kNo, [](Rig& r) { r.problem.main.kv_scales = {}; }},
    {"D9_with_bf16", PASA_ERROR_COMBINATION, "kv_scales", kBf16, kNo,
     [](Rig& r) { r.problem.main.kv_scales = dense(r.take(20 * 32), PASA_F32, {20, 8}); }},
    {"D9_with_packed", PASA_ERROR_COMBINATION, "kv_scales", kDs, kNo,
     [](Rig& r) { r.problem.main.kv_scales = dense(r.take(20 * 32), PASA_F32, {20, 8}); }},

    // D10, D11: inside a page.
    {"D10_656_called_ds_mla", PASA_ERROR_SHAPE, "kv", kDs, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 656}); }},
    {"D10_528", PASA_ERROR_SHAPE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 528}); }},
    {"D10_584_called_v32", PASA_ERROR_SHAPE, "kv", kV32, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 584}); }},
    {"D10_packed_448", PASA_ERROR_SHAPE, "kv", kPacked, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_BF16, {5, 4, 448}); }},
    {"D10_uniform_576", PASA_ERROR_SHAPE, "kv", kOcp, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {20, 576}); }},
    {"D10_flat_width", PASA_ERROR_SHAPE, "kv", kBf16, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_BF16, {20, 448}); }},
    {"D10_empty_page", PASA_ERROR_SHAPE, "kv", kDs, kNo,
     [](Rig& r) { r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 0, 584}); }},
    {"D11_token_stride", PASA_ERROR_STRIDE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.stride[1] = 592; }},
    {"D11_element_stride", PASA_ERROR_STRIDE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.stride[2] = 2; }},
    {"D11_page_stride", PASA_ERROR_STRIDE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.stride[0] = 4 * 584 - 8; }},
    {"D11_negative_page_stride", PASA_ERROR_STRIDE, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.stride[0] = -4 * 584; }},
    {"D11_packed_token_stride", PASA_ERROR_STRIDE, "kv", kPacked, kNo, [](Rig& r) { r.problem.main.kv.stride[1] = 520; }},
    {"F9_v32_token_stride", PASA_ERROR_STRIDE, "kv", kV32, kNo, [](Rig& r) { r.problem.main.kv.stride[1] = 672; }},
    {"F9_token_stride_behind_a_head_dim", PASA_ERROR_STRIDE, "kv", kDs, kNo,
     [](Rig& r) {
       r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 1, 584});
       r.problem.main.kv.stride[1] = 592;
     }},
    {"D11_flat_overlap", PASA_ERROR_STRIDE, "kv", kBf16, kNo, [](Rig& r) { r.problem.main.kv.stride[0] = 511; }},
    {"D11_flat_element", PASA_ERROR_STRIDE, "kv", kOcp, kNo, [](Rig& r) { r.problem.main.kv.stride[1] = 2; }},

    // D12: alignment.
    {"D12_ds_mla_base", PASA_ERROR_ALIGNMENT, "kv", kDs, kNo, [](Rig& r) { shift(r.problem.main.kv, 4); }},
    {"D12_ds_mla_stride", PASA_ERROR_ALIGNMENT, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.stride[0] = 4 * 584 + 4; }},
    {"D12_v32_base", PASA_ERROR_ALIGNMENT, "kv", kV32, kNo, [](Rig& r) { shift(r.problem.main.kv, 2); }},
    {"D12_v32_stride", PASA_ERROR_ALIGNMENT, "kv", kV32, kNo, [](Rig& r) { r.problem.main.kv.stride[0] = 4 * 656 + 2; }},
    {"D12_bf16_base", PASA_ERROR_ALIGNMENT, "kv", kBf16, kNo, [](Rig& r) { shift(r.problem.main.kv, 1); }},
    {"D12_packed_base", PASA_ERROR_ALIGNMENT, "kv", kPacked, kNo, [](Rig& r) { shift(r.problem.main.kv, 1); }},
    {"D12_kv_scales_base", PASA_ERROR_ALIGNMENT, "kv_scales", kOcp, kNo, [](Rig& r) { shift(r.problem.main.kv_scales, 2); }},
    {"D12_q_base", PASA_ERROR_ALIGNMENT, "q", kDs, kNo, [](Rig& r) { shift(r.problem.q, 1); }},
    {"D12_indices_base", PASA_ERROR_ALIGNMENT, "kv_indices", kDs, kNo, [](Rig& r) { shift(r.problem.main.indices, 2); }},
    {"D12_sink_base", PASA_ERROR_ALIGNMENT, "attn_sink", kDs, kNo, [](Rig& r) { shift(r.problem.attn_sink, 2); }},
    {"D12_out_base", PASA_ERROR_ALIGNMENT, "out", kDs, kNo, [](Rig& r) { shift(r.problem.out, 1); }},

    // D13: index lists.
    {"D13_indices_int64", PASA_ERROR_DTYPE, "kv_indices", kDs, kNo, [](Rig& r) { r.problem.main.indices.dtype = PASA_I64; }},
    {"D13_indptr_int64", PASA_ERROR_DTYPE, "kv_indptr", kDs, kNo, [](Rig& r) { r.problem.main.indptr.dtype = PASA_I64; }},
    {"D13_indices_rank_3", PASA_ERROR_RANK, "kv_indices", kDs, kNo,
     [](Rig& r) { r.problem.main.indices = dense(r.take(64), PASA_I32, {3, 1, 2}); }},
    {"D13_indptr_rank", PASA_ERROR_RANK, "kv_indptr", kDs, kNo, [](Rig& r) { r.problem.main.indptr = dense(r.take(64), PASA_I32, {4, 1}); }},
    {"D13_indptr_size", PASA_ERROR_SHAPE, "kv_indptr", kDs, kNo, [](Rig& r) { r.problem.main.indptr.shape[0] = 3; }},
    {"D13_indices_stride", PASA_ERROR_STRIDE, "kv_indices", kDs, kNo, [](Rig& r) { r.problem.main.indices.stride[0] = 2; }},
    {"D13_indptr_stride", PASA_ERROR_STRIDE, "kv_indptr", kDs, kNo, [](Rig& r) { r.problem.main.indptr.stride[0] = 2; }},
    {"D13_ragged_without_indptr", PASA_ERROR_COMBINATION, "kv_indptr", kDs, kNo, [](Rig& r) { r.problem.main.indptr = {}; },
     When::kPlanOnly},
    {"D13_rectangular_with_indptr", PASA_ERROR_COMBINATION, "kv_indptr", kDs, kNo,
     [](Rig& r) { r.problem.main.indices = dense(r.take(64), PASA_I32, {Rig::kTokens, 2}); }},
    {"D13_rectangular_rows", PASA_ERROR_SHAPE, "kv_indices", kDs, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, false);
       r.problem.main.indices.shape[0] = 2;
     }},
    {"F5_rectangular_last_dim", PASA_ERROR_STRIDE, "kv_indices", kDs, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, false);
       r.problem.main.indices.stride[1] = 2;
     }},
    {"D13_lengths_with_ragged", PASA_ERROR_COMBINATION, "kv_lengths", kDs, kNo,
     [](Rig& r) { r.problem.main.lengths = dense(r.take(64), PASA_I32, {Rig::kTokens}); }},
    {"D13_lengths_dtype", PASA_ERROR_DTYPE, "kv_lengths", kDs, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, true);
       r.problem.main.lengths.dtype = PASA_I64;
     }},
    {"D13_lengths_size", PASA_ERROR_SHAPE, "kv_lengths", kDs, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, true);
       r.problem.main.lengths.shape[0] = 4;
     }},
    {"D13_lengths_stride", PASA_ERROR_STRIDE, "kv_lengths", kDs, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, true);
       r.problem.main.lengths.stride[0] = 2;
     }},
    {"D13_no_indices", PASA_ERROR_COMBINATION, "kv_indices", kDs, kNo,
     [](Rig& r) { r.problem.main.indices = r.problem.main.indptr = {}; }},

    // D14: sink.
    {"D14_dtype", PASA_ERROR_DTYPE, "attn_sink", kDs, kNo, [](Rig& r) { r.problem.attn_sink.dtype = PASA_BF16; }},
    {"D14_rank", PASA_ERROR_RANK, "attn_sink", kDs, kNo, [](Rig& r) { r.problem.attn_sink = dense(r.take(64), PASA_F32, {1, 2}); }},
    {"D14_size", PASA_ERROR_SHAPE, "attn_sink", kDs, kNo, [](Rig& r) { r.problem.attn_sink.shape[0] = 1; }},
    {"D14_stride", PASA_ERROR_STRIDE, "attn_sink", kDs, kNo, [](Rig& r) { r.problem.attn_sink.stride[0] = 2; }},

    // D15, D16 (and P2, P3): the extra source.
    {"D15_pool_without_indices", PASA_ERROR_COMBINATION, "extra_indices", kDs, kDs,
     [](Rig& r) { r.problem.extra.indices = r.problem.extra.indptr = {}; }},
    {"D15_indices_without_pool", PASA_ERROR_COMBINATION, "extra_indices", kDs, kDs, [](Rig& r) { r.problem.extra.kv = {}; }},
    {"D15_indptr_alone", PASA_ERROR_COMBINATION, "extra_indptr", kDs, kNo,
     [](Rig& r) { r.problem.extra.indptr = r.problem.main.indptr; }},
    {"D15_lengths_alone", PASA_ERROR_COMBINATION, "extra_lengths", kDs, kNo,
     [](Rig& r) { r.problem.extra.lengths = dense(r.take(64), PASA_I32, {Rig::kTokens}); }},
    {"D15_scales_alone", PASA_ERROR_COMBINATION, "extra_kv_scales", kDs, kNo,
     [](Rig& r) { r.problem.extra.kv_scales = dense(r.take(20 * 32), PASA_F32, {20, 8}); }},
    {"D15_no_main_pool", PASA_ERROR_COMBINATION, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv = {}; }},
    {"D16_dim", PASA_ERROR_SHAPE, "extra_kv", kDs, kV32, [](Rig&) {}, When::kPlanOnly},
    {"D16_flat_dim", PASA_ERROR_SHAPE, "extra_kv", kBf16, kBf16,
     [](Rig& r) { r.problem.extra.kv = dense(r.problem.extra.kv.data, PASA_BF16, {17, 576}); }},
    {"D16_rank", PASA_ERROR_RANK, "extra_kv", kDs, kDs, [](Rig& r) { r.problem.extra.kv.rank = 2; }},
    {"D16_dtype", PASA_ERROR_DTYPE, "extra_kv", kDs, kOcp, [](Rig& r) { r.problem.extra.kv.dtype = PASA_F32; }},
    {"D16_stride", PASA_ERROR_STRIDE, "extra_kv", kDs, kDs, [](Rig& r) { r.problem.extra.kv.stride[1] = 600; }},
    {"D16_alignment", PASA_ERROR_ALIGNMENT, "extra_kv", kDs, kDs, [](Rig& r) { shift(r.problem.extra.kv, 4); }},
    {"D16_scales", PASA_ERROR_SHAPE, "extra_kv_scales", kDs, kOcp, [](Rig& r) { r.problem.extra.kv_scales.shape[1] = 4; }},
    {"D16_scales_missing", PASA_ERROR_COMBINATION, "extra_kv_scales", kDs, kFnuz, [](Rig& r) { r.problem.extra.kv_scales = {}; }},
    {"P3_extra_indptr", PASA_ERROR_SHAPE, "extra_indptr", kBf16, kBf16, [](Rig& r) { r.problem.extra.indptr.shape[0] = 3; }},
    {"P3_extra_indices", PASA_ERROR_DTYPE, "extra_indices", kBf16, kBf16, [](Rig& r) { r.problem.extra.indices.dtype = PASA_I64; }},
    {"D15_extra_lengths", PASA_ERROR_SHAPE, "extra_lengths", kDs, kDs,
     [](Rig& r) {
       r.make_rectangular(r.problem.extra, true);
       r.problem.extra.lengths.shape[0] = 2;
     }},

    // D18, D19: scalars.
    {"D18_scale_nan", PASA_ERROR_RANGE, "softmax_scale", kDs, kNo,
     [](Rig& r) {
       r.problem.has_softmax_scale = 1;
       r.problem.softmax_scale = std::numeric_limits<double>::quiet_NaN();
     }},
    {"D18_scale_inf", PASA_ERROR_RANGE, "softmax_scale", kDs, kNo,
     [](Rig& r) {
       r.problem.has_softmax_scale = 1;
       r.problem.softmax_scale = -std::numeric_limits<double>::infinity();
     }},
    {"D19_splits_negative", PASA_ERROR_RANGE, "kv_splits", kDs, kNo, [](Rig& r) { r.problem.kv_splits = -1; }},
    {"D19_splits_257", PASA_ERROR_RANGE, "kv_splits", kDs, kNo, [](Rig& r) { r.problem.kv_splits = 257; }},
    {"D19_block_h", PASA_ERROR_RANGE, "block_h", kDs, kNo, [](Rig& r) { r.problem.block_h = -16; }},
    {"D19_threads", PASA_ERROR_RANGE, "threads", kDs, kNo, [](Rig& r) { r.problem.threads = -1; }},
    {"D19_flags", PASA_ERROR_RANGE, "flags", kDs, kNo, [](Rig& r) { r.problem.flags = 0x80000000u; }},

    // D20: sizes beyond the index type. Only the plan is asked: such tensors do not exist here.
    {"D20_slots", PASA_ERROR_OVERFLOW, "kv", kDs, kNo,
     [](Rig& r) { r.problem.main.kv = dense(nullptr, PASA_U8, {(std::int64_t{1} << 31) / 64, 64, 584}); }, When::kPlanOnly},
    {"D20_flat_slots", PASA_ERROR_OVERFLOW, "kv", kBf16, kNo,
     [](Rig& r) { r.problem.main.kv = dense(nullptr, PASA_BF16, {std::int64_t{1} << 31, 512}); }, When::kPlanOnly},
    {"D20_nnz", PASA_ERROR_OVERFLOW, "kv_indices", kDs, kNo,
     [](Rig& r) { r.problem.main.indices = dense(nullptr, PASA_I32, {std::int64_t{1} << 31}); }, When::kPlanOnly},
    {"D20_extra_slots", PASA_ERROR_OVERFLOW, "extra_kv", kDs, kDs,
     [](Rig& r) { r.problem.extra.kv = dense(nullptr, PASA_U8, {std::int64_t{1} << 29, 4, 584}); }, When::kPlanOnly},

    // D21 (and P7): outputs.
    {"D21_out_tokens", PASA_ERROR_SHAPE, "out", kDs, kNo, [](Rig& r) { r.problem.out.shape[0] = 2; }},
    {"D21_out_dim", PASA_ERROR_SHAPE, "out", kDs, kNo, [](Rig& r) { r.problem.out.shape[2] = 448; }},
    {"D21_out_dim_of_v32", PASA_ERROR_SHAPE, "out", kV32, kNo, [](Rig& r) { r.problem.out.shape[2] = 576; }},
    {"D21_out_dtype", PASA_ERROR_DTYPE, "out", kDs, kNo, [](Rig& r) { r.problem.out.dtype = PASA_F16; }},
    {"D21_out_rank", PASA_ERROR_RANK, "out", kDs, kNo, [](Rig& r) { r.problem.out.rank = 2; }},
    {"D21_out_last_dim", PASA_ERROR_STRIDE, "out", kDs, kNo, [](Rig& r) { r.problem.out.stride[2] = 2; }},
    {"D21_out_rows_overlap", PASA_ERROR_STRIDE, "out", kDs, kNo, [](Rig& r) { r.problem.out.stride[0] = 0; }},
    {"D21_out_is_q", PASA_ERROR_COMBINATION, "out", kDs, kNo, [](Rig& r) { r.problem.out.data = r.problem.q.data; }, When::kRunOnly},
    {"D21_out_in_the_pool", PASA_ERROR_COMBINATION, "out", kDs, kNo,
     [](Rig& r) { r.problem.out.data = static_cast<char*>(r.problem.main.kv.data) + 5 * 4 * 584 - 8; }, When::kRunOnly},
    {"D21_out_absent", PASA_ERROR_COMBINATION, "out", kDs, kNo, [](Rig& r) { r.problem.out = {}; }, When::kRunOnly},
    {"D21_out_null", PASA_ERROR_COMBINATION, "out", kDs, kNo, [](Rig& r) { r.problem.out.data = nullptr; }, When::kRunOnly},
    {"D21_q_null", PASA_ERROR_COMBINATION, "q", kDs, kNo, [](Rig& r) { r.problem.q.data = nullptr; }, When::kRunOnly},
    {"D21_kv_null", PASA_ERROR_COMBINATION, "kv", kDs, kNo, [](Rig& r) { r.problem.main.kv.data = nullptr; }, When::kRunOnly},
    {"D21_indices_null", PASA_ERROR_COMBINATION, "kv_indices", kDs, kNo,
     [](Rig& r) { r.problem.main.indices.data = nullptr; }, When::kRunOnly},
    {"D21_lse_shape", PASA_ERROR_SHAPE, "lse", kDs, kNo, [](Rig& r) { r.problem.lse.shape[1] = 3; }},
    {"D21_lse_dtype", PASA_ERROR_DTYPE, "lse", kDs, kNo, [](Rig& r) { r.problem.lse.dtype = PASA_BF16; }},
    {"D21_max_logits_rank", PASA_ERROR_RANK, "max_logits", kDs, kNo, [](Rig& r) { r.problem.max_logits.rank = 1; }},

    // D22: partials (what only a run can see is below).
    {"D22_acc_dtype", PASA_ERROR_DTYPE, "acc", kDs, kNo,
     [](Rig& r) {
       r.want_partials(2);
       r.problem.acc.dtype = PASA_BF16;
     }},
    {"D22_acc_alignment", PASA_ERROR_ALIGNMENT, "acc", kDs, kNo,
     [](Rig& r) {
       r.want_partials(2);
       shift(r.problem.acc, 8);
     }},
    {"D22_m_shape", PASA_ERROR_SHAPE, "m", kDs, kNo,
     [](Rig& r) {
       r.want_partials(2);
       r.problem.m.shape[1] = 3;
     }},

    // M: keys of 576 in a flat pool, shared lists.
    {"M2_pe_dtype", PASA_ERROR_DTYPE, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.dtype = PASA_F16;
     }},
    {"M2_pe_of_bytes_as_fp8", PASA_ERROR_DTYPE, "kv_pe", kOcp, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.dtype = PASA_U8;
     }},
    {"M2_f16_q", PASA_ERROR_DTYPE, "kv", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.q.dtype = r.problem.out.dtype = PASA_F16;
     }},
    {"M1_pe_rank", PASA_ERROR_RANK, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.rank = 1;
     }},
    {"M3_kv_576_beside_pe", PASA_ERROR_SHAPE, "kv", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv = dense(r.problem.main.kv.data, PASA_BF16, {20, 576});
     }},
    {"M3_kv_512_without_pe", PASA_ERROR_SHAPE, "kv", kOcp, kNo,
     [](Rig& r) {
       r.make_mla(false);
       r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {20, 512});
     }},
    {"M3_pe_width", PASA_ERROR_SHAPE, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.shape[1] = 63;
     }},
    {"M3_pe_slots", PASA_ERROR_SHAPE, "kv_pe", kF16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.shape[0] = 19;
     }},
    {"M3_pe_heads", PASA_ERROR_SHAPE, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe = dense(r.take(20 * 256), PASA_BF16, {20, 2, 64});
     }},
    {"M3_pe_element_stride", PASA_ERROR_STRIDE, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.stride[1] = 2;
     }},
    {"M3_pe_overlap", PASA_ERROR_STRIDE, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.stride[0] = 63;
     }},
    {"M3_pe_alignment", PASA_ERROR_ALIGNMENT, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       shift(r.problem.main.kv_pe, 1);
     }},
    {"M3_pe_device", PASA_ERROR_DEVICE, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.device = PASA_CUDA;
     }},
    {"M3_pe_with_512", PASA_ERROR_COMBINATION, "kv_pe", kBf16, kNo,
     [](Rig& r) { r.problem.main.kv_pe = dense(r.take(20 * 128), PASA_BF16, {20, 64}); }},
    {"M3_pe_with_v32", PASA_ERROR_COMBINATION, "kv_pe", kV32, kNo,
     [](Rig& r) { r.problem.main.kv_pe = dense(r.take(20 * 128), PASA_U8, {20, 64}); }},
    {"M3_extra_pe_alone", PASA_ERROR_COMBINATION, "extra_kv_pe", kBf16, kNo,
     [](Rig& r) { r.problem.extra.kv_pe = dense(r.take(20 * 128), PASA_BF16, {20, 64}); }},
    {"M3_scales_with_576", PASA_ERROR_COMBINATION, "kv_scales", kOcp, kNo,
     [](Rig& r) {
       r.make_mla(false);
       r.problem.main.kv_scales = dense(r.take(20 * 36), PASA_F32, {20, 9});
     }},
    {"M3_out_in_pe", PASA_ERROR_COMBINATION, "out", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.out.data = r.problem.main.kv_pe.data;
     },
     When::kRunOnly},
    {"M3_pe_null", PASA_ERROR_COMBINATION, "kv_pe", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe.data = nullptr;
     },
     When::kRunOnly},
    {"M4_indptr", PASA_ERROR_SHAPE, "kv_indptr", kBf16, kNo, [](Rig& r) { r.problem.queries_per_list = 3; }},
    {"M4_table_rows", PASA_ERROR_SHAPE, "kv_indices", kBf16, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, false);
       r.problem.queries_per_list = 3;
     }},
    {"M4_lengths", PASA_ERROR_SHAPE, "kv_lengths", kBf16, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, true);
       r.problem.main.indices.shape[0] = 1;
       r.problem.queries_per_list = 3;
     }},
    {"M4_rows_that_do_not_divide", PASA_ERROR_SHAPE, "q", kBf16, kNo, [](Rig& r) { r.problem.queries_per_list = 2; }},
    {"M4_queries_negative", PASA_ERROR_RANGE, "queries_per_list", kBf16, kNo,
     [](Rig& r) { r.problem.queries_per_list = -1; }},
    {"M4_queries_with_extra", PASA_ERROR_COMBINATION, "queries_per_list", kBf16, kBf16,
     [](Rig& r) {
       r.share_list();
       r.problem.extra.indptr.shape[0] = 2;
     }},
    {"M6_kv_scale_nan", PASA_ERROR_RANGE, "kv_scale", kBf16, kNo,
     [](Rig& r) { r.problem.kv_scale = std::numeric_limits<double>::quiet_NaN(); }},
    {"M6_kv_scale_inf", PASA_ERROR_RANGE, "kv_scale", kOcp, kNo,
     [](Rig& r) { r.problem.kv_scale = std::numeric_limits<double>::infinity(); }},

    // D24: forced kernels.
    {"D24_unknown", PASA_ERROR_UNSUPPORTED, "kernel", kDs, kNo, [](Rig& r) { r.problem.kernel = "cpu:nonsense"; }, When::kPlanOnly},
    {"D24_prefix_is_no_name", PASA_ERROR_UNSUPPORTED, "kernel", kDs, kNo, [](Rig& r) { r.problem.kernel = "cp"; }, When::kPlanOnly},
    {"D24_other_device", PASA_ERROR_UNSUPPORTED, "kernel", kDs, kNo, [](Rig& r) { r.problem.kernel = "cuda"; }, When::kPlanOnly},
};

class Refused : public testing::TestWithParam<Fault> {};

TEST_P(Refused, NamesTheArgumentAndWritesNothing) {
  const Fault& fault = GetParam();
  Rig rig(fault.main, fault.extra);
  if (fault.when != When::kRunOnly) {
    Rig spoilt(fault.main, fault.extra);
    fault.spoil(spoilt);
    pasa_plan* plan = nullptr;
    EXPECT_EQ(pasa_plan_create(&spoilt.problem, &plan), fault.status) << pasa_last_error();
    EXPECT_TRUE(blames(pasa_last_error(), fault.status, fault.argument)) << pasa_last_error();
    EXPECT_EQ(plan, nullptr);
    pasa_plan_destroy(plan);
    EXPECT_TRUE(spoilt.untouched());
  }
  if (fault.when != When::kPlanOnly) {
    const PlanOwner owner(rig);
    ASSERT_NE(owner.plan, nullptr);
    fault.spoil(rig);
    EXPECT_EQ(run(owner.plan, rig), fault.status) << pasa_last_error();
    EXPECT_TRUE(blames(pasa_last_error(), fault.status, fault.argument)) << pasa_last_error();
    EXPECT_TRUE(rig.untouched());
  }
}

INSTANTIATE_TEST_SUITE_P(Problem, Refused, testing::ValuesIn(kFaults), testing::PrintToStringParamName());

// D22: where the plan has more than one split, acc, m and l are the whole result; where it has one, the flag does nothing.
TEST(Partials, ExcludeTheFinalOutputs) {
  struct {
    const char* argument;
    pasa_status status;
    void (*spoil)(Rig&);
  } const rows[] = {
      {"out", PASA_ERROR_COMBINATION,
       [](Rig& r) {
         r.problem.out = r.output(PASA_BF16, {Rig::kTokens, Rig::kHeads, 512});
       }},
      {"lse", PASA_ERROR_COMBINATION,
       [](Rig& r) {
         r.problem.lse = r.output(PASA_F32, {Rig::kTokens, Rig::kHeads});
       }},
      {"max_logits", PASA_ERROR_COMBINATION,
       [](Rig& r) {
         r.problem.max_logits = r.output(PASA_F32, {Rig::kTokens, Rig::kHeads});
       }},
      {"acc", PASA_ERROR_COMBINATION, [](Rig& r) { r.problem.acc = r.problem.m = r.problem.l = pasa_tensor{}; }},
      {"acc", PASA_ERROR_SHAPE,
       [](Rig& r) {
         r.problem.acc = r.output(PASA_F32, {Rig::kTokens, 4, Rig::kHeads, 512});
         r.problem.m = r.output(PASA_F32, {Rig::kTokens, 4, Rig::kHeads});
         r.problem.l = r.output(PASA_F32, {Rig::kTokens, 4, Rig::kHeads});
       }},
  };
  for (const auto& row : rows) {
    Rig rig(kDs);
    rig.want_partials(2);
    const PlanOwner owner(rig);
    ASSERT_EQ(pasa_plan_splits(owner.plan), 2);
    ASSERT_EQ(pasa_plan_is_partial(owner.plan), 1);
    row.spoil(rig);
    EXPECT_EQ(run(owner.plan, rig), row.status) << pasa_last_error();
    EXPECT_NE(std::string(pasa_last_error()).find(row.argument), std::string::npos) << pasa_last_error();
    EXPECT_TRUE(rig.untouched());
  }
}

TEST(Partials, OneSplitIgnoresTheFlag) {
  Rig rig(kDs);
  rig.problem.flags = PASA_SKIP_REDUCE;
  rig.problem.kv_splits = 1;
  const PlanOwner owner(rig);
  EXPECT_EQ(pasa_plan_is_partial(owner.plan), 0);
  EXPECT_EQ(run(owner.plan, rig), PASA_OK) << pasa_last_error();
  EXPECT_FALSE(rig.untouched());
}

// Two faults at once: the earlier category of device, dtype, rank, shape, stride, alignment, combination, range,
// unsupported, overflow is reported, in whichever tensor it is.
TEST(Order, TheEarlierCategoryIsReported) {
  struct Step {
    pasa_status status;
    void (*spoil)(Rig&);
  };
  const Step steps[] = {
      {PASA_ERROR_DEVICE, [](Rig& r) { r.problem.lse.device = PASA_CUDA; }},
      {PASA_ERROR_DTYPE, [](Rig& r) { r.problem.attn_sink.dtype = PASA_F16; }},
      {PASA_ERROR_RANK, [](Rig& r) { r.problem.max_logits.rank = 1; }},
      {PASA_ERROR_SHAPE, [](Rig& r) { r.problem.out.shape[2] = 511; }},
      {PASA_ERROR_STRIDE, [](Rig& r) { r.problem.main.indptr.stride[0] = 2; }},
      {PASA_ERROR_ALIGNMENT, [](Rig& r) { shift(r.problem.q, 1); }},
      {PASA_ERROR_COMBINATION, [](Rig& r) { r.problem.extra.indptr = r.problem.main.indptr; }},
      {PASA_ERROR_RANGE, [](Rig& r) { r.problem.kv_splits = 1000; }},
      {PASA_ERROR_UNSUPPORTED, [](Rig& r) { r.problem.kernel = "nonsense"; }},
  };
  for (std::size_t first = 0; first < std::size(steps); ++first) {
    for (std::size_t second = first + 1; second < std::size(steps); ++second) {
      Rig rig(kDs);
      steps[second].spoil(rig);
      steps[first].spoil(rig);
      pasa_plan* plan = nullptr;
      EXPECT_EQ(pasa_plan_create(&rig.problem, &plan), steps[first].status)
          << first << "+" << second << ": " << pasa_last_error();
    }
  }
}

TEST(Order, StatusNamesAreStable) {
  const char* names[] = {"ok",          "device", "dtype", "rank",        "shape",    "stride", "alignment",
                         "combination", "range",  "value", "unsupported", "overflow", "memory", "internal"};
  for (int i = 0; i < 14; ++i) EXPECT_STREQ(pasa_status_name(static_cast<pasa_status>(i)), names[i]);
}

// What the rules allow although a stricter library would not.
struct Legal {
  const char* name;
  pasa_kv_format main;
  pasa_kv_format extra;
  void (*change)(Rig& rig);
};
std::ostream& operator<<(std::ostream& out, const Legal& legal) { return out << legal.name; }

const Legal kLegal[] = {
    {"plain_ds_mla", kDs, kNo, [](Rig&) {}},
    {"plain_v32", kV32, kNo, [](Rig&) {}},
    {"D5_four_dims_with_one_head", kDs, kNo,
     [](Rig& r) {
       r.problem.main.kv = dense(r.problem.main.kv.data, PASA_U8, {5, 4, 1, 584});
     }},
    {"D5_v32_four_dims", kV32, kNo,
     [](Rig& r) {
       r.problem.main.kv = dense(r.problem.main.kv.data, PASA_I8, {5, 4, 1, 656});
     }},
    {"P1_flat_with_one_head", kBf16, kNo,
     [](Rig& r) {
       r.problem.main.kv = dense(r.problem.main.kv.data, PASA_BF16, {20, 1, 512});
     }},
    {"D7_bytes_are_ocp", kOcp, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_U8; }},
    {"D7_format_decides_in_an_ocp_container", kFnuz, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_F8_E4M3FN; }},
    {"D7_bytes_called_fnuz", kFnuz, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_U8; }},
    {"F2_int8", kDs, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_I8; }},
    {"F2_e4m3fn", kDs, kNo, [](Rig& r) { r.problem.main.kv.dtype = PASA_F8_E4M3FN; }},
    {"f16_q_with_fp8", kDs, kNo, [](Rig& r) { r.problem.q.dtype = r.problem.out.dtype = PASA_F16; }},
    {"D12_page_stride_of_8", kDs, kNo, [](Rig& r) { r.problem.main.kv.stride[0] = 4 * 584 + 8; }},
    {"D12_base_of_8", kDs, kNo, [](Rig& r) { shift(r.problem.main.kv, 8); }},
    {"D12_v32_base_of_4", kV32, kNo, [](Rig& r) { shift(r.problem.main.kv, 4); }},
    {"D12_uniform_fp8_base_of_1", kOcp, kNo, [](Rig& r) { shift(r.problem.main.kv, 1); }},
    {"no_sink", kDs, kNo, [](Rig& r) { r.problem.attn_sink = {}; }},
    {"no_lse", kDs, kNo, [](Rig& r) { r.problem.lse = r.problem.max_logits = {}; }},
    {"scale_zero", kDs, kNo, [](Rig& r) { r.problem.has_softmax_scale = 1; }},
    {"rectangular", kDs, kNo, [](Rig& r) { r.make_rectangular(r.problem.main, false); }},
    {"rectangular_with_lengths", kDs, kNo, [](Rig& r) { r.make_rectangular(r.problem.main, true); }},
    {"ragged_with_rectangular_extra", kDs, kPacked, [](Rig& r) { r.make_rectangular(r.problem.extra, true); }},
    {"width_zero", kDs, kNo,
     [](Rig& r) {
       r.problem.main.indices = dense(nullptr, PASA_I32, {3, 0}), r.problem.main.indptr = {};
     }},
    {"no_tokens", kDs, kNo,
     [](Rig& r) {
       r.problem.q.shape[0] = r.problem.out.shape[0] = r.problem.lse.shape[0] = r.problem.max_logits.shape[0] = 0;
       r.problem.main.indptr.shape[0] = 1;
     }},
    {"no_slots", kBf16, kNo,
     [](Rig& r) {
       r.problem.main.kv = dense(nullptr, PASA_BF16, {0, 512});
     }},
    {"no_pages", kDs, kNo,
     [](Rig& r) {
       r.problem.main.kv = dense(nullptr, PASA_U8, {0, 4, 584});
     }},
    {"one_token_with_any_row_stride", kBf16, kNo,
     [](Rig& r) {
       r.problem.q.shape[0] = r.problem.out.shape[0] = r.problem.lse.shape[0] = r.problem.max_logits.shape[0] = 1;
       r.problem.out.stride[0] = 0;
       r.problem.main.indptr.shape[0] = 2;
     }},
    {"mla_bf16", kBf16, kNo, [](Rig& r) { r.make_mla(false); }},
    {"mla_f16_apart", kF16, kNo, [](Rig& r) { r.make_mla(true); }},
    {"mla_ocp", kOcp, kNo, [](Rig& r) { r.make_mla(false); }},
    {"mla_fnuz_apart", kFnuz, kNo, [](Rig& r) { r.make_mla(true); }},
    {"M3_pe_before_kv_in_one_tensor", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv.stride[0] = r.problem.main.kv_pe.stride[0] = 576;
       r.problem.main.kv_pe.data = r.problem.main.kv.data;
       shift(r.problem.main.kv, 128);
     }},
    {"M3_pe_with_one_head", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv_pe = dense(r.problem.main.kv_pe.data, PASA_BF16, {20, 1, 64});
     }},
    {"M3_no_slots", kBf16, kNo,
     [](Rig& r) {
       r.make_mla(true);
       r.problem.main.kv = dense(nullptr, PASA_BF16, {0, 512});
       r.problem.main.kv_pe = dense(nullptr, PASA_BF16, {0, 64});
     }},
    {"M4_shared_list", kBf16, kNo, [](Rig& r) { r.share_list(); }},
    {"M4_shared_table", kOcp, kNo,
     [](Rig& r) {
       r.make_rectangular(r.problem.main, true);
       r.problem.main.indices.shape[0] = r.problem.main.lengths.shape[0] = 1;
       r.problem.queries_per_list = 3;
     }},
    {"M4_one_query_a_list", kBf16, kBf16, [](Rig& r) { r.problem.queries_per_list = 1; }},
    {"M6_kv_scale_with_bf16", kBf16, kNo, [](Rig& r) { r.problem.kv_scale = -0.25; }},
    {"M6_kv_scale_with_two_sources", kDs, kPacked, [](Rig& r) { r.problem.kv_scale = 3; }},
    {"splits_256", kDs, kNo, [](Rig& r) { r.problem.kv_splits = 256; }},
    {"block_h_24", kDs, kNo, [](Rig& r) { r.problem.block_h = 24; }},
    {"bf16_576", kV32, kBf16, [](Rig&) {}},
};

class Accepted : public testing::TestWithParam<Legal> {};

TEST_P(Accepted, RunsAndWritesEveryOutput) {
  Rig rig(GetParam().main, GetParam().extra);
  GetParam().change(rig);
  const PlanOwner owner(rig);
  ASSERT_NE(owner.plan, nullptr);
  EXPECT_EQ(run(owner.plan, rig), PASA_OK) << pasa_last_error();
  EXPECT_EQ(rig.untouched(), rig.problem.q.shape[0] == 0);
}

INSTANTIATE_TEST_SUITE_P(Problem, Accepted, testing::ValuesIn(kLegal), testing::PrintToStringParamName());

TEST(Problem, EveryPairOfFormatsWithEqualDimIsAccepted) {
  for (const FormatInfo& main : kFormats) {
    for (const FormatInfo& extra : kFormats) {
      const bool mixed16 = (main.format == kF16 && (extra.format == kBf16 || extra.format == kPacked)) ||
                           (extra.format == kF16 && (main.format == kBf16 || main.format == kPacked));
      const int dim = main.format == kV32 ? 576 : 512;
      if (mixed16 || (extra.dim != 0 && extra.dim != dim) || (main.format == kV32 && extra.format == kF16)) continue;
      Rig rig(main.format, extra.format);
      if (extra.format == kF16) rig.problem.q.dtype = rig.problem.out.dtype = PASA_F16;
      pasa_plan* plan = nullptr;
      EXPECT_EQ(pasa_plan_create(&rig.problem, &plan), PASA_OK)
          << main.name << " + " << extra.name << ": " << pasa_last_error();
      pasa_plan_destroy(plan);
    }
  }
}

TEST(Problem, NullPointersAndStructSizesAreRefused) {
  Rig rig(kDs);
  const PlanOwner owner(rig);
  pasa_plan* plan = nullptr;
  EXPECT_EQ(pasa_plan_create(nullptr, &plan), PASA_ERROR_COMBINATION);
  EXPECT_EQ(pasa_plan_create(&rig.problem, nullptr), PASA_ERROR_COMBINATION);
  EXPECT_EQ(pasa_run(nullptr, &rig.problem, nullptr, 0, nullptr), PASA_ERROR_COMBINATION);
  EXPECT_EQ(pasa_run(owner.plan, nullptr, nullptr, 0, nullptr), PASA_ERROR_COMBINATION);
  EXPECT_EQ(pasa_reduce(nullptr, nullptr), PASA_ERROR_COMBINATION);
  EXPECT_EQ(pasa_validate(nullptr, nullptr), PASA_ERROR_COMBINATION);
  rig.problem.struct_size = 8;
  EXPECT_NE(pasa_plan_create(&rig.problem, &plan), PASA_OK);
  EXPECT_NE(std::string(pasa_last_error()).find("struct_size"), std::string::npos) << pasa_last_error();
  EXPECT_TRUE(rig.untouched());
  pasa_plan_destroy(nullptr);
  EXPECT_EQ(pasa_plan_workspace_bytes(nullptr), 0u);
}

TEST(Problem, AllTwentyTensorsAtOnceAreRefused) {
  Rig rig(kOcp, kOcp);
  for (pasa_source* source : {&rig.problem.main, &rig.problem.extra}) {
    source->kv_pe = dense(rig.take(Rig::kSlots * kPeDim), source->kv.dtype, {Rig::kSlots, kPeDim});
    source->lengths = dense(rig.take(Rig::kTokens * 4), PASA_I32, {Rig::kTokens});
  }
  const pasa_tensor out = rig.problem.out, lse = rig.problem.lse, max_logits = rig.problem.max_logits;
  rig.want_partials(4);
  rig.problem.out = out, rig.problem.lse = lse, rig.problem.max_logits = max_logits;
  pasa_plan* plan = nullptr;
  EXPECT_EQ(pasa_plan_create(&rig.problem, &plan), PASA_ERROR_COMBINATION) << pasa_last_error();
  EXPECT_TRUE(rig.untouched());
}

TEST(Problem, APlanServesOnlyItsShape) {
  Rig rig(kDs);
  const PlanOwner owner(rig);
  Rig other(kPacked);
  EXPECT_EQ(run(owner.plan, other), PASA_ERROR_COMBINATION);
  EXPECT_TRUE(blames(pasa_last_error(), PASA_ERROR_COMBINATION, "plan")) << pasa_last_error();
  EXPECT_TRUE(other.untouched());
}

TEST(Problem, TheWorkspaceIsChecked) {
  Rig rig(kDs);
  rig.problem.kv_splits = 4;
  const PlanOwner owner(rig);
  const std::size_t bytes = pasa_plan_workspace_bytes(owner.plan);
  if (bytes == 0) GTEST_SKIP() << pasa_plan_kernel(owner.plan) << " needs no workspace";
  std::vector<std::uint8_t> memory(bytes + 512);
  auto* aligned = memory.data() + (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256;
  EXPECT_EQ(pasa_run(owner.plan, &rig.problem, aligned, bytes - 1, nullptr), PASA_ERROR_MEMORY);
  EXPECT_TRUE(blames(pasa_last_error(), PASA_ERROR_MEMORY, "workspace"));
  EXPECT_EQ(pasa_run(owner.plan, &rig.problem, nullptr, bytes, nullptr), PASA_ERROR_MEMORY);
  EXPECT_EQ(pasa_run(owner.plan, &rig.problem, aligned + 8, bytes, nullptr), PASA_ERROR_ALIGNMENT);
  EXPECT_TRUE(rig.untouched());
}

// Contents are data, not errors: only validate looks, and it names the list.
TEST(Validate, ReportsMalformedLists) {
  struct {
    const char* argument;
    std::vector<std::int32_t> indptr;
  } const rows[] = {{"kv_indptr", {1, 2, 4, 6}},
                    {"kv_indptr", {0, 4, 2, 6}},
                    {"kv_indptr", {0, 2, 4, 5}},
                    {"kv_indptr", {0, 2, 4, 7}}};
  for (const auto& row : rows) {
    Rig rig(kDs);
    std::memcpy(rig.problem.main.indptr.data, row.indptr.data(), 16);
    EXPECT_EQ(pasa_validate(&rig.problem, nullptr), PASA_ERROR_VALUE);
    EXPECT_TRUE(blames(pasa_last_error(), PASA_ERROR_VALUE, row.argument)) << pasa_last_error();
    const PlanOwner owner(rig);
    EXPECT_EQ(run(owner.plan, rig), PASA_OK) << "run clamps: " << pasa_last_error();
  }
  for (const std::int32_t length : {-1, Rig::kWidth + 1}) {
    Rig rig(kDs, kDs);
    rig.make_rectangular(rig.problem.extra, true);
    static_cast<std::int32_t*>(rig.problem.extra.lengths.data)[2] = length;
    EXPECT_EQ(pasa_validate(&rig.problem, nullptr), PASA_ERROR_VALUE);
    EXPECT_TRUE(blames(pasa_last_error(), PASA_ERROR_VALUE, "extra_lengths")) << pasa_last_error();
  }
}

TEST(Validate, CountsSkippedIndices) {
  Rig rig(kDs, kDs);
  const std::int32_t main[] = {0, -1, Rig::kSlots, 19, std::numeric_limits<std::int32_t>::min(), 3};
  std::memcpy(rig.problem.main.indices.data, main, sizeof main);
  static_cast<std::int32_t*>(rig.problem.extra.indices.data)[0] = std::numeric_limits<std::int32_t>::max();
  std::int64_t skipped = -1;
  EXPECT_EQ(pasa_validate(&rig.problem, &skipped), PASA_OK) << pasa_last_error();
  EXPECT_EQ(skipped, 4);
}

TEST(Validate, LooksAtSharedListsOnce) {
  Rig rig(kBf16);
  rig.share_list();
  rig.problem.main.indices.shape[0] = 4;
  const std::int32_t indices[] = {-1, 5, Rig::kSlots, 3}, indptr[] = {0, 4};
  std::memcpy(rig.problem.main.indices.data, indices, sizeof indices);
  std::memcpy(rig.problem.main.indptr.data, indptr, sizeof indptr);
  std::int64_t skipped = -1;
  EXPECT_EQ(pasa_validate(&rig.problem, &skipped), PASA_OK) << pasa_last_error();
  EXPECT_EQ(skipped, 2);
  static_cast<std::int32_t*>(rig.problem.main.indptr.data)[1] = 3;
  EXPECT_EQ(pasa_validate(&rig.problem, nullptr), PASA_ERROR_VALUE);
  EXPECT_TRUE(blames(pasa_last_error(), PASA_ERROR_VALUE, "kv_indptr")) << pasa_last_error();
}

TEST(Lists, RowRangeClampsWhatTheDeviceMayHold) {
  const std::vector<std::int32_t> entries(40);
  const std::int32_t indptr[] = {-5, 3, 1, 100};
  Source ragged{.indices = entries.data(), .indptr = indptr, .nnz = 8};
  EXPECT_EQ(row_range(ragged, 0).count, 3);
  EXPECT_EQ(row_range(ragged, 1).count, 0);
  EXPECT_EQ(row_range(ragged, 2).count, 7);
  const std::int32_t lengths[] = {-1, 0, 4, 9};
  Source rectangular{.indices = entries.data(), .lengths = lengths, .width = 6, .index_stride = 10};
  EXPECT_EQ(row_range(rectangular, 0).count, 0);
  EXPECT_EQ(row_range(rectangular, 2).count, 4);
  EXPECT_EQ(row_range(rectangular, 3).count, 6);
}

// Query p of n sees length - (n - 1 - p) entries, never fewer than none.
TEST(Lists, RowsThatShareAListAreCutCausally) {
  const std::vector<std::int32_t> entries(40);
  const auto counts = [](const Source& source, int rows) {
    std::vector<std::int64_t> result;
    for (int t = 0; t < rows; ++t) result.push_back(row_range(source, t).count);
    return result;
  };
  const std::int32_t indptr[] = {0, 5, 5, 7, 40};
  const Source ragged{.indices = entries.data(), .indptr = indptr, .queries_per_list = 4, .nnz = 40};
  EXPECT_EQ(counts(ragged, 16), (std::vector<std::int64_t>{2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 1, 2, 30, 31, 32, 33}));
  EXPECT_EQ(row_range(ragged, 3).data, entries.data());
  EXPECT_EQ(row_range(ragged, 12).data, entries.data() + 7);
  const std::int32_t lengths[] = {-1, 3, 9};
  const Source wide{
      .indices = entries.data(), .lengths = lengths, .queries_per_list = 2, .width = 6, .index_stride = 10};
  EXPECT_EQ(counts(wide, 6), (std::vector<std::int64_t>{0, 0, 2, 3, 5, 6}));
  EXPECT_EQ(row_range(wide, 4).data, entries.data() + 20);
}

TEST(Lists, SplitsAreTheWorkedExamples) {
  const std::vector<std::int32_t> entries(10);
  const auto counts = [&](std::int64_t length, int splits) {
    std::vector<std::int64_t> result;
    for (int i = 0; i < splits; ++i) result.push_back(split_range({entries.data(), length}, i, splits).count);
    return result;
  };
  EXPECT_EQ(counts(10, 4), (std::vector<std::int64_t>{3, 3, 3, 1}));
  EXPECT_EQ(counts(5, 4), (std::vector<std::int64_t>{2, 2, 1, 0}));
  EXPECT_EQ(counts(0, 3), (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(counts(2, 256)[1], 1);
}

// pasa_reduce has arguments of its own.
struct ReduceRig {
  std::vector<float> acc = std::vector<float>(2 * 3 * 2 * 512), m = std::vector<float>(12), l = std::vector<float>(12);
  std::vector<float> sink = std::vector<float>(2), out = std::vector<float>(2 * 2 * 512, 7.0f);
  pasa_reduce_problem problem{};
  ReduceRig() {
    problem.struct_size = sizeof problem;
    problem.acc = dense(acc.data(), PASA_F32, {2, 3, 2, 512});
    problem.m = dense(m.data(), PASA_F32, {2, 3, 2});
    problem.l = dense(l.data(), PASA_F32, {2, 3, 2});
    problem.attn_sink = dense(sink.data(), PASA_F32, {2});
    problem.out = dense(out.data(), PASA_F32, {2, 2, 512});
  }
};

TEST(Reduce, RefusesEachFault) {
  struct {
    pasa_status status;
    const char* argument;
    void (*spoil)(pasa_reduce_problem&);
  } const rows[] = {
      {PASA_ERROR_DEVICE, "m", [](pasa_reduce_problem& p) { p.m.device = PASA_CUDA; }},
      {PASA_ERROR_DTYPE, "acc", [](pasa_reduce_problem& p) { p.acc.dtype = PASA_BF16; }},
      {PASA_ERROR_DTYPE, "out", [](pasa_reduce_problem& p) { p.out.dtype = PASA_I32; }},
      {PASA_ERROR_RANK, "l", [](pasa_reduce_problem& p) { p.l.rank = 2; }},
      {PASA_ERROR_SHAPE, "l", [](pasa_reduce_problem& p) { p.l.shape[1] = 2; }},
      {PASA_ERROR_SHAPE, "acc", [](pasa_reduce_problem& p) { p.acc.shape[3] = 256; }},
      {PASA_ERROR_SHAPE, "out", [](pasa_reduce_problem& p) { p.out.shape[0] = 1; }},
      {PASA_ERROR_SHAPE, "attn_sink", [](pasa_reduce_problem& p) { p.attn_sink.shape[0] = 1; }},
      {PASA_ERROR_STRIDE, "m", [](pasa_reduce_problem& p) { p.m.stride[0] = 7; }},
      {PASA_ERROR_ALIGNMENT, "acc", [](pasa_reduce_problem& p) { shift(p.acc, 8); }},
      {PASA_ERROR_ALIGNMENT, "m", [](pasa_reduce_problem& p) { shift(p.m, 2); }},
      {PASA_ERROR_COMBINATION, "acc", [](pasa_reduce_problem& p) { p.acc.data = nullptr; }},
  };
  for (const auto& row : rows) {
    ReduceRig rig;
    row.spoil(rig.problem);
    EXPECT_EQ(pasa_reduce(&rig.problem, nullptr), row.status) << pasa_last_error();
    EXPECT_TRUE(blames(pasa_last_error(), row.status, row.argument)) << pasa_last_error();
    for (const float value : rig.out) ASSERT_EQ(value, 7.0f);
  }
}

TEST(Kernels, InfoAnswersBeforeServing) {
  Rig rig(kDs);
  ASSERT_GE(pasa_kernel_count(), 2);
  bool accepted = false;
  for (std::int32_t i = 0; i < pasa_kernel_count(); ++i) {
    pasa_kernel_info info{};
    info.struct_size = sizeof info;
    ASSERT_EQ(pasa_get_kernel_info(i, &rig.problem, &info), PASA_OK) << pasa_last_error();
    EXPECT_EQ(info.accepts == 0, info.reason[0] != '\0') << info.name;
    EXPECT_TRUE(info.accepts == 0 || info.available != 0) << info.name;
    if (info.accepts != 0 && !accepted) {  // the first that accepts is the one chosen
      const PlanOwner owner(rig);
      EXPECT_STREQ(pasa_plan_kernel(owner.plan), info.name);
      accepted = true;
    }
  }
  EXPECT_TRUE(accepted);
  pasa_kernel_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(pasa_get_kernel_info(pasa_kernel_count(), nullptr, &info), PASA_ERROR_RANGE);
  EXPECT_EQ(pasa_get_kernel_info(-1, nullptr, &info), PASA_ERROR_RANGE);
}

TEST(Kernels, TheLastErrorBelongsToItsThread) {
  Rig rig(kDs);
  rig.problem.kv_splits = -1;
  pasa_plan* plan = nullptr;
  EXPECT_EQ(pasa_plan_create(&rig.problem, &plan), PASA_ERROR_RANGE);
  EXPECT_STREQ(pasa_status_name(PASA_ERROR_RANGE), "range");
  EXPECT_NE(std::string(pasa_last_error()).find("-1"), std::string::npos) << "the value found is named";
  EXPECT_NE(std::string(pasa_last_error()).find("256"), std::string::npos) << "and what is accepted";
}

}  // namespace
}  // namespace pasa
