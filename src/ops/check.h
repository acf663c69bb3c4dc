// From the C structs of ops.h to calls that the loops can trust: sizes known, strides legal, every address inside a tensor.
// check() throws Error on a user's mistake and reads no tensor data.
#pragma once

#include "core/tensor.h"
#include "ops/cache.h"
#include "ops/lists.h"
#include "ops/merge.h"
#include "pasa/ops.h"

namespace pasa::ops {

template <typename Call>
struct Checked {
  Call call;
  Place place;  // of all its tensors
};

Checked<CacheWrite> check(const pasa_cache_write_args& args);
Checked<CacheGather> check(const pasa_cache_gather_args& args);
Checked<Slots> check(const pasa_slots_args& args);
Checked<TokenCounts> check(const pasa_token_counts_args& args);
Checked<List<FromDense>> check(const pasa_list_dense_args& args);
Checked<List<FromTopk>> check(const pasa_list_topk_args& args);
Checked<List<Combine>> check(const pasa_list_combine_args& args);
Checked<List<Consecutive>> check(const pasa_list_compressed_args& args);
Checked<List<Consecutive>> check(const pasa_list_window_args& args);
Checked<Merge> check(const pasa_merge_args& args);

}  // namespace pasa::ops
