// Every refusal: the category, the argument it names, and that nothing was written. Rows B1-B6 and C1-C4 of the project's list
// of preconditions, each argument of each operation that can break them.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/ops/model.h"

namespace pasa::test {
namespace {

// A legal call of every operation over shared memory: T = 4 rows, R = 2 requests. Tests spoil one thing.
struct Calls {
  std::vector<std::uint8_t> pool = std::vector<std::uint8_t>(1 << 16),
                            poisoned = std::vector<std::uint8_t>(1 << 20, 0xa5);
  std::vector<std::uint16_t> words = std::vector<std::uint16_t>(1 << 16);
  std::vector<std::int64_t> wide = std::vector<std::int64_t>(256);
  std::vector<std::int32_t> ints = std::vector<std::int32_t>(4096, 1);
  std::vector<float> floats = std::vector<float>(4 * 2 * 512);
  pasa_cache_write_args write = make<pasa_cache_write_args>();
  pasa_cache_gather_args by_slot = make<pasa_cache_gather_args>(), by_sequence = make<pasa_cache_gather_args>();
  pasa_slots_args slots = make<pasa_slots_args>();
  pasa_token_counts_args counts = make<pasa_token_counts_args>();
  pasa_list_dense_args packed = make<pasa_list_dense_args>();
  pasa_list_topk_args topk = make<pasa_list_topk_args>();
  pasa_list_combine_args combine = make<pasa_list_combine_args>();
  pasa_list_compressed_args compressed = make<pasa_list_compressed_args>();
  pasa_list_window_args window = make<pasa_list_window_args>();
  pasa_merge_args merge = make<pasa_merge_args>();

  pasa_tensor i32(std::initializer_list<std::int64_t> shape) { return dense(ints.data(), PASA_I32, shape); }
  pasa_tensor output(pasa_dtype dtype, std::initializer_list<std::int64_t> shape) {
    return dense(poisoned.data() + 4096 * outputs++ * 8, dtype, shape);
  }
  pasa_lists lists(std::int64_t rows, std::int64_t longest) {
    return {output(PASA_I32, {rows * longest}), output(PASA_I32, {rows + 1}), output(PASA_I32, {rows})};
  }
  int outputs = 0;

  Calls() {
    const pasa_cache ds_mla = {.format = PASA_KV_FP8_DS_MLA,
                               .kv = dense(poisoned.data() + (1 << 19), PASA_U8, {3, 4, 584})};
    const pasa_paging paging = {.block_table = i32({2, 5}), .block_size = 4};
    const pasa_queries queries = {dense(wide.data(), PASA_I64, {4}), i32({4}), dense(pool.data(), PASA_U8, {4})};
    write.cache = ds_mla;
    write.k = dense(words.data(), PASA_BF16, {5, 512});
    write.slot_mapping = dense(wide.data(), PASA_I64, {4});
    by_slot.cache = by_sequence.cache = ds_mla;
    by_slot.cache.kv.data = by_sequence.cache.kv.data = pool.data();
    by_slot.out = output(PASA_BF16, {4, 512});
    by_slot.slots = dense(wide.data(), PASA_I64, {4});
    by_sequence.out = output(PASA_BF16, {2, 6, 512});
    by_sequence.seq_lens = by_sequence.gather_lens = i32({2});
    by_sequence.block_table = i32({2, 5});
    slots.positions = dense(wide.data(), PASA_I64, {4});
    slots.token_to_req = i32({4});
    slots.paging = paging;
    slots.slots = output(PASA_I64, {4});
    counts.positions = dense(wide.data(), PASA_I64, {4});
    counts.window = 8;
    counts.compress_ratio = 4;
    counts.topk = 16;
    counts.n_window = output(PASA_I32, {4});
    counts.n_compressed = output(PASA_I32, {4});
    packed.indices = i32({4, 7});
    packed.lengths = i32({4});
    packed.lists = lists(4, 7);
    topk.topk_indices = i32({4, 7});
    topk.token_to_req = i32({4});
    topk.is_valid = dense(pool.data(), PASA_U8, {4});
    topk.paging = paging;
    topk.lists = lists(4, 7);
    combine.topk_indices = i32({4, 7});
    combine.query_start_loc = i32({3});
    combine.seq_lens = combine.gather_lens = i32({2});
    combine.window = 3;
    combine.ratio = 2;
    combine.topk = 5;
    combine.rows_per_request = 20;
    combine.compressed_rows = 10;
    combine.lists = lists(4, 8);
    compressed.queries = window.queries = queries;
    compressed.paging = window.paging = paging;
    compressed.ratio = 128;
    compressed.width = 9;
    compressed.lists = lists(4, 9);
    window.window = 6;
    window.lists = lists(4, 6);
    merge.out_a = dense(floats.data(), PASA_F32, {4, 2, 512});
    merge.out_b = dense(words.data(), PASA_F16, {4, 2, 512});
    merge.lse_a = merge.lse_b = dense(floats.data(), PASA_F32, {4, 2});
    merge.attn_sink = dense(floats.data(), PASA_F32, {2});
    merge.out = output(PASA_BF16, {4, 2, 512});
    merge.lse = output(PASA_F32, {4, 2});
  }

  bool untouched() const {
    return std::all_of(poisoned.begin(), poisoned.end(), [](std::uint8_t byte) { return byte == 0xa5; });
  }
};

pasa_status run(Calls& c, int which) {
  switch (which) {
    case 0:
      return pasa_cache_write(&c.write, nullptr);
    case 1:
      return pasa_cache_gather(&c.by_slot, nullptr);
    case 2:
      return pasa_cache_gather(&c.by_sequence, nullptr);
    case 3:
      return pasa_slots(&c.slots, nullptr);
    case 4:
      return pasa_token_counts(&c.counts, nullptr);
    case 5:
      return pasa_list_dense(&c.packed, nullptr);
    case 6:
      return pasa_list_topk(&c.topk, nullptr);
    case 7:
      return pasa_list_combine(&c.combine, nullptr);
    case 8:
      return pasa_list_compressed(&c.compressed, nullptr);
    case 9:
      return pasa_list_window(&c.window, nullptr);
    default:
      return pasa_merge(&c.merge, nullptr);
  }
}

TEST(Refusals, TheRigIsLegal) {
  for (int which = 0; which <= 10; ++which) {
    Calls c;
    EXPECT_EQ(run(c, which), PASA_OK) << which << ": " << pasa_last_error();
    EXPECT_FALSE(c.untouched()) << which;
  }
}

struct Refusal {
  const char* row;  // of the list of preconditions
  int which;        // run()'s number
  pasa_status status;
  std::string argument;
  std::function<void(Calls&)> spoil;
};

void refuse(const std::vector<Refusal>& refusals) {
  for (const Refusal& r : refusals) {
    Calls c;
    r.spoil(c);
    EXPECT_EQ(run(c, r.which), r.status) << r.row << " " << r.argument << ": " << pasa_last_error();
    const std::string text = pasa_last_error(),
                      prefix = std::string(pasa_status_name(r.status)) + ": " + r.argument + " ";
    EXPECT_TRUE(text.starts_with(prefix)) << r.row << ": '" << text << "' should start with '" << prefix << "'";
    EXPECT_NE(text.find("expected"), std::string::npos) << text;
    EXPECT_TRUE(c.untouched()) << r.row << " " << r.argument;
  }
}

TEST(Refusals, IndexArrays) {
  refuse({
      {"B1", 3, PASA_ERROR_DTYPE, "positions", [](Calls& c) { c.slots.positions.dtype = PASA_F32; }},
      {"B1", 3, PASA_ERROR_DTYPE, "token_to_req", [](Calls& c) { c.slots.token_to_req.dtype = PASA_I64; }},
      {"B1", 3, PASA_ERROR_DTYPE, "block_table", [](Calls& c) { c.slots.paging.block_table.dtype = PASA_I64; }},
      {"B1", 3, PASA_ERROR_STRIDE, "block_table", [](Calls& c) { c.slots.paging.block_table.stride[1] = 2; }},
      {"B1", 3, PASA_ERROR_DTYPE, "slots", [](Calls& c) { c.slots.slots.dtype = PASA_BF16; }},
      {"B1", 4, PASA_ERROR_DTYPE, "n_window", [](Calls& c) { c.counts.n_window.dtype = PASA_I64; }},
      {"B1", 4, PASA_ERROR_STRIDE, "positions", [](Calls& c) { c.counts.positions.stride[0] = 2; }},
      {"B1", 5, PASA_ERROR_DTYPE, "indices", [](Calls& c) { c.packed.indices.dtype = PASA_I64; }},
      {"B1", 5, PASA_ERROR_STRIDE, "indices", [](Calls& c) { c.packed.indices.stride[0] = 8; }},
      {"B1", 5, PASA_ERROR_DTYPE, "lengths", [](Calls& c) { c.packed.lengths.dtype = PASA_I64; }},
      {"B1", 5, PASA_ERROR_DTYPE, "lists.indices", [](Calls& c) { c.packed.lists.indices.dtype = PASA_I64; }},
      {"B1", 5, PASA_ERROR_DTYPE, "lists.indptr", [](Calls& c) { c.packed.lists.indptr.dtype = PASA_I64; }},
      {"B1", 5, PASA_ERROR_STRIDE, "lists.lengths", [](Calls& c) { c.packed.lists.lengths.stride[0] = 2; }},
      {"B1", 6, PASA_ERROR_DTYPE, "topk_indices", [](Calls& c) { c.topk.topk_indices.dtype = PASA_I64; }},
      {"B1", 6, PASA_ERROR_DTYPE, "is_valid", [](Calls& c) { c.topk.is_valid.dtype = PASA_I32; }},
      {"B1", 7, PASA_ERROR_DTYPE, "query_start_loc", [](Calls& c) { c.combine.query_start_loc.dtype = PASA_I64; }},
      {"B1", 7, PASA_ERROR_STRIDE, "seq_lens", [](Calls& c) { c.combine.seq_lens.stride[0] = 2; }},
      {"B1", 7, PASA_ERROR_DTYPE, "gather_lens", [](Calls& c) { c.combine.gather_lens.dtype = PASA_I64; }},
      {"B1", 8, PASA_ERROR_DTYPE, "positions", [](Calls& c) { c.compressed.queries.positions.dtype = PASA_U8; }},
      {"B1", 9, PASA_ERROR_STRIDE, "is_valid", [](Calls& c) { c.window.queries.is_valid.stride[0] = 3; }},
      {"B1", 9, PASA_ERROR_RANK, "positions", [](Calls& c) { c.window.queries.positions.rank = 2; }},
      {"B1", 9, PASA_ERROR_RANK, "block_table", [](Calls& c) { c.window.paging.block_table.rank = 3; }},
      {"B2", 3, PASA_ERROR_SHAPE, "token_to_req", [](Calls& c) { c.slots.token_to_req.shape[0] = 3; }},
      {"B2", 3, PASA_ERROR_SHAPE, "slots", [](Calls& c) { c.slots.slots.shape[0] = 3; }},
      {"B2", 3, PASA_ERROR_SHAPE, "block_table", [](Calls& c) { c.slots.token_to_req = pasa_tensor{}; }},
      {"B2", 4, PASA_ERROR_SHAPE, "n_compressed", [](Calls& c) { c.counts.n_compressed.shape[0] = 5; }},
      {"B2", 5, PASA_ERROR_SHAPE, "lengths", [](Calls& c) { c.packed.lengths.shape[0] = 5; }},
      {"B2", 5, PASA_ERROR_SHAPE, "lists.indptr", [](Calls& c) { c.packed.lists.indptr.shape[0] = 4; }},
      {"B2", 5, PASA_ERROR_SHAPE, "lists.lengths", [](Calls& c) { c.packed.lists.lengths.shape[0] = 5; }},
      {"B2", 6, PASA_ERROR_SHAPE, "token_to_req", [](Calls& c) { c.topk.token_to_req.shape[0] = 5; }},
      {"B2", 6, PASA_ERROR_SHAPE, "is_valid", [](Calls& c) { c.topk.is_valid.shape[0] = 5; }},
      {"B2", 7, PASA_ERROR_SHAPE, "gather_lens", [](Calls& c) { c.combine.gather_lens.shape[0] = 3; }},
      {"B2", 7, PASA_ERROR_SHAPE, "query_start_loc", [](Calls& c) { c.combine.query_start_loc.shape[0] = 2; }},
      {"B2", 2, PASA_ERROR_SHAPE, "seq_lens", [](Calls& c) { c.by_sequence.seq_lens.shape[0] = 3; }},
      {"B2", 2, PASA_ERROR_SHAPE, "gather_lens", [](Calls& c) { c.by_sequence.gather_lens.shape[0] = 3; }},
      {"B2", 2, PASA_ERROR_SHAPE, "block_table", [](Calls& c) { c.by_sequence.block_table.shape[0] = 3; }},
      {"B3", 5, PASA_ERROR_SHAPE, "lists.indices", [](Calls& c) { c.packed.lists.indices.shape[0] = 27; }},
      {"B3", 6, PASA_ERROR_SHAPE, "lists.indices", [](Calls& c) { c.topk.lists.indices.shape[0] = 27; }},
      {"B3", 7, PASA_ERROR_SHAPE, "lists.indices", [](Calls& c) { c.combine.lists.indices.shape[0] = 31; }},
      {"B3", 8, PASA_ERROR_SHAPE, "lists.indices", [](Calls& c) { c.compressed.lists.indices.shape[0] = 35; }},
      {"B3", 9, PASA_ERROR_SHAPE, "lists.indices",
       [](Calls& c) {
         c.window.lists = {c.output(PASA_I32, {4, 5}), {}, {}};
       }},
      {"B4", 3, PASA_ERROR_RANGE, "block_size", [](Calls& c) { c.slots.paging.block_size = 0; }},
      {"B4", 3, PASA_ERROR_RANGE, "ratio", [](Calls& c) { c.slots.ratio = -1; }},
      {"B4", 3, PASA_ERROR_RANGE, "ring", [](Calls& c) { c.slots.paging.ring = 2; }},
      {"B4", 4, PASA_ERROR_RANGE, "window", [](Calls& c) { c.counts.window = 0; }},
      {"B4", 4, PASA_ERROR_RANGE, "topk", [](Calls& c) { c.counts.topk = -1; }},
      {"B4", 5, PASA_ERROR_RANGE, "num_rows", [](Calls& c) { c.packed.num_rows = -1, c.packed.has_num_rows = 1; }},
      {"B4", 6, PASA_ERROR_RANGE, "block_size", [](Calls& c) { c.topk.paging.block_size = std::int64_t{1} << 32; }},
      {"B4", 7, PASA_ERROR_RANGE, "window", [](Calls& c) { c.combine.window = 0; }},
      {"B4", 7, PASA_ERROR_RANGE, "ratio", [](Calls& c) { c.combine.ratio = 0; }},
      {"B4", 7, PASA_ERROR_RANGE, "topk", [](Calls& c) { c.combine.topk = -1; }},
      {"B4", 7, PASA_ERROR_RANGE, "compressed_rows", [](Calls& c) { c.combine.compressed_rows = -1; }},
      {"B4", 7, PASA_ERROR_RANGE, "rows_per_request", [](Calls& c) { c.combine.rows_per_request = 9; }},
      {"B4", 8, PASA_ERROR_RANGE, "ratio", [](Calls& c) { c.compressed.ratio = 0; }},
      {"B4", 8, PASA_ERROR_RANGE, "width", [](Calls& c) { c.compressed.width = -1; }},
      {"B4", 9, PASA_ERROR_RANGE, "window", [](Calls& c) { c.window.window = 0; }},
      {"B4", 9, PASA_ERROR_RANGE, "base", [](Calls& c) { c.window.paging.base = -1; }},
      {"B5", 3, PASA_ERROR_OVERFLOW, "num_blocks", [](Calls& c) { c.slots.paging.num_blocks = std::int64_t{1} << 29; }},
      {"B5", 7, PASA_ERROR_OVERFLOW, "rows_per_request",
       [](Calls& c) { c.combine.rows_per_request = std::int64_t{1} << 30; }},
      {"B5", 5, PASA_ERROR_OVERFLOW, "lists.indices",
       [](Calls& c) {
         c.packed.indices = dense(c.ints.data(), PASA_I32, {4, std::int64_t{1} << 30});
         c.packed.lists.indices.shape[0] = std::int64_t{1} << 32;
       }},
      {"B6", 4, PASA_ERROR_RANGE, "compress_ratio", [](Calls& c) { c.counts.compress_ratio = 2; }},
  });
}

TEST(Refusals, CombinationsAndPlaces) {
  refuse({
      {"", 5, PASA_ERROR_COMBINATION, "lists.indptr", [](Calls& c) { c.packed.lists.indptr = pasa_tensor{}; }},
      {"", 5, PASA_ERROR_COMBINATION, "lists.indptr",
       [](Calls& c) {
         c.packed.lists.indices = c.output(PASA_I32, {4, 7});
       }},
      {"", 6, PASA_ERROR_COMBINATION, "lists.lengths", [](Calls& c) { c.topk.lists.lengths = pasa_tensor{}; }},
      {"", 6, PASA_ERROR_COMBINATION, "topk_indices", [](Calls& c) { c.topk.topk_indices = pasa_tensor{}; }},
      {"", 7, PASA_ERROR_COMBINATION, "topk_indices", [](Calls& c) { c.combine.topk_indices = pasa_tensor{}; }},
      {"", 9, PASA_ERROR_COMBINATION, "block_table", [](Calls& c) { c.window.paging.block_table = pasa_tensor{}; }},
      {"", 1, PASA_ERROR_COMBINATION, "seq_lens", [](Calls& c) { c.by_slot.seq_lens = c.i32({4}); }},
      {"", 1, PASA_ERROR_COMBINATION, "slots", [](Calls& c) { c.by_slot.slots.data = nullptr; }},
      {"", 2, PASA_ERROR_COMBINATION, "block_table", [](Calls& c) { c.by_sequence.block_table = pasa_tensor{}; }},
      {"", 9, PASA_ERROR_COMBINATION, "struct_size", [](Calls& c) { c.window.struct_size = 8; }},
      {"", 0, PASA_ERROR_DEVICE, "slot_mapping", [](Calls& c) { c.write.slot_mapping.device = PASA_CUDA; }},
      {"", 8, PASA_ERROR_DEVICE, "lists.indices", [](Calls& c) { c.compressed.lists.indices.device = PASA_HIP; }},
      {"", 5, PASA_ERROR_STRIDE, "lists.indices",
       [](Calls& c) {
         c.packed.lists = {c.output(PASA_I32, {4, 7}), {}, {}}, c.packed.lists.indices.stride[0] = 6;
       }},
      {"", 10, PASA_ERROR_DTYPE, "out_b", [](Calls& c) { c.merge.out_b.dtype = PASA_I32; }},
      {"", 10, PASA_ERROR_SHAPE, "out_b", [](Calls& c) { c.merge.out_b.shape[1] = 3; }},
      {"", 10, PASA_ERROR_SHAPE, "lse_a", [](Calls& c) { c.merge.lse_a.shape[1] = 3; }},
      {"", 10, PASA_ERROR_SHAPE, "attn_sink", [](Calls& c) { c.merge.attn_sink.shape[0] = 3; }},
      {"", 10, PASA_ERROR_STRIDE, "out", [](Calls& c) { c.merge.out.stride[1] = 500; }},
      {"", 10, PASA_ERROR_STRIDE, "out_a", [](Calls& c) { c.merge.out_a.stride[2] = 2; }},
  });
  EXPECT_EQ(pasa_list_window(nullptr, nullptr), PASA_ERROR_COMBINATION);
}

// A whole call on a device that this build or machine does not have.
TEST(Refusals, OtherDevices) {
  Calls c;
  for (pasa_tensor* t : {&c.counts.positions, &c.counts.n_window, &c.counts.n_compressed}) t->device = PASA_HIP;
  EXPECT_EQ(pasa_token_counts(&c.counts, nullptr), PASA_ERROR_UNSUPPORTED) << pasa_last_error();
  EXPECT_TRUE(c.untouched());
}

TEST(Refusals, Caches) {
  refuse({
      {"C1", 0, PASA_ERROR_DTYPE, "k", [](Calls& c) { c.write.k.dtype = PASA_F16; }},
      {"C1", 0, PASA_ERROR_SHAPE, "k", [](Calls& c) { c.write.k.shape[1] = 576; }},
      {"C1", 0, PASA_ERROR_SHAPE, "slot_mapping", [](Calls& c) { c.write.slot_mapping.shape[0] = 6; }},
      {"C1", 0, PASA_ERROR_STRIDE, "k", [](Calls& c) { c.write.k.stride[1] = 2; }},
      {"B1", 0, PASA_ERROR_DTYPE, "slot_mapping", [](Calls& c) { c.write.slot_mapping.dtype = PASA_F32; }},
      {"C2", 0, PASA_ERROR_DTYPE, "kv", [](Calls& c) { c.write.cache.kv.dtype = PASA_BF16; }},
      {"C2", 0, PASA_ERROR_SHAPE, "kv", [](Calls& c) { c.write.cache.kv.shape[2] = 656; }},
      {"C2", 0, PASA_ERROR_STRIDE, "kv", [](Calls& c) { c.write.cache.kv.stride[0] = 4 * 584 - 8; }},
      {"C2", 0, PASA_ERROR_STRIDE, "kv", [](Calls& c) { c.write.cache.kv.stride[1] = 592; }},
      {"C2", 0, PASA_ERROR_ALIGNMENT, "kv",
       [](Calls& c) { c.write.cache.kv.data = static_cast<char*>(c.write.cache.kv.data) + 4; }},
      {"C2", 0, PASA_ERROR_ALIGNMENT, "kv", [](Calls& c) { c.write.cache.kv.stride[0] += 4; }},
      {"C2", 0, PASA_ERROR_SHAPE, "block_size", [](Calls& c) { c.write.cache.block_size = 5; }},
      {"C2", 0, PASA_ERROR_RANGE, "block_size",
       [](Calls& c) {
         c.write.cache.kv = dense(c.write.cache.kv.data, PASA_U8, {3, 4 * 584});
       }},
      {"C2", 0, PASA_ERROR_SHAPE, "kv",
       [](Calls& c) {
         c.write.cache.kv = dense(c.write.cache.kv.data, PASA_U8, {3, 4 * 584 - 8});
         c.write.cache.block_size = 4;
       }},
      {"C2", 0, PASA_ERROR_RANGE, "format", [](Calls& c) { c.write.cache.format = PASA_KV_NONE; }},
      {"C2", 0, PASA_ERROR_OVERFLOW, "kv", [](Calls& c) { c.write.cache.kv.shape[0] = std::int64_t{1} << 30; }},
      {"C2", 0, PASA_ERROR_COMBINATION, "kv_scales",
       [](Calls& c) {
         c.write.cache.format = PASA_KV_FP8_E4M3FN;
         c.write.cache.kv = dense(c.pool.data(), PASA_U8, {12, 512});
       }},
      {"C2", 0, PASA_ERROR_COMBINATION, "kv_scales",
       [](Calls& c) {
         c.write.cache.kv_scales = dense(c.floats.data(), PASA_F32, {3, 8});
       }},
      {"C2", 0, PASA_ERROR_SHAPE, "kv_scales",
       [](Calls& c) {
         c.write.cache.format = PASA_KV_FP8_E4M3FN;
         c.write.cache.kv = dense(c.pool.data(), PASA_U8, {12, 512});
         c.write.cache.kv_scales = dense(c.floats.data(), PASA_F32, {12, 4});
       }},
      {"C3", 0, PASA_ERROR_UNSUPPORTED, "kv", [](Calls& c) { c.write.cache.kv.dtype = PASA_F8_E4M3FNUZ; }},
      {"C4", 1, PASA_ERROR_DTYPE, "out", [](Calls& c) { c.by_slot.out.dtype = PASA_F32; }},
      {"C4", 1, PASA_ERROR_SHAPE, "out", [](Calls& c) { c.by_slot.out.shape[0] = 5; }},
      {"C4", 2, PASA_ERROR_SHAPE, "out", [](Calls& c) { c.by_sequence.out.shape[2] = 576; }},
      {"C4", 2, PASA_ERROR_RANK, "out", [](Calls& c) { c.by_sequence.out.rank = 2; }},
      {"C4", 2, PASA_ERROR_RANGE, "offset", [](Calls& c) { c.by_sequence.offset = -1; }},
      {"C4", 2, PASA_ERROR_RANGE, "offset", [](Calls& c) { c.by_sequence.offset = 7; }},
      {"C4", 1, PASA_ERROR_RANGE, "offset", [](Calls& c) { c.by_slot.offset = 1; }},
      {"C4", 2, PASA_ERROR_STRIDE, "out", [](Calls& c) { c.by_sequence.out.stride[1] = 500; }},
      {"", 0, PASA_ERROR_RANGE, "flags", [](Calls& c) { c.write.flags = 2; }},
      {"", 1, PASA_ERROR_RANGE, "flags", [](Calls& c) { c.by_slot.flags = PASA_SKIP_REDUCE; }},
  });
}

// Two mistakes: the one of the earlier category is reported, whichever argument it is in.
TEST(Refusals, ComeInOrder) {
  refuse({
      {"", 9, PASA_ERROR_DTYPE, "lists.lengths",
       [](Calls& c) {
         c.window.window = 0, c.window.queries.token_to_req.shape[0] = 9, c.window.lists.lengths.dtype = PASA_I64;
       }},
      {"", 9, PASA_ERROR_SHAPE, "token_to_req",
       [](Calls& c) { c.window.window = 0, c.window.queries.token_to_req.shape[0] = 9; }},
      {"", 9, PASA_ERROR_DEVICE, "lists.lengths",
       [](Calls& c) { c.window.queries.positions.dtype = PASA_F32, c.window.lists.lengths.device = PASA_CUDA; }},
  });
}

// Sizes that no memory has must not wrap into legal ones.
TEST(Refusals, AbsurdSizes) {
  for (const std::int64_t size : {INT64_MAX, INT64_MIN, std::int64_t{1} << 62, std::int64_t{-2}}) {
    for (int dimension = 0; dimension < 3; ++dimension) {
      Calls c;
      for (pasa_tensor* t : {&c.write.cache.kv, &c.by_sequence.out, &c.packed.indices, &c.topk.topk_indices,
                             &c.combine.lists.indices, &c.window.queries.positions, &c.merge.out_a}) {
        t->shape[dimension < t->rank ? dimension : 0] = size;
      }
      for (const int which : {0, 2, 5, 6, 7, 9, 10}) EXPECT_NE(run(c, which), PASA_OK) << which << " " << size;
      EXPECT_TRUE(c.untouched());
    }
  }
}

}  // namespace
}  // namespace pasa::test
