// Every operation on a GPU against the CPU, byte for byte: outputs, the gaps between their rows and everything around them.
// With --time [FILE [COMMIT]] also how long each takes, as JSON in the file: graph replay, over several copies of the data where
// it would otherwise stay in L2.
//
// A case is a function that lays its tensors out in an Arena. Run twice with the same seed it builds the same call in host
// and in device memory; afterwards the two arenas must hold the same bytes.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "harness/clock.h"
#include "pasa/ops.h"

namespace {

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::printf("CUDA: %s\n", cudaGetErrorString(status));
  std::exit(1);
}

// Memory of a case: contents are made in `shadow`, addresses are those of `base`.
class Arena {
 public:
  Arena(std::uint32_t seed, std::uint8_t* device_base) : random(seed), base_(device_base) { shadow.reserve(kCapacity); }

  // `bytes` from `offset` past a multiple of 256, canaries on both sides; returns where to fill them in.
  template <typename T>
  T* take(pasa_tensor& t, pasa_dtype dtype, std::initializer_list<std::int64_t> shape,
          std::initializer_list<std::int64_t> stride = {}, std::size_t offset = 0) {
    std::int64_t extent = 1, dense = 1;
    t = {};
    t.dtype = dtype;
    t.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), t.shape);
    for (int i = t.rank - 1; i >= 0; --i) {
      t.stride[i] = stride.size() ? stride.begin()[i] : dense;
      dense *= t.shape[i];
      extent += std::max<std::int64_t>(t.shape[i] - 1, 0) * t.stride[i];
    }
    const std::size_t begin = (shadow.size() + 511) / 256 * 256 + offset,
                      bytes = static_cast<std::size_t>(extent) * sizeof(T);
    if (begin + bytes + 256 > kCapacity) std::abort();
    shadow.resize(begin + bytes + 64, 0xa5);
    t.data = (base_ ? base_ : shadow.data()) + begin;
    t.device = base_ ? PASA_CUDA : PASA_CPU;
    return reinterpret_cast<T*>(shadow.data() + begin);
  }
  // Integers in [low, high], a few of them wild.
  void ints(pasa_tensor& t, std::initializer_list<std::int64_t> shape, std::int64_t low, std::int64_t high,
            int wild_percent = 3) {
    std::int32_t* to = take<std::int32_t>(t, PASA_I32, shape);
    const std::int64_t count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    constexpr std::int32_t kWild[] = {INT32_MIN, -123456, -1, 114514, 1919810, 2147480000, INT32_MAX};
    for (std::int64_t i = 0; i < count; ++i) {
      to[i] = in(1, 100) <= wild_percent ? kWild[in(0, 6)] : static_cast<std::int32_t>(in(low, high));
    }
  }
  std::int64_t in(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
  }
  void fill_random(void* to, std::size_t bytes) {
    auto* p = static_cast<std::uint8_t*>(to);
    for (std::size_t i = 0; i + 8 <= bytes; i += 8) {
      const std::uint64_t x = random();
      std::memcpy(p + i, &x, 8);
    }
  }

  static constexpr std::size_t kCapacity = std::size_t{400} << 20;
  std::vector<std::uint8_t> shadow;
  std::mt19937_64 random;

 private:
  std::uint8_t* base_;
};

using Call = std::function<pasa_status(pasa_stream)>;
using Build = std::function<Call(Arena&)>;

template <typename Args>
std::shared_ptr<Args> make() {
  auto args = std::make_shared<Args>();
  args->struct_size = sizeof(Args);
  return args;
}
template <typename Args>
Call call(std::shared_ptr<Args> args, pasa_status (*function)(const Args*, pasa_stream)) {
  return [args, function](pasa_stream stream) { return function(args.get(), stream); };
}

int failures = 0, compared = 0;
std::uint8_t* device_memory;

void run(const Call& call, pasa_stream stream, const std::string& name) {
  if (call(stream) == PASA_OK) return;
  std::printf("%s: %s\n", name.c_str(), pasa_last_error());
  ++failures;
}

void compare(const std::string& name, const Build& build) {
  const auto seed = static_cast<std::uint32_t>(++compared);
  Arena host(seed, nullptr), device(seed, device_memory);
  const Call on_host = build(host), on_device = build(device);
  if (host.shadow != device.shadow) std::printf("%s: the case is not deterministic\n", name.c_str()), ++failures;
  check(cudaMemcpy(device_memory, device.shadow.data(), device.shadow.size(), cudaMemcpyHostToDevice));
  run(on_host, nullptr, name);
  run(on_device, nullptr, name);
  check(cudaDeviceSynchronize());
  check(cudaMemcpy(device.shadow.data(), device_memory, device.shadow.size(), cudaMemcpyDeviceToHost));
  for (std::size_t i = 0; i < host.shadow.size(); ++i) {
    if (host.shadow[i] == device.shadow[i]) continue;
    std::printf("%s: byte %zu of %zu is %02x, expected %02x\n", name.c_str(), i, host.shadow.size(), device.shadow[i],
                host.shadow[i]);
    ++failures;
    return;
  }
}

// ---- cases

struct Format {
  const char* name;
  pasa_kv_format format;
  int dim, last;  // last dimension, in elements
  int element;    // bytes
  bool paged;
  std::uint32_t flags = 0;
};
const Format kFormats[] = {{"bf16", PASA_KV_BF16, 512, 512, 2, false},
                           {"bf16:576", PASA_KV_BF16, 576, 576, 2, false},
                           {"f16", PASA_KV_F16, 512, 512, 2, false},
                           {"fp8_e4m3fn", PASA_KV_FP8_E4M3FN, 512, 512, 1, false},
                           {"fp8_e4m3fnuz", PASA_KV_FP8_E4M3FNUZ, 512, 512, 1, false},
                           {"fp8_ds_mla", PASA_KV_FP8_DS_MLA, 512, 584, 1, true},
                           {"packed_bf16", PASA_KV_PACKED_BF16, 512, 512, 2, true},
                           {"fp8_v32", PASA_KV_FP8_V32, 576, 656, 1, true},
                           {"fp8_v32:pow2", PASA_KV_FP8_V32, 576, 656, 1, true, PASA_POWER_OF_TWO_SCALES}};
const Format& kDsMla = kFormats[5];

// padding: bytes behind each page; offset: of the base from a multiple of 256.
void lay_cache(Arena& a, const Format& f, pasa_cache& cache, std::int64_t blocks, std::int64_t page,
               std::int64_t padding, int offset, bool random) {
  cache = {};
  cache.format = f.format;
  const pasa_dtype dtype = f.element == 1 ? PASA_U8 : f.format == PASA_KV_F16 ? PASA_F16 : PASA_BF16;
  const std::int64_t tokens = f.paged ? page : 1, stride = tokens * f.last + padding / f.element;
  const auto place = static_cast<std::size_t>(offset);
  std::uint8_t* kv;
  if (f.paged) {
    kv = reinterpret_cast<std::uint8_t*>(
        f.element == 2 ? static_cast<void*>(
                             a.take<std::uint16_t>(cache.kv, dtype, {blocks, page, f.last}, {stride, f.last, 1}, place))
                       : a.take<std::uint8_t>(cache.kv, dtype, {blocks, page, f.last}, {stride, f.last, 1}, place));
  } else {
    kv = reinterpret_cast<std::uint8_t*>(
        f.element == 2
            ? static_cast<void*>(a.take<std::uint16_t>(cache.kv, dtype, {blocks, f.last}, {stride, 1}, place))
            : a.take<std::uint8_t>(cache.kv, dtype, {blocks, f.last}, {stride, 1}, place));
  }
  if (random) a.fill_random(kv, static_cast<std::size_t>((blocks - 1) * stride * f.element));
  if (f.format == PASA_KV_FP8_E4M3FN || f.format == PASA_KV_FP8_E4M3FNUZ) {
    auto* scales = a.take<float>(cache.kv_scales, PASA_F32, {blocks, 8}, {8 + padding, 1});
    if (random) a.fill_random(scales, static_cast<std::size_t>((blocks - 1) * (8 + padding)) * 4);
  }
}

void lay_keys(Arena& a, const Format& f, pasa_tensor& k, std::int64_t n, std::int64_t stride, bool special) {
  auto* to = a.take<std::uint16_t>(k, f.format == PASA_KV_F16 ? PASA_F16 : PASA_BF16, {n, f.dim}, {stride, 1});
  for (std::int64_t i = 0; i < n; ++i) {
    const bool any = special && i % 3 == 0;  // any bits: NaN, infinities, subnormals, huge ranges
    for (int d = 0; d < f.dim; ++d) {
      const std::uint64_t x = a.random();
      to[i * stride + d] = any ? static_cast<std::uint16_t>(x) : static_cast<std::uint16_t>((x & 0x81ff) | 0x3e00);
    }
  }
}

Build write_case(const Format& f, std::int64_t n, std::int64_t page, std::int64_t padding, int offset, bool special) {
  return [=, &f](Arena& a) {
    auto args = make<pasa_cache_write_args>();
    const std::int64_t blocks = 2 * n / page + 2, slots = f.paged ? blocks * page : blocks;
    lay_cache(a, f, args->cache, blocks, page, padding, offset, false);
    lay_keys(a, f, args->k, n, special ? f.dim + 3 : f.dim, special);
    std::vector<std::int64_t> order(static_cast<std::size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), a.random);
    auto* mapping = a.take<std::int64_t>(args->slot_mapping, PASA_I64, {n});
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t bad[] = {-1, slots, INT64_MIN, INT64_MAX, std::int64_t{1} << 32};
      mapping[i] = special && i % 11 == 5 ? bad[i % 5] : i < slots ? order[static_cast<std::size_t>(i)] : -1;
    }
    args->flags = f.flags;
    return call(args, pasa_cache_write);
  };
}

Build gather_slots_case(const Format& f, std::int64_t n, std::int64_t page, std::int64_t padding, int offset,
                        pasa_dtype out, bool nan_to_zero) {
  return [=, &f](Arena& a) {
    auto args = make<pasa_cache_gather_args>();
    const std::int64_t blocks = 300 / page + 2, slots = f.paged ? blocks * page : blocks;
    lay_cache(a, f, args->cache, blocks, page, padding, offset, true);
    a.take<std::uint16_t>(args->out, out, {n, f.dim}, {f.dim + padding / 2, 1}, static_cast<std::size_t>(offset * 2));
    a.ints(args->slots, {n}, -2, slots + 2);
    args->flags = nan_to_zero ? PASA_NAN_TO_ZERO : 0;
    return call(args, pasa_cache_gather);
  };
}

Build gather_sequences_case(const Format& f, std::int64_t requests, std::int64_t length, std::int64_t page,
                            bool special) {
  return [=, &f](Arena& a) {
    auto args = make<pasa_cache_gather_args>();
    const std::int64_t tokens = f.paged ? page : 1, columns = (length + tokens - 1) / tokens,
                       blocks = requests * columns;
    lay_cache(a, f, args->cache, blocks, page, f.format == PASA_KV_FP8_DS_MLA ? 64 : 0, 0, true);
    a.take<std::uint16_t>(args->out, PASA_BF16, {requests, length, f.dim});
    if (special) {
      a.ints(args->seq_lens, {requests}, -1, length + 3);
      a.ints(args->gather_lens, {requests}, -1, length + 3, 0);
      a.ints(args->block_table, {requests, columns}, 0, blocks - 1);
      args->offset = a.in(0, length / 2);
    } else {
      auto* seq = a.take<std::int32_t>(args->seq_lens, PASA_I32, {requests});
      std::fill(seq, seq + requests, static_cast<std::int32_t>(length));
      auto* table = a.take<std::int32_t>(args->block_table, PASA_I32, {requests, columns});
      std::iota(table, table + blocks, 0);
      std::shuffle(table, table + blocks, a.random);
    }
    return call(args, pasa_cache_gather);
  };
}

void lay_lists(Arena& a, pasa_lists& lists, std::int64_t rows, std::int64_t longest, bool ragged) {
  lists = {};
  if (ragged) {
    a.take<std::int32_t>(lists.indices, PASA_I32, {rows * longest});
    a.take<std::int32_t>(lists.indptr, PASA_I32, {rows + 1});
  } else {
    a.take<std::int32_t>(lists.indices, PASA_I32, {rows, longest + 3}, {longest + 5, 1});
  }
  a.take<std::int32_t>(lists.lengths, PASA_I32, {rows});
}

pasa_paging lay_paging(Arena& a, std::int64_t requests, std::int64_t columns, std::int64_t block, int wild) {
  pasa_paging p{};
  a.ints(p.block_table, {requests, columns}, 0, 5000, wild);
  p.block_size = block;
  return p;
}

pasa_queries lay_queries(Arena& a, std::int64_t rows, std::int64_t requests, std::int64_t context, int wild) {
  pasa_queries q{};
  a.ints(q.positions, {rows}, wild ? -1 : context - 1, context - 1, wild);
  a.ints(q.token_to_req, {rows}, 0, requests - 1, wild);
  auto* valid = a.take<std::uint8_t>(q.is_valid, PASA_U8, {rows});
  for (std::int64_t t = 0; t < rows; ++t) valid[t] = !wild || a.in(0, 9) != 0;
  return q;
}

Build dense_case(std::int64_t rows, std::int64_t width, bool ragged) {
  return [=](Arena& a) {
    auto args = make<pasa_list_dense_args>();
    a.ints(args->indices, {rows, width}, -1, 99999);
    a.ints(args->lengths, {rows}, 0, width);
    args->num_rows = 90000;
    args->has_num_rows = 1;
    lay_lists(a, args->lists, rows, width, ragged);
    return call(args, pasa_list_dense);
  };
}

Build topk_case(std::int64_t rows, std::int64_t width, bool ragged, int wild) {
  return [=](Arena& a) {
    auto args = make<pasa_list_topk_args>();
    a.ints(args->topk_indices, {rows, width}, wild ? -1 : 0, 512 * 64 - 1, wild);
    a.ints(args->token_to_req, {rows}, 0, 31, wild);
    auto* valid = a.take<std::uint8_t>(args->is_valid, PASA_U8, {rows});
    for (std::int64_t t = 0; t < rows; ++t) valid[t] = !wild || a.in(0, 9) != 0;
    args->paging = lay_paging(a, 32, 512, 64, wild);
    lay_lists(a, args->lists, rows, width, ragged);
    return call(args, pasa_list_topk);
  };
}

Build combine_case(std::int64_t requests, std::int64_t rows, std::int64_t topk, std::int64_t window, bool ragged) {
  return [=](Arena& a) {
    auto args = make<pasa_list_combine_args>();
    args->rows_per_request = 9000;
    args->compressed_rows = 4000;
    a.ints(args->topk_indices, {rows, topk}, -1, 4001, 1);
    auto* starts = a.take<std::int32_t>(args->query_start_loc, PASA_I32, {requests + 1});
    auto* seq = a.take<std::int32_t>(args->seq_lens, PASA_I32, {requests});
    for (std::int64_t r = 0; r <= requests; ++r) starts[r] = static_cast<std::int32_t>(17 + rows * r / requests);
    for (std::int64_t r = 0; r < requests; ++r) seq[r] = static_cast<std::int32_t>(a.in(0, 16000));
    a.ints(args->gather_lens, {requests}, 0, 5000, 0);
    args->window = window;
    args->ratio = 4;
    args->topk = topk;
    lay_lists(a, args->lists, rows, topk + window, ragged);
    return call(args, pasa_list_combine);
  };
}

Build compressed_case(std::int64_t rows, std::int64_t width, bool slots, bool ragged, int wild) {
  return [=](Arena& a) {
    auto args = make<pasa_list_compressed_args>();
    args->queries = lay_queries(a, rows, 16, 128 * width, wild);
    if (slots) args->paging = lay_paging(a, 16, width / 2 + 1, 2, wild);
    args->ratio = 128;
    args->width = width;
    lay_lists(a, args->lists, rows, width, ragged);
    return call(args, pasa_list_compressed);
  };
}

Build window_case(std::int64_t rows, std::int64_t window, bool ragged, int wild) {
  return [=](Arena& a) {
    auto args = make<pasa_list_window_args>();
    args->queries = lay_queries(a, rows, 16, 8192, wild);
    args->paging = lay_paging(a, 16, 8192 / 64, 64, wild);
    args->window = window;
    lay_lists(a, args->lists, rows, window, ragged);
    return call(args, pasa_list_window);
  };
}

Build slots_case(std::int64_t rows, std::int64_t width, std::int64_t ratio) {
  return [=](Arena& a) {
    auto args = make<pasa_slots_args>();
    a.ints(args->positions, {rows, width}, -1, 9000);
    a.ints(args->token_to_req, {rows}, 0, 15);
    args->paging = lay_paging(a, 16, 128, 64, 3);
    args->ratio = ratio;
    a.take<std::int64_t>(args->slots, PASA_I64, {rows, width});
    return call(args, pasa_slots);
  };
}

Build counts_case(std::int64_t rows, std::int64_t ratio) {
  return [=](Arena& a) {
    auto args = make<pasa_token_counts_args>();
    a.ints(args->positions, {rows}, -1, 200000);
    args->window = 128;
    args->compress_ratio = ratio;
    args->topk = 512;
    a.take<std::int32_t>(args->n_window, PASA_I32, {rows});
    a.take<std::int32_t>(args->n_compressed, PASA_I32, {rows});
    return call(args, pasa_token_counts);
  };
}

// Any bits in the outputs, so that NaN and infinities pass too; half of the lse small numbers, the rest any bits.
Build merge_case(std::int64_t tokens, std::int64_t heads, pasa_dtype a_type, pasa_dtype b_type, pasa_dtype type,
                 bool sink) {
  return [=](Arena& a) {
    auto args = make<pasa_merge_args>();
    const auto lay = [&](pasa_tensor& t, pasa_dtype dtype, bool random) {
      const std::int64_t row = 512 + 8, stride = heads * row;
      void* to = dtype == PASA_F32 ? static_cast<void*>(a.take<float>(t, dtype, {tokens, heads, 512}, {stride, row, 1}))
                                   : a.take<std::uint16_t>(t, dtype, {tokens, heads, 512}, {stride, row, 1});
      if (random) a.fill_random(to, static_cast<std::size_t>((tokens * stride - 8) * (dtype == PASA_F32 ? 4 : 2)));
    };
    lay(args->out_a, a_type, true);
    lay(args->out_b, b_type, true);
    lay(args->out, type, false);
    for (pasa_tensor* t : {&args->lse_a, &args->lse_b, &args->lse}) {
      auto* lse = a.take<float>(*t, PASA_F32, {tokens, heads});
      for (std::int64_t i = 0; i < tokens * heads && t != &args->lse; ++i) {
        const auto bits = static_cast<std::uint32_t>(a.random());
        constexpr float kEdges[] = {-INFINITY, INFINITY, 0.0f, -0.0f};
        if (bits % 4 == 0) {
          std::memcpy(&lse[i], &bits, 4);
        } else {
          lse[i] = bits % 4 == 1 ? kEdges[bits / 4 % 4] : static_cast<float>(bits % 20000) * 1e-3f - 10;
        }
      }
    }
    if (sink) {
      auto* s = a.take<float>(args->attn_sink, PASA_F32, {heads});
      for (std::int64_t h = 0; h < heads; ++h)
        s[h] = h % 5 == 0 ? INFINITY : h % 5 == 1 ? -INFINITY : static_cast<float>(h) * 0.1f;
    }
    return call(args, pasa_merge);
  };
}

void compare_all() {
  for (const Format& f : kFormats) {
    for (const std::int64_t page : {1, 2, 53, 64, 256}) {
      if (!f.paged && page > 1) continue;
      const int least = f.format == PASA_KV_FP8_DS_MLA ? 8 : f.format == PASA_KV_FP8_V32 ? 4 : f.element;
      for (const int offset : {0, least, 8, 4}) {
        if (offset % least) continue;
        const std::int64_t padding = offset == 0 ? 0 : offset == 8 ? 576 : least == 1 ? 3 : least;
        const std::string what =
            std::string(f.name) + " page " + std::to_string(page) + " offset " + std::to_string(offset);
        compare("write " + what, write_case(f, 77, page, padding, offset, true));
        for (const pasa_dtype out : {PASA_BF16, PASA_F16}) {
          compare("gather " + what, gather_slots_case(f, 190, page, padding, offset, out, offset == 0));
        }
      }
      compare("sequences " + std::string(f.name), gather_sequences_case(f, 9, 70, page, true));
    }
    compare("write many " + std::string(f.name), write_case(f, 8192, f.paged ? 64 : 1, 0, 0, true));
    compare("sequences many " + std::string(f.name), gather_sequences_case(f, 300, 20, 4, true));
  }
  for (const bool ragged : {true, false}) {
    for (const std::int64_t rows : {0, 1, 2, 127, 128, 1000, 5003}) {
      const std::string what = std::to_string(rows) + (ragged ? " ragged" : " rectangular");
      compare("dense " + what, dense_case(rows, 9, ragged));
      compare("dense wide " + what, dense_case(std::min<std::int64_t>(rows, 128), 1500, ragged));
      compare("topk " + what, topk_case(rows, 33, ragged, 3));
      compare("topk wide " + what, topk_case(std::min<std::int64_t>(rows, 1000), 2048 + 7, ragged, 3));
      compare("combine " + what, combine_case(5, rows, 40, 17, ragged));
      compare("combine wide " + what, combine_case(3, std::min<std::int64_t>(rows, 1000), 1024, 128, ragged));
      compare("compressed " + what, compressed_case(rows, 64, true, ragged, 3));
      compare("numbers " + what, compressed_case(rows, 300, false, ragged, 3));
      compare("window " + what, window_case(rows, 128, ragged, 3));
    }
    compare(std::string("dense 70001") + (ragged ? " ragged" : ""), dense_case(70001, 3, ragged));
    compare(std::string("topk 70001") + (ragged ? " ragged" : ""), topk_case(70001, 5, ragged, 3));
  }
  for (const std::int64_t ratio : {1, 4, 128}) {
    compare("slots", slots_case(1001, 3, ratio));
    compare("counts", counts_case(1001, ratio));
  }
  for (const bool sink : {true, false}) {
    for (const pasa_dtype type : {PASA_BF16, PASA_F16, PASA_F32}) {
      compare("merge", merge_case(37, 16, type, type, type, sink));
      compare("merge mixed", merge_case(5, 3, PASA_F32, type, PASA_BF16, sink));
    }
  }
}

// Slots beyond 2 and 4 GiB: what is written there comes back as from a small cache.
void compare_far() {
  const std::int64_t stride = 37440, page = 64, blocks = (std::int64_t{9} << 29) / stride, n = 6;
  const std::int64_t far[] = {57358 * page + 63, 57359 * page, 114717 * page + 3, 114718 * page + 9, 5,
                              blocks * page - 1};
  std::uint8_t* pool = nullptr;
  if (cudaMalloc(&pool, static_cast<std::size_t>(blocks * stride)) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  std::vector<std::uint8_t> result[2];
  for (const bool is_far : {false, true}) {
    Arena a(99, device_memory);
    auto write = make<pasa_cache_write_args>();
    auto gather = make<pasa_cache_gather_args>();
    lay_cache(a, kDsMla, write->cache, 1, page, 64, 0, false);
    lay_keys(a, kDsMla, write->k, n, 512, true);
    auto* mapping = a.take<std::int64_t>(write->slot_mapping, PASA_I64, {n});
    a.take<std::uint16_t>(gather->out, PASA_BF16, {n, 512});
    const std::size_t begin = static_cast<std::size_t>(static_cast<std::uint8_t*>(gather->out.data) - device_memory);
    for (std::int64_t i = 0; i < n; ++i) mapping[i] = is_far ? far[i] : i;
    if (is_far) write->cache.kv.data = pool, write->cache.kv.shape[0] = blocks, write->cache.kv.stride[0] = stride;
    gather->cache = write->cache;
    gather->slots = write->slot_mapping;
    check(cudaMemcpy(device_memory, a.shadow.data(), a.shadow.size(), cudaMemcpyHostToDevice));
    run(call(write, pasa_cache_write), nullptr, "far write");
    run(call(gather, pasa_cache_gather), nullptr, "far gather");
    result[is_far].resize(n * 1024);
    check(cudaMemcpy(result[is_far].data(), device_memory + begin, n * 1024, cudaMemcpyDeviceToHost));
  }
  check(cudaFree(pool));
  ++compared;
  if (result[0] != result[1]) std::printf("far slots differ\n"), ++failures;
}

// What a call takes.
struct Timed {
  std::string what;
  std::int64_t rows;  // tokens of a write, of a request's gather; of lists
  float us;
  double gbps;  // 0: not said
};

// copies: of the case's data, so that one replay moves more than L2 holds. bytes: that a call moves, for GB/s.
Timed time_case(const std::string& what, std::int64_t rows, const Build& build, int copies, double bytes) {
  const std::string name = what + ", " + std::to_string(rows);
  std::vector<Call> calls;
  std::vector<std::uint8_t*> memory;
  Arena host(1, nullptr);
  build(host);
  for (int i = 0; i < copies; ++i) {
    std::uint8_t* base;
    check(cudaMalloc(&base, host.shadow.size()));
    check(cudaMemcpy(base, host.shadow.data(), host.shadow.size(), cudaMemcpyHostToDevice));
    Arena a(1, base);
    calls.push_back(build(a));
    memory.push_back(base);
  }
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  check(cudaStreamCreate(&stream));
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  const int per_graph = copies > 1 ? copies : 50;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < per_graph; ++i) run(calls[static_cast<std::size_t>(i % copies)], stream, name);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&exec, graph, 0));
  std::vector<float> times;
  for (int i = 0; i < 25; ++i) {
    check(cudaEventRecord(begin, stream));
    check(cudaGraphLaunch(exec, stream));
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    float ms;
    check(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 5) times.push_back(ms * 1000 / static_cast<float>(per_graph));
  }
  std::sort(times.begin(), times.end());
  const Timed timed{what, rows, times[times.size() / 2], bytes / times[times.size() / 2] * 1e-3};
  std::printf("%-44s %8.2f us", name.c_str(), static_cast<double>(timed.us));
  if (bytes > 0) std::printf("  %6.0f GB/s", timed.gbps);
  std::printf("\n");
  check(cudaGraphExecDestroy(exec));
  check(cudaGraphDestroy(graph));
  check(cudaStreamDestroy(stream));
  for (std::uint8_t* base : memory) check(cudaFree(base));
  return timed;
}

std::vector<Timed> time_all() {
  std::vector<Timed> all;
  const auto time = [&](const char* what, std::int64_t rows, const Build& build, int copies, double bytes) {
    all.push_back(time_case(what, rows, build, copies, bytes));
  };
  for (const std::int64_t n : {1, 128, 8192}) {
    time("write fp8_ds_mla", n, write_case(kDsMla, n, 64, 64, 0, false), n > 1000 ? 16 : 1,
         static_cast<double>(n) * (1024 + 584));
  }
  time("write fp8_v32", 8192, write_case(kFormats[7], 8192, 64, 0, 0, false), 16, 8192.0 * (1152 + 656));
  time("write fp8_e4m3fn", 8192, write_case(kFormats[3], 8192, 1, 0, 0, false), 16, 8192.0 * (1024 + 544));
  time("write bf16", 8192, write_case(kFormats[0], 8192, 1, 0, 0, false), 16, 8192.0 * 2048);
  for (const std::int64_t length : {128, 1024, 8192}) {
    time("gather fp8_ds_mla, 8 requests", length, gather_sequences_case(kDsMla, 8, length, 64, false),
         length > 5000 ? 4 : 1, 8.0 * static_cast<double>(length) * (1024 + 584));
  }
  time("gather fp8_v32, 8 requests", 8192, gather_sequences_case(kFormats[7], 8, 8192, 64, false), 4,
       65536.0 * (1152 + 656));
  time("gather fp8_e4m3fn, 8 requests", 8192, gather_sequences_case(kFormats[3], 8, 8192, 1, false), 4,
       65536.0 * (1024 + 544));
  time("merge bf16, 16 heads", 4096, merge_case(4096, 16, PASA_BF16, PASA_BF16, PASA_BF16, true), 2, 65536.0 * 3072);
  for (const std::int64_t rows : {1, 16, 128, 1024, 8192}) {
    time("list: dense, 1024 wide", rows, dense_case(rows, 1024, true), 1, 0);
    time("list: top-k 1024, rectangular", rows, topk_case(rows, 1024, false, 0), 1, 0);
    time("list: top-k 1024, ragged", rows, topk_case(rows, 1024, true, 0), 1, 0);
    time("list: top-k 512, ragged", rows, topk_case(rows, 512, true, 0), 1, 0);
    time("list: top-k 1024 + window 128", rows, combine_case(std::min<std::int64_t>(rows, 16), rows, 1024, 128, true),
         1, 0);
    time("list: compressed, 64 slots", rows, compressed_case(rows, 64, true, true, 0), 1, 0);
    time("list: window 128", rows, window_case(rows, 128, true, 0), 1, 0);
    time("list: slots", rows, slots_case(rows, 1, 1), 1, 0);
  }
  return all;
}

void write_json(const std::vector<Timed>& all, const std::string& path, const std::string& commit) {
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0));
  nlohmann::ordered_json json{{"command", "ops_device_test --time"},
                              {"commit", commit},
                              {"date", pasa::utc_now("%Y-%m-%d")},
                              {"device", device.name},
                              {"rows", nlohmann::ordered_json::array()}};
  for (const Timed& timed : all) {
    json["rows"].push_back({{"what", timed.what}, {"rows", timed.rows}, {"us", timed.us}, {"gbps", timed.gbps}});
  }
  std::ofstream(path) << json.dump(1) << "\n";
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::printf("no CUDA device\n");
    return 77;
  }
  check(cudaMalloc(&device_memory, Arena::kCapacity));
  compare_all();
  compare_far();
  std::printf("%d cases compared byte for byte, %d failures\n", compared, failures);
  if (argc > 1 && std::strcmp(argv[1], "--time") == 0) {
    const std::vector<Timed> all = time_all();
    if (argc > 2) write_json(all, argv[2], argc > 3 ? argv[3] : "");
  }
  return failures != 0;
}
