// The operations of ops.h in C++20: argument structs that start zeroed with struct_size set, and exceptions.
//
//     pasa::CacheWrite w;
//     w.cache = {.format = PASA_KV_FP8_DS_MLA, .kv = pasa::tensor(cache.data(), PASA_U8, {blocks, 64, 584})};
//     w.k = pasa::tensor(k.data(), PASA_BF16, {n, 512});
//     w.slot_mapping = pasa::tensor(slots.data(), PASA_I64, {n});
//     w();  // or w(stream)
#ifndef PASA_OPS_HPP
#define PASA_OPS_HPP

#include "pasa/ops.h"
#include "pasa/pasa.hpp"

namespace pasa {

// The arguments of one operation, and the operation.
template <typename Args, pasa_status (*Function)(const Args*, pasa_stream)>
struct Operation : Args {
  Operation() : Args{} { this->struct_size = sizeof(Args); }
  void operator()(pasa_stream stream = nullptr) const { check(Function(this, stream)); }
};

using CacheWrite = Operation<pasa_cache_write_args, pasa_cache_write>;
using CacheGather = Operation<pasa_cache_gather_args, pasa_cache_gather>;
using Slots = Operation<pasa_slots_args, pasa_slots>;
using TokenCounts = Operation<pasa_token_counts_args, pasa_token_counts>;
using ListDense = Operation<pasa_list_dense_args, pasa_list_dense>;
using ListTopk = Operation<pasa_list_topk_args, pasa_list_topk>;
using ListCombine = Operation<pasa_list_combine_args, pasa_list_combine>;
using ListCompressed = Operation<pasa_list_compressed_args, pasa_list_compressed>;
using ListWindow = Operation<pasa_list_window_args, pasa_list_window>;
using Merge = Operation<pasa_merge_args, pasa_merge>;

}  // namespace pasa

#endif
