// Every user error of the operations.
//
// The first failure in the order of pasa_status is the one reported, whichever argument it is in. Instead of a pass per
// category, each argument is described once and Checks keeps the failure with the smallest status; so a check may run on
// arguments that another one has already found wrong, and must not trip over them.
#include "ops/check.h"

#include <bit>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace pasa::ops {
namespace {

constexpr std::int64_t kMaxInt32 = INT32_MAX;
constexpr std::int64_t kMaxPageTokens = 1 << 20;
constexpr std::int64_t kMaxSize = std::int64_t{1} << 48;
constexpr std::int64_t kAny = -1;  // of a size

struct Arg {
  std::string_view name;
  const pasa_tensor& t;
};

// a * b <= limit for sizes that are not negative.
bool fits(std::int64_t a, std::int64_t b, std::int64_t limit) { return a <= 0 || b <= 0 || a <= limit / b; }

std::int64_t product(std::int64_t a, std::int64_t b) { return fits(a, b, kMaxSize) ? a * b : kMaxSize; }

class Checks {
 public:
  Checks(std::size_t struct_size, std::size_t wanted) {
    pasa::require(PASA_ERROR_COMBINATION, struct_size == wanted, "struct_size is ", struct_size, ", expected ", wanted);
  }

  template <typename... Parts>
  void require(pasa_status status, bool condition, const Parts&... parts) {
    if (!condition && status < status_) {
      status_ = status;
      text_ = concat(parts...);
    }
  }

  // What holds for every tensor. Returns whether it is given; an optional one may be absent.
  bool tensor(Arg arg, std::initializer_list<pasa_dtype> dtypes, int min_rank, int max_rank, bool optional = false) {
    const auto& [name, t] = arg;
    if (t.rank < 0 || t.rank > 4) throw Error(PASA_ERROR_RANK, concat(name, " has rank ", t.rank, ", expected 1 to 4"));
    if (!present(t)) {  // nothing can be said about what depends on its sizes
      pasa::require(PASA_ERROR_COMBINATION, optional, name, " is absent, expected a tensor");
      return false;
    }
    for (int i = 0; i < t.rank; ++i) {  // beyond, arithmetic on sizes could wrap
      const bool sane = std::max(t.shape[i], t.stride[i]) <= kMaxSize && t.shape[i] >= -1;
      if (!sane)
        throw Error(PASA_ERROR_OVERFLOW, concat(name, " is ", Dims{t}, ", expected sizes that can be addressed"));
    }
    if (!home_) home_ = Place{t.device, t.device == PASA_CPU ? 0 : t.device_index};
    const Place here{t.device, t.device_index}, home = *home_;
    require(PASA_ERROR_DEVICE, here.device >= PASA_CPU && here.device <= PASA_HIP, name, " is on ", here,
            ", expected cpu, cuda or hip");
    require(PASA_ERROR_DEVICE, here.device == home.device && (here.device == PASA_CPU || here.index == home.index),
            name, " is on ", here, ", expected ", home, " as the other tensors");
    std::string wanted;
    bool found = false;
    for (const pasa_dtype dtype : dtypes) {
      wanted += concat(wanted.empty() ? "" : " or ", Dtype{dtype});
      found = found || t.dtype == dtype;
    }
    require(PASA_ERROR_DTYPE, found, name, " is ", Dtype{t.dtype}, ", expected ", wanted);
    require(PASA_ERROR_RANK, t.rank >= min_rank && t.rank <= max_rank, name, " has rank ", t.rank, ", expected ",
            min_rank, min_rank == max_rank ? "" : concat(" to ", max_rank));
    require(PASA_ERROR_SHAPE, std::all_of(t.shape, t.shape + t.rank, [](std::int64_t n) { return n >= 0; }), name,
            " is ", Dims{t}, ", expected sizes >= 0");
    require(PASA_ERROR_STRIDE, empty(t) || !negative_stride(t), name, " has a negative stride, expected >= 0");
    require(PASA_ERROR_COMBINATION, t.data != nullptr || empty(t), name, " has no data, expected an address");
    require(PASA_ERROR_OVERFLOW, addressable(t), name, " is ", Dims{t}, ", expected sizes that can be addressed");
    alignment(arg, element_bytes(t.dtype));
    return true;
  }

  // sizes: one for each dimension, kAny where any will do; what: the sizes in words.
  void shape(Arg arg, std::initializer_list<std::int64_t> sizes, std::string_view what) {
    if (!present(arg.t)) return;
    bool same = arg.t.rank == static_cast<int>(sizes.size());
    std::string wanted;
    int i = 0;
    for (const std::int64_t size : sizes) {
      same = same && (size == kAny || arg.t.shape[i] == size);
      wanted += concat(i++ ? ", " : "", size == kAny ? "any" : concat(size));
    }
    require(PASA_ERROR_SHAPE, same, arg.name, " is ", Dims{arg.t}, ", expected [", wanted, "] (", what, ")");
  }

  // Dimensions from `first` on are dense.
  void dense_from(Arg arg, int first) {
    if (!present(arg.t) || empty(arg.t)) return;
    require(PASA_ERROR_STRIDE, contiguous_from(arg.t, first), arg.name, " has stride ", arg.t.stride[arg.t.rank - 1],
            " in its last dimension or gaps, expected ",
            first == 0 ? "a contiguous tensor" : "a contiguous last dimension");
  }

  void no_self_overlap(Arg arg) {
    if (!present(arg.t) || empty(arg.t)) return;
    require(PASA_ERROR_STRIDE, !overlaps_itself(arg.t), arg.name, " overlaps itself, expected distinct elements");
  }

  // bytes: a power of two, of the base address and of the stride of dimension 0.
  void alignment(Arg arg, std::int64_t bytes) {
    const pasa_tensor& t = arg.t;
    if (!present(t) || empty(t)) return;
    require(PASA_ERROR_ALIGNMENT, reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(bytes) == 0,
            arg.name, " is at address ", t.data, ", expected a multiple of ", bytes);
    const std::int64_t stride = t.stride[0] * element_bytes(t.dtype);
    require(PASA_ERROR_ALIGNMENT, t.shape[0] == 1 || stride % bytes == 0, arg.name, " has a stride of ", stride,
            " bytes in dimension 0, expected a multiple of ", bytes);
  }

  void range(std::string_view name, std::int64_t value, std::int64_t least, std::int64_t most = kMaxInt32) {
    require(PASA_ERROR_RANGE, value >= least && value <= most, name, " is ", value, ", expected ", least, " to ", most);
  }

  void flags(std::uint32_t value, std::uint32_t known) {
    require(PASA_ERROR_RANGE, (value & ~known) == 0, "flags is ", value, ", expected bits of ", known);
  }

  // Plain index vectors and tables.
  bool vector(Arg arg, std::int64_t size, std::string_view what, std::initializer_list<pasa_dtype> dtypes,
              bool optional = false) {
    const bool given = tensor(arg, dtypes, 1, 1, optional);
    shape(arg, {size}, what);
    dense_from(arg, 0);
    return given;
  }
  bool table(Arg arg, std::int64_t rows, std::string_view what, bool optional = false) {
    const bool given = tensor(arg, {PASA_I32}, 2, 2, optional);
    shape(arg, {rows, kAny}, what);
    dense_from(arg, 1);
    return given;
  }

  void raise_if_failed() const {
    if (status_ != kNoFailure) throw Error(status_, text_);
  }

  template <typename Call>
  Checked<Call> finish(const Call& call) const {
    raise_if_failed();
    return {call, home_.value_or(Place{PASA_CPU, 0})};
  }

 private:
  static constexpr auto kNoFailure = static_cast<pasa_status>(PASA_ERROR_INTERNAL + 1);

  pasa_status status_ = kNoFailure;
  std::string text_;
  std::optional<Place> home_;
};

constexpr std::initializer_list<pasa_dtype> kInt32 = {PASA_I32}, kInt = {PASA_I32, PASA_I64},
                                            kBool = {PASA_U8, PASA_I8}, kWords = {PASA_BF16, PASA_F16},
                                            kReals = {PASA_BF16, PASA_F16, PASA_F32};

template <typename T>
T* data(const pasa_tensor& t) {
  return present(t) ? static_cast<T*>(t.data) : nullptr;
}

Ints ints(const pasa_tensor& t) {
  if (!present(t)) return {};
  return t.dtype == PASA_I64 ? Ints{nullptr, data<const std::int64_t>(t)} : Ints{data<const std::int32_t>(t), nullptr};
}

// The largest power of two up to 16 that divides the address and all the given byte counts.
int common_alignment(const void* address, std::initializer_list<std::int64_t> bytes) {
  auto bits = reinterpret_cast<std::uintptr_t>(address) | 16u;
  for (const std::int64_t n : bytes) bits |= static_cast<std::uintptr_t>(n);
  return 1 << std::countr_zero(bits);
}

// Of the rows of a [T, H, D] tensor.
int row_alignment(const pasa_tensor& t) {
  const std::int64_t bytes = element_bytes(t.dtype);
  return common_alignment(t.data, {bytes * t.stride[0], bytes * t.stride[1]});
}

template <typename T>
Rows<T> rows(const pasa_tensor& t) {
  return {data<T>(t), {t.stride[0], t.stride[1]}};
}

Cache check_cache(Checks& c, const pasa_cache& cache) {
  const FormatInfo* const info = find_format(cache.format);
  if (!info) {
    throw Error(PASA_ERROR_RANGE, concat("format is ", static_cast<int>(cache.format), ", expected a pasa_kv_format"));
  }
  const pasa_tensor& kv = cache.kv;
  const Arg arg{"kv", kv};
  const bool fnuz = info->format == PASA_KV_FP8_E4M3FNUZ, raw = info->bytes && !info->side_scales;
  if (!info->bytes) {
    c.tensor(arg, {info->format == PASA_KV_F16 ? PASA_F16 : PASA_BF16}, info->paged ? 3 : 2, info->paged ? 4 : 3);
  } else {
    c.tensor(arg, {PASA_U8, PASA_I8, PASA_F8_E4M3FN, fnuz || raw ? PASA_F8_E4M3FNUZ : PASA_F8_E4M3FN}, 2,
             info->paged ? 4 : 3);
    c.require(PASA_ERROR_UNSUPPORTED, !raw || kv.dtype != PASA_F8_E4M3FNUZ, "kv is ", Dtype{kv.dtype},
              ", expected bytes or ", Dtype{PASA_F8_E4M3FN}, ": ", info->name, " is OCP e4m3 only");
  }
  const int last = kv.rank > 0 ? kv.rank - 1 : 0;
  const bool whole_pages = raw && kv.rank == 2;         // [blocks, page bytes]
  const bool one_dim = info->dim || info->side_scales;  // only keys of 512 have scales to write and read by
  const int dim = info->dim ? info->dim : !one_dim && kv.shape[last] == 576 ? 576 : kValueDim;
  const std::int64_t record = with_format(
      info->format, dim, [&]<typename Format>() -> std::int64_t { return raw ? Format::kTokenBytes : Format::kDim; });
  const int record_bytes = with_format(info->format, dim, [&]<typename Format>() { return Format::kRecordBytes; });
  c.range("block_size", cache.block_size, whole_pages ? 1 : 0, kMaxPageTokens);
  const std::int64_t block_size = !info->paged ? 1 : whole_pages ? cache.block_size : kv.shape[1];
  if (whole_pages) {
    c.require(PASA_ERROR_SHAPE, fits(block_size, record, kv.shape[1]), "kv is ", Dims{kv},
              ", expected pages of at least ", block_size, " * ", record, " bytes with ", info->name);
  } else {
    c.require(PASA_ERROR_SHAPE, kv.shape[last] == record, "kv is ", Dims{kv}, ", expected a last dimension of ", record,
              one_dim ? "" : " or 576", " with ", info->name);
    c.require(PASA_ERROR_SHAPE, kv.rank < (info->paged ? 4 : 3) || kv.shape[last - 1] == 1, "kv is ", Dims{kv},
              ", expected one KV head: size 1 in dimension ", last - 1);
    c.require(PASA_ERROR_SHAPE, block_size >= 1 && block_size <= kMaxPageTokens, "kv is ", Dims{kv},
              ", expected pages of 1 to ", kMaxPageTokens, " tokens");
    c.require(PASA_ERROR_SHAPE, cache.block_size == 0 || cache.block_size == block_size, "block_size is ",
              cache.block_size, ", expected ", block_size, " as kv has");
    c.require(PASA_ERROR_STRIDE, empty(kv) || !info->paged || block_size == 1 || kv.stride[1] == record,
              "kv has token stride ", kv.stride[1], ", expected ", record, " with ", info->name);
  }
  const std::int64_t row = whole_pages ? kv.shape[1] : product(block_size, record);
  c.require(PASA_ERROR_STRIDE, empty(kv) || kv.shape[last] == 1 || kv.stride[last] == 1, "kv has stride ",
            kv.stride[last], " in its last dimension, expected 1");
  c.require(PASA_ERROR_STRIDE, empty(kv) || kv.shape[0] == 1 || kv.stride[0] >= row, "kv has stride ", kv.stride[0],
            " in dimension 0, expected at least ", row);
  c.alignment(arg, info->alignment);
  c.require(PASA_ERROR_OVERFLOW, fits(kv.shape[0], block_size, kMaxInt32), "kv is ", Dims{kv}, ", expected at most ",
            kMaxInt32, " slots");

  const Arg scales{"kv_scales", cache.kv_scales};
  if (c.tensor(scales, {PASA_F32}, 2, 2, !info->side_scales)) {
    c.require(PASA_ERROR_COMBINATION, info->side_scales, "kv_scales is given, expected none with ", info->name);
    c.shape(scales, {kv.shape[0], dim / 64}, "slots, D/64");
    c.dense_from(scales, 1);
    c.no_self_overlap(scales);
  }
  const std::int64_t page_stride = kv.stride[0] * element_bytes(kv.dtype);
  return {.format = info->format,
          .dim = dim,
          .kv = data<std::uint8_t>(kv),
          .page_stride = page_stride,
          .block_size = static_cast<std::uint32_t>(block_size),
          .slots = empty(kv) ? 0 : product(kv.shape[0], block_size),
          .scales = data<std::uint8_t>(cache.kv_scales),
          .scale_stride = cache.kv_scales.stride[0] * 4,
          .alignment = common_alignment(kv.data, {page_stride, block_size > 1 ? record_bytes : 0})};
}

// by_row: row t belongs to request t. may_lack_table: entry numbers are wanted then.
Paging check_paging(Checks& c, const pasa_paging& p, std::int64_t rows, bool by_row, bool may_lack_table = false) {
  const Arg table{"block_table", p.block_table};
  if (!c.table(table, by_row ? rows : kAny, by_row ? "T, columns: without token_to_req" : "R, columns",
               may_lack_table)) {
    return {};
  }
  c.range("block_size", p.block_size, 1);
  c.range("num_blocks", p.num_blocks, 0);
  c.range("base", p.base, 0);
  c.require(PASA_ERROR_RANGE, p.ring == 0 || p.ring == 1, "ring is ", p.ring, ", expected 0 or 1");
  c.require(PASA_ERROR_OVERFLOW, fits(p.num_blocks, p.block_size, kMaxInt32 - p.base), "num_blocks is ", p.num_blocks,
            ", expected at most ", kMaxInt32, " slots with block_size ", p.block_size);
  return {.table = data<const std::int32_t>(p.block_table),
          .stride = p.block_table.stride[0],
          .requests = p.block_table.shape[0],
          .columns = p.block_table.shape[1],
          .block_size = p.block_size,
          .num_blocks = p.num_blocks,
          .base = p.base,
          .ring = p.ring != 0};
}

Requests check_requests(Checks& c, const pasa_tensor& token_to_req, std::int64_t rows) {
  c.vector({"token_to_req", token_to_req}, rows, "T", kInt32, true);
  return {data<const std::int32_t>(token_to_req)};
}

Queries check_queries(Checks& c, const pasa_queries& q) {
  const std::int64_t rows = q.positions.shape[0];
  c.vector({"positions", q.positions}, kAny, "T", kInt);
  c.vector({"is_valid", q.is_valid}, rows, "T", kBool, true);
  return {ints(q.positions), check_requests(c, q.token_to_req, rows), data<const std::uint8_t>(q.is_valid)};
}

// longest: entries that a row may have.
Lists check_lists(Checks& c, const pasa_lists& lists, std::int64_t rows, std::int64_t longest) {
  const pasa_tensor& t = lists.indices;
  const Arg indices{"lists.indices", t};
  const bool ragged = t.rank == 1;
  if (c.tensor(indices, kInt32, 1, 2)) {
    c.dense_from(indices, t.rank - 1);
    c.no_self_overlap(indices);
    if (ragged) {
      c.require(PASA_ERROR_SHAPE, fits(rows, longest, t.shape[0]), indices.name, " is ", Dims{t},
                ", expected at least ", rows, " * ", longest, " entries (T * longest list)");
      c.require(PASA_ERROR_OVERFLOW, fits(rows, longest, kMaxInt32), indices.name, " needs ", rows, " * ", longest,
                " entries, expected at most ", kMaxInt32);
    } else {
      c.require(PASA_ERROR_SHAPE, t.shape[0] == rows && t.shape[1] >= longest, indices.name, " is ", Dims{t},
                ", expected [", rows, ", W] with W at least ", longest, " (T, longest list)");
    }
  }
  if (c.vector({"lists.indptr", lists.indptr}, rows + 1, "T+1", kInt32, !ragged)) {
    c.require(PASA_ERROR_COMBINATION, ragged, "lists.indptr is given, expected none with rectangular lists.indices");
  }
  c.vector({"lists.lengths", lists.lengths}, rows, "T", kInt32, true);
  return {.indices = data<std::int32_t>(t),
          .indptr = data<std::int32_t>(lists.indptr),
          .lengths = data<std::int32_t>(lists.lengths),
          .rows = rows,
          .width = ragged ? 0 : t.shape[1],
          .stride = ragged ? 0 : t.stride[0]};
}

}  // namespace

Checked<CacheWrite> check(const pasa_cache_write_args& a) {
  Checks c(a.struct_size, sizeof a);
  const Cache cache = check_cache(c, a.cache);
  const Arg k{"k", a.k};
  const int last = a.k.rank > 0 ? a.k.rank - 1 : 0;
  c.tensor(k, {a.cache.format == PASA_KV_F16 ? PASA_F16 : PASA_BF16}, 2, 3);
  c.shape(k,
          a.k.rank == 3 ? std::initializer_list<std::int64_t>{kAny, 1, cache.dim}
                        : std::initializer_list<std::int64_t>{kAny, cache.dim},
          a.k.rank == 3 ? "n, 1, D" : "n, D");
  c.dense_from(k, last);
  c.vector({"slot_mapping", a.slot_mapping}, kAny, "m", kInt);
  c.require(PASA_ERROR_SHAPE, a.slot_mapping.shape[0] <= a.k.shape[0], "slot_mapping is ", Dims{a.slot_mapping},
            ", expected at most the ", a.k.shape[0], " rows of k");
  c.flags(a.flags, PASA_POWER_OF_TWO_SCALES);
  return c.finish(
      CacheWrite{.cache = cache,
                 .k = data<const std::uint16_t>(a.k),
                 .k_stride = a.k.stride[0],
                 .k_alignment = common_alignment(a.k.data, {2 * a.k.stride[0]}),
                 .slot_mapping = ints(a.slot_mapping),
                 .tokens = a.slot_mapping.shape[0],
                 .v32_scale = a.flags & PASA_POWER_OF_TWO_SCALES ? V32Scale::kPowerOfTwo : V32Scale::kPlain});
}

Checked<CacheGather> check(const pasa_cache_gather_args& a) {
  Checks c(a.struct_size, sizeof a);
  const Cache cache = check_cache(c, a.cache);
  const bool by_slot = present(a.slots);
  const Arg out{"out", a.out};
  c.tensor(out, kWords, by_slot ? 2 : 3, by_slot ? 2 : 3);
  c.dense_from(out, by_slot ? 1 : 2);
  c.no_self_overlap(out);
  c.flags(a.flags, PASA_NAN_TO_ZERO);
  CacheGather call{.cache = cache,
                   .out = data<std::uint16_t>(a.out),
                   .word = a.out.dtype == PASA_F16 ? Word16::kF16 : Word16::kBf16,
                   .nan_to_zero = (a.flags & PASA_NAN_TO_ZERO) != 0};
  if (by_slot) {
    c.vector({"slots", a.slots}, kAny, "n", kInt);
    c.shape(out, {a.slots.shape[0], cache.dim}, "n, D");
    for (const Arg& other :
         {Arg{"seq_lens", a.seq_lens}, Arg{"gather_lens", a.gather_lens}, Arg{"block_table", a.block_table}}) {
      c.require(PASA_ERROR_COMBINATION, !present(other.t), other.name, " is given, expected none with slots");
    }
    c.range("offset", a.offset, 0, 0);
    call.slots = ints(a.slots);
    call.max_tokens = a.slots.shape[0];
    call.out_stride[1] = a.out.stride[0];
  } else {
    const std::int64_t requests = a.out.shape[0];
    c.shape(out, {kAny, kAny, cache.dim}, "R, max_tokens, D");
    c.vector({"seq_lens", a.seq_lens}, requests, "R", kInt32);
    c.vector({"gather_lens", a.gather_lens}, requests, "R", kInt32, true);
    c.table({"block_table", a.block_table}, requests, "R, columns");
    c.range("offset", a.offset, 0, std::max<std::int64_t>(a.out.shape[1], 0));
    call.requests = requests;
    call.max_tokens = a.out.shape[1];
    call.out_stride[0] = a.out.stride[0];
    call.out_stride[1] = a.out.stride[1];
    call.seq_lens = data<const std::int32_t>(a.seq_lens);
    call.gather_lens = data<const std::int32_t>(a.gather_lens);
    call.block_table = data<const std::int32_t>(a.block_table);
    call.table_stride = a.block_table.stride[0];
    call.columns = a.block_table.shape[1];
    call.offset = a.offset;
  }
  call.out_alignment = common_alignment(a.out.data, {2 * call.out_stride[0], 2 * call.out_stride[1]});
  return c.finish(call);
}

Checked<Slots> check(const pasa_slots_args& a) {
  Checks c(a.struct_size, sizeof a);
  const std::int64_t rows = a.positions.shape[0], width = a.positions.rank == 2 ? a.positions.shape[1] : 1;
  for (const Arg& arg : {Arg{"positions", a.positions}, Arg{"slots", a.slots}}) {
    c.tensor(arg, kInt, 1, 2);
    c.dense_from(arg, 0);
  }
  c.require(PASA_ERROR_SHAPE,
            a.slots.rank == a.positions.rank && std::equal(a.slots.shape, a.slots.shape + 2, a.positions.shape),
            "slots is ", Dims{a.slots}, ", expected ", Dims{a.positions}, " as positions");
  const Requests requests = check_requests(c, a.token_to_req, rows);
  const Paging paging = check_paging(c, a.paging, rows, !present(a.token_to_req));
  c.range("ratio", a.ratio, 0);
  return c.finish(Slots{.positions = ints(a.positions),
                        .count = product(rows, width),
                        .width = width,
                        .requests = requests,
                        .paging = paging,
                        .ratio = std::max<std::int64_t>(a.ratio, 1),
                        .narrow = a.slots.dtype == PASA_I32 ? data<std::int32_t>(a.slots) : nullptr,
                        .wide = a.slots.dtype == PASA_I64 ? data<std::int64_t>(a.slots) : nullptr});
}

Checked<TokenCounts> check(const pasa_token_counts_args& a) {
  Checks c(a.struct_size, sizeof a);
  const std::int64_t rows = a.positions.shape[0], ratio = a.compress_ratio;
  c.vector({"positions", a.positions}, kAny, "T", kInt);
  c.vector({"n_window", a.n_window}, rows, "T", kInt32);
  c.vector({"n_compressed", a.n_compressed}, rows, "T", kInt32);
  c.range("window", a.window, 1);
  c.range("topk", a.topk, 0);
  c.range("width", a.width, 0);
  c.require(PASA_ERROR_RANGE, ratio == 0 || ratio == 1 || ratio == 4 || ratio == 128, "compress_ratio is ", ratio,
            ", expected 0, 1, 4 or 128");
  return c.finish(TokenCounts{.positions = ints(a.positions),
                              .count = rows,
                              .window = a.window,
                              .ratio = ratio == 1 ? 0 : ratio,
                              .most = ratio == 4    ? a.topk
                                      : a.width > 0 ? a.width
                                                    : kMaxInt32,
                              .n_window = data<std::int32_t>(a.n_window),
                              .n_compressed = data<std::int32_t>(a.n_compressed)});
}

Checked<List<FromDense>> check(const pasa_list_dense_args& a) {
  Checks c(a.struct_size, sizeof a);
  const Arg indices{"indices", a.indices}, lengths{"lengths", a.lengths};
  c.tensor(indices, kInt32, 1, 4);
  c.dense_from(indices, 0);
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < a.indices.rank; ++i) rows = product(rows, a.indices.shape[i]);
  const std::int64_t width = a.indices.rank > 0 ? a.indices.shape[a.indices.rank - 1] : 0;
  c.tensor(lengths, kInt32, 1, 4);
  c.dense_from(lengths, 0);
  std::int64_t count = 1;
  for (int i = 0; i < a.lengths.rank; ++i) count = product(count, a.lengths.shape[i]);
  c.require(PASA_ERROR_SHAPE, count == rows, "lengths is ", Dims{a.lengths}, ", expected ", rows,
            " entries, one for each row of indices");
  if (a.has_num_rows) c.range("num_rows", a.num_rows, 0);
  const Lists lists = check_lists(c, a.lists, rows, width);
  return c.finish(List<FromDense>{{.indices = data<const std::int32_t>(a.indices),
                                   .width = width,
                                   .lengths = data<const std::int32_t>(a.lengths),
                                   .num_rows = a.has_num_rows ? a.num_rows : -1},
                                  lists});
}

Checked<List<FromTopk>> check(const pasa_list_topk_args& a) {
  Checks c(a.struct_size, sizeof a);
  const std::int64_t rows = a.topk_indices.shape[0], width = a.topk_indices.shape[1];
  c.table({"topk_indices", a.topk_indices}, kAny, "T, K");
  c.vector({"is_valid", a.is_valid}, rows, "T", kBool, true);
  const Requests requests = check_requests(c, a.token_to_req, rows);
  const Paging paging = check_paging(c, a.paging, rows, !present(a.token_to_req));
  const Lists lists = check_lists(c, a.lists, rows, width);
  c.require(PASA_ERROR_COMBINATION, present(a.lists.lengths) || a.lists.indices.rank != 1,
            "lists.lengths is absent, expected a tensor with ragged lists of this builder");
  return c.finish(List<FromTopk>{{.topk = data<const std::int32_t>(a.topk_indices),
                                  .width = width,
                                  .stride = a.topk_indices.stride[0],
                                  .requests = requests,
                                  .is_valid = data<const std::uint8_t>(a.is_valid),
                                  .paging = paging},
                                 lists});
}

Checked<List<Combine>> check(const pasa_list_combine_args& a) {
  Checks c(a.struct_size, sizeof a);
  const bool has_topk = c.table({"topk_indices", a.topk_indices}, kAny, "T, W", a.topk == 0);
  const std::int64_t rows = has_topk                    ? a.topk_indices.shape[0]
                            : a.lists.indices.rank == 2 ? a.lists.indices.shape[0]
                                                        : std::max<std::int64_t>(a.lists.indptr.shape[0], 1) - 1;
  const std::int64_t requests = a.seq_lens.shape[0];
  c.vector({"seq_lens", a.seq_lens}, kAny, "R", kInt32);
  c.vector({"gather_lens", a.gather_lens}, requests, "R", kInt32);
  c.vector({"query_start_loc", a.query_start_loc}, requests + 1, "R+1", kInt32);
  c.range("window", a.window, 1);
  c.range("ratio", a.ratio, 1);
  c.range("topk", a.topk, 0);
  c.range("compressed_rows", a.compressed_rows, 0);
  c.range("rows_per_request", a.rows_per_request, std::max<std::int64_t>(a.compressed_rows, 0));
  c.require(PASA_ERROR_OVERFLOW, fits(requests, a.rows_per_request, kMaxInt32), "rows_per_request is ",
            a.rows_per_request, ", expected at most ", kMaxInt32, " workspace rows with ", requests, " requests");
  const bool sane_widths = a.topk >= 0 && a.topk <= kMaxInt32 && a.window <= kMaxInt32;
  const Lists lists = check_lists(c, a.lists, rows, sane_widths ? a.topk + a.window : 0);
  return c.finish(List<Combine>{{.topk_indices = data<const std::int32_t>(a.topk_indices),
                                 .width = a.topk_indices.shape[1],
                                 .stride = a.topk_indices.stride[0],
                                 .query_start_loc = data<const std::int32_t>(a.query_start_loc),
                                 .seq_lens = data<const std::int32_t>(a.seq_lens),
                                 .gather_lens = data<const std::int32_t>(a.gather_lens),
                                 .requests = requests,
                                 .window = a.window,
                                 .ratio = a.ratio,
                                 .topk = a.topk,
                                 .rows_per_request = a.rows_per_request,
                                 .compressed_rows = a.compressed_rows},
                                lists});
}

Checked<List<Consecutive>> check(const pasa_list_compressed_args& a) {
  Checks c(a.struct_size, sizeof a);
  const std::int64_t rows = a.queries.positions.shape[0];
  const Queries queries = check_queries(c, a.queries);
  const Paging paging = check_paging(c, a.paging, rows, !present(a.queries.token_to_req), true);
  c.range("ratio", a.ratio, 1);
  c.range("width", a.width, 0);
  const Lists lists = check_lists(c, a.lists, rows, a.width);
  return c.finish(List<Consecutive>{{queries, paging, a.ratio, a.width, false}, lists});
}

Checked<List<Consecutive>> check(const pasa_list_window_args& a) {
  Checks c(a.struct_size, sizeof a);
  const std::int64_t rows = a.queries.positions.shape[0];
  const Queries queries = check_queries(c, a.queries);
  const Paging paging = check_paging(c, a.paging, rows, !present(a.queries.token_to_req));
  c.range("window", a.window, 1);
  const Lists lists = check_lists(c, a.lists, rows, a.window);
  return c.finish(List<Consecutive>{{queries, paging, 1, a.window, true}, lists});
}

Checked<Merge> check(const pasa_merge_args& a) {
  Checks c(a.struct_size, sizeof a);
  const std::int64_t tokens = a.out_a.shape[0], heads = a.out_a.shape[1];
  for (const Arg& arg : {Arg{"out_a", a.out_a}, Arg{"out_b", a.out_b}, Arg{"out", a.out}}) {
    c.tensor(arg, kReals, 3, 3);
    c.shape(arg, {tokens, heads, kValueDim}, "T, H, 512");
    c.dense_from(arg, 2);
  }
  for (const Arg& arg : {Arg{"lse_a", a.lse_a}, Arg{"lse_b", a.lse_b}, Arg{"lse", a.lse}}) {
    c.tensor(arg, {PASA_F32}, 2, 2, &arg.t == &a.lse);
    c.shape(arg, {tokens, heads}, "T, H");
  }
  c.vector({"attn_sink", a.attn_sink}, heads, "H", {PASA_F32}, true);
  c.no_self_overlap({"out", a.out});
  c.no_self_overlap({"lse", a.lse});
  return c.finish(Merge{.tokens = tokens,
                        .heads = heads,
                        .out_a = rows<const void>(a.out_a),
                        .out_b = rows<const void>(a.out_b),
                        .out = rows<void>(a.out),
                        .dtype_a = a.out_a.dtype,
                        .dtype_b = a.out_b.dtype,
                        .dtype = a.out.dtype,
                        .lse_a = rows<const float>(a.lse_a),
                        .lse_b = rows<const float>(a.lse_b),
                        .lse = rows<float>(a.lse),
                        .sink = data<const float>(a.attn_sink),
                        .alignment = std::min({row_alignment(a.out_a), row_alignment(a.out_b), row_alignment(a.out)})});
}

}  // namespace pasa::ops
