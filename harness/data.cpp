#include "harness/data.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/number.h"
#include "core/quantize.h"

namespace pasa {

std::uint64_t hash(std::uint64_t seed, std::uint64_t stream, std::uint64_t i) {
  std::uint64_t x = i + 0x9e3779b97f4a7c15u * (stream + 1) + 0xd1b54a32d192ed03u * seed;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

double uniform(std::uint64_t random) { return static_cast<double>(random >> 11) * 0x1p-53; }

double normal(std::uint64_t random) {
  const std::uint64_t sum = (random & 0xffff) + (random >> 16 & 0xffff) + (random >> 32 & 0xffff) + (random >> 48);
  constexpr double kMean = 4 * 32767.5, kDeviation = 37837.22723720648;  // of the sum of four 0..65535
  return (static_cast<double>(sum) - kMean) / kDeviation;
}

namespace {

// Streams of random numbers; each source has its own.
enum Stream : std::uint64_t {
  kQuery,
  kSinkValue,
  kSinkKind,
  kShift,
  kLength,
  kEmpty,
  kAllInvalid,
  kInvalid,
  kInvalidAt,
  kBad,
  kSlot,
  kStart,
  kPages,
  kSequence,
  kBeyond,
  kKey,
  kKeyOf,
  kScaleOf,
  kNanAt,
  kStreamCount
};

std::uint64_t below(std::uint64_t random, std::uint64_t bound) {
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(random) * bound) >> 64);
}

// A random permutation of [0, size) that needs no memory: a Feistel network over the next power of four, walked until it
// lands inside.
class Permutation {
 public:
  Permutation(std::uint64_t size, std::uint64_t key) : size_(size), key_(key) {
    while ((std::uint64_t{1} << (2 * half_bits_)) < size) ++half_bits_;
  }
  std::uint64_t operator()(std::uint64_t i) const {
    const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
    do {
      std::uint64_t left = i >> half_bits_, right = i & mask;
      for (std::uint64_t round = 0; round < 4; ++round) {
        left ^= hash(key_, round, right) & mask;
        std::swap(left, right);
      }
      i = left << half_bits_ | right;
    } while (i >= size_);
    return i;
  }

 private:
  std::uint64_t size_, key_;
  int half_bits_ = 1;
};

std::uint16_t to_word(pasa_dtype dtype, float x) { return dtype == PASA_F16 ? float_to_f16(x) : float_to_bf16(x); }

// One source being made: its spec with every default resolved, and its own random streams.
struct SourceMaker {
  const CaseSpec& spec;
  const SourceSpec& s;
  int which;
  std::int64_t page, slots, page_stride;
  std::int64_t lists;  // of `queries` rows each
  const FormatInfo& info;

  SourceMaker(const CaseSpec& case_spec, int source)
      : spec(case_spec), s(case_spec.source[source]), which(source), info(*find_format(s.format)) {
    const int dim = spec.resolved_dim();
    require(PASA_ERROR_RANGE, dim == 512 || dim == 576, "D is ", dim, ", expected 512 or 576");
    require(PASA_ERROR_RANGE, info.dim == 0 || info.dim == dim, "fmt ", info.name, " has D = ", info.dim,
            ", but the problem has D = ", dim);
    require(PASA_ERROR_RANGE, spec.tokens % spec.queries == 0, "T is ", spec.tokens,
            ", expected a multiple of queries = ", spec.queries);
    require(PASA_ERROR_RANGE, spec.pe == Pe::kWhole || (dim == kMaxDim && !info.paged),
            "pe is not whole, expected a flat format and D = 576");
    lists = spec.tokens / spec.queries;
    page = info.paged ? s.page : 1;
    if (s.pattern == Pattern::kSequence) {
      slots = std::max(sequences() * pages_of_sequence() * page, s.slots);
    } else if (s.slots > 0) {
      slots = s.slots;
    } else {
      constexpr std::int64_t kDefaultSlots = std::int64_t{1} << 18;
      slots = std::max(std::min(lists * s.len, kDefaultSlots), s.len);
    }
    slots = (std::max<std::int64_t>(slots, 1) + page - 1) / page * page;
    require(PASA_ERROR_RANGE, slots <= std::numeric_limits<std::int32_t>::max(), "slots is ", slots,
            ", expected at most 2147483647");
    const std::int64_t element = info.bytes ? 1 : 2;
    const std::int64_t token_bytes = with_format(s.format, dim, [&]<typename Format>() -> std::int64_t {
      return spec.pe == Pe::kApart   ? Format::kFirstBytes
             : spec.pe == Pe::kWhole ? Format::kTokenBytes
                                     : Format::kTokenBytes + kPeGap * element;
    });
    const std::int64_t dense = page * token_bytes;
    page_stride = s.stride > 0                 ? s.stride
                  : s.stride == kStride576     ? (dense + 575) / 576 * 576
                  : s.stride == kStridePlusRow ? dense + token_bytes
                                               : dense;
    require(PASA_ERROR_RANGE, page_stride >= dense && page_stride % element == 0, "stride is ", page_stride,
            ", expected a multiple of ", element, " of at least ", dense, " bytes");
  }

  std::uint64_t random(Stream stream, std::uint64_t i) const {
    return hash(spec.seed, stream + static_cast<std::uint64_t>(which) * kStreamCount, i);
  }
  static constexpr std::int64_t kPeGap = 3;  // elements between the pieces: nothing is aligned

  double chance(Stream stream, std::int64_t i) const { return uniform(random(stream, static_cast<std::uint64_t>(i))); }

  std::int64_t sequences() const { return (lists + spec.qlen - 1) / spec.qlen; }
  std::int64_t sequence_tokens() const { return s.seq ? s.seq : s.len; }
  std::int64_t pages_of_sequence() const { return (sequence_tokens() + page - 1) / page; }
  // What rows share: FlashMLA gives the rows of a sequence one length.
  std::int64_t sequence_of(std::int64_t t) const { return t / spec.qlen; }
  bool is_empty(std::int64_t t) const { return chance(kEmpty, sequence_of(t)) < s.empty; }

  std::int64_t row_length(std::int64_t t) const {
    const auto draw = [&](std::int64_t low) {
      const auto range = static_cast<std::uint64_t>(s.len - low + 1);
      return low + static_cast<std::int64_t>(below(random(kLength, static_cast<std::uint64_t>(sequence_of(t))), range));
    };
    if (is_empty(t) && s.pattern != Pattern::kSequence && s.lists != Lists::kRect) return 0;
    switch (s.lengths) {
      case Lengths::kFixed:
        return s.len;
      case Lengths::kFrom0:
        return draw(0);
      case Lengths::kFrom1:
        return draw(std::min<std::int64_t>(s.len, 1));
      case Lengths::kQuarter:
        return draw(s.len / 4);
      case Lengths::kEdges: {
        constexpr std::int64_t kEdges[] = {0,  1,  15,  16,  17,  31,  32,  33,  47,  48, 63,
                                           64, 65, 127, 128, 129, 191, 192, 255, 256, 257};
        const std::int64_t count = std::ranges::count_if(kEdges, [&](std::int64_t edge) { return edge < s.len; });
        const std::int64_t at = t % (count + 1);
        return at == count ? s.len : kEdges[at];
      }
    }
    return s.len;
  }

  std::int32_t bad_index(std::uint64_t r) const {
    if (s.bad == BadIndex::kMinusOne) return -1;
    const std::int64_t bad[] = {
        std::numeric_limits<std::int32_t>::min(), -123456, -1, slots, slots + 1, 114514, 1919810, 2147480000,
        std::numeric_limits<std::int32_t>::max()};
    const std::int64_t index = bad[below(r, std::size(bad))];
    return index >= 0 && index < slots ? -1 : static_cast<std::int32_t>(std::min<std::int64_t>(index, 2147483647));
  }

  // Entry j of row t's list. `at` numbers the entries of all rows.
  std::int32_t entry(std::int64_t t, std::int64_t j, std::uint64_t at, const Permutation& row, const Permutation& pages,
                     std::int64_t sequence_length) const {
    const auto n = static_cast<std::uint64_t>(slots);
    const auto position = static_cast<std::uint64_t>(j);
    switch (s.pattern) {
      case Pattern::kRandom:
        return static_cast<std::int32_t>(below(random(kSlot, at), n));
      case Pattern::kUnique:
        return position < n ? static_cast<std::int32_t>(row(position)) : bad_index(random(kBad, at));
      case Pattern::kWindow:
        return static_cast<std::int32_t>((below(random(kStart, static_cast<std::uint64_t>(t)), n) + position) % n);
      case Pattern::kSequence: {
        if (j >= sequence_length) return -1;
        const auto token = static_cast<std::int64_t>(row(position));
        const std::int64_t logical = sequence_of(t) * pages_of_sequence() + token / page;
        return static_cast<std::int32_t>(static_cast<std::int64_t>(pages(static_cast<std::uint64_t>(logical))) * page +
                                         token % page);
      }
    }
    return -1;
  }

  void fill_row(std::int64_t t, std::int64_t count, std::uint64_t first, std::int32_t* list) const {
    std::int64_t sequence_length = sequence_tokens();
    if (spec.seq_vary) {
      const auto r = random(kSequence, static_cast<std::uint64_t>(sequence_of(t)));
      sequence_length = 1 + static_cast<std::int64_t>(below(r, static_cast<std::uint64_t>(sequence_length)));
    }
    const bool empty = is_empty(t);
    if (s.pattern == Pattern::kSequence && empty) sequence_length = 0;
    const bool void_row = chance(kAllInvalid, t) < s.all_invalid || (empty && s.lists == Lists::kRect);
    const std::int64_t universe = s.pattern == Pattern::kSequence ? sequence_length : slots;
    const Permutation row(static_cast<std::uint64_t>(std::max<std::int64_t>(universe, 1)),
                          random(kSlot, static_cast<std::uint64_t>(t)));
    const Permutation pages(static_cast<std::uint64_t>(slots / page), random(kPages, 0));
    for (std::int64_t j = 0; j < count; ++j) {
      const std::uint64_t at = first + static_cast<std::uint64_t>(j);
      const bool invalid = void_row || (s.invalid > 0 && uniform(random(kInvalid, at)) < s.invalid);
      list[j] = invalid ? bad_index(random(kBad, at)) : entry(t, j, at, row, pages, sequence_length);
    }
    if (s.invalid > 0 && count > 0) {
      const auto at = below(random(kInvalidAt, static_cast<std::uint64_t>(t)), static_cast<std::uint64_t>(count));
      list[at] = bad_index(random(kBad, first + at));
    }
  }

  // Here a row t is a list: queries that share it come in when the operator does.
  void make_lists(Case& c, pasa_source& source) const {
    std::vector<std::int64_t> length(static_cast<std::size_t>(lists));
    for (std::int64_t t = 0; t < lists; ++t) length[static_cast<std::size_t>(t)] = row_length(t);
    if (s.lists == Lists::kRagged) {
      source.indptr = c.allocate(PASA_I32, {lists + 1});
      auto* indptr = static_cast<std::int32_t*>(source.indptr.data);
      std::int64_t total = 0;
      for (std::int64_t t = 0; t < lists; ++t) {
        total += length[static_cast<std::size_t>(t)];
        require(PASA_ERROR_RANGE, total <= std::numeric_limits<std::int32_t>::max(),
                "T * len exceeds 2^31 - 1 entries, expected fewer with ragged lists");
        indptr[t + 1] = static_cast<std::int32_t>(total);
      }
      source.indices = c.allocate(PASA_I32, {total});
    } else {
      const std::int64_t gap = spec.strided == Gaps::kNone ? 0 : spec.strided == Gaps::kOdd ? 7 : kAlignedGap;
      source.indices = c.allocate(PASA_I32, {lists, s.len}, {s.len + gap, 1});
    }
    if (s.lists == Lists::kRectLengths) {
      source.lengths = c.allocate(PASA_I32, {lists});
      auto* row_lengths = static_cast<std::int32_t*>(source.lengths.data);
      for (std::int64_t t = 0; t < lists; ++t) {
        row_lengths[t] = static_cast<std::int32_t>(length[static_cast<std::size_t>(t)]);
      }
    }
    auto* indices = static_cast<std::int32_t*>(source.indices.data);
    const auto* indptr = static_cast<const std::int32_t*>(source.indptr.data);
    const std::int64_t row_stride = source.indices.stride[0];
#pragma omp parallel for schedule(dynamic, 16)
    for (std::int64_t t = 0; t < lists; ++t) {
      if (indptr) {
        fill_row(t, indptr[t + 1] - indptr[t], static_cast<std::uint64_t>(indptr[t]), indices + indptr[t]);
        continue;
      }
      const std::int64_t count = s.lists == Lists::kRect ? s.len : length[static_cast<std::size_t>(t)];
      const auto first = static_cast<std::uint64_t>(t * s.len);
      fill_row(t, count, first, indices + t * row_stride);
      // Never to be looked at: slots that are likely poisoned, and nonsense. The last row has no gap behind it.
      const std::int64_t end = t + 1 < lists ? row_stride : s.len;
      for (std::int64_t j = count; j < end; ++j) {
        const std::uint64_t r = random(kBeyond, static_cast<std::uint64_t>(t * row_stride + j));
        indices[t * row_stride + j] = static_cast<std::int32_t>(r % 4 ? static_cast<std::int64_t>((r >> 2) % n()) : -2);
      }
    }
  }

  std::uint64_t n() const { return static_cast<std::uint64_t>(slots); }

  // A pool of moderate span is written whole; of a huge one only selected slots and their neighbours.
  bool touches_whole_pool() const {
    constexpr std::int64_t kModerate = std::int64_t{1} << 30;
    return spec.poison != Poison::kAuto || slots / page * page_stride <= kModerate;
  }
  void make_pool(Case& c, pasa_source& source) const;
  void make_flat_pool(Case& c, pasa_source& source, pasa_dtype dtype, bool sparse) const;
  template <typename Format>
  void fill_pool(const pasa_source& source) const;
};

// One key as a slot's bytes, by the format's quantiser.
template <typename Format>
void encode_key(const float* key, std::uint8_t* record, std::uint8_t* scales, bool v32_pow2) {
  if constexpr (Format::kScaling == Scaling::kSideFloat) {
    float values[Format::kScales];
    quantize_uniform(Format::kFlavour, key, record, values);
    std::memcpy(scales, values, sizeof values);
  } else if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
    quantize_ds_mla(key, record, scales);
  } else if constexpr (Format::kScaling == Scaling::kInlineFloat) {
    quantize_v32(v32_pow2 ? V32Scale::kPowerOfTwo : V32Scale::kPlain, key, record);
  } else if constexpr (Format::kNope > 0) {
    for (int d = 0; d < Format::kDim; ++d) record[d] = float_to_fp8(Format::kFlavour, key[d]);
  } else {
    for (int d = 0; d < Format::kDim; ++d) {
      store_u16(record + 2 * d, Format::kWord == Word16::kF16 ? float_to_f16(key[d]) : float_to_bf16(key[d]));
    }
  }
}

// The bytes of `count` distinct keys; slots take one of them each, which makes a pool of any size at the speed of memcpy.
template <typename Format>
struct KeyTable {
  static constexpr int kScaleBytes = Format::kTailBytes + Format::kSideScaleBytes;
  std::vector<std::uint8_t> records, scales;

  KeyTable(const SourceMaker& maker, std::int64_t count)
      : records(static_cast<std::size_t>(count) * Format::kRecordBytes),
        scales(static_cast<std::size_t>(count) * kScaleBytes) {
    const double offset = maker.spec.shift * (2 * maker.chance(kShift, 0) - 1);
#pragma omp parallel for schedule(dynamic, 16)
    for (std::int64_t i = 0; i < count; ++i) {
      float key[Format::kDim];
      for (int d = 0; d < Format::kDim; ++d) {
        const auto at = static_cast<std::uint64_t>(i * Format::kDim + d);
        key[d] = static_cast<float>(maker.s.std * normal(maker.random(kKey, at)) + offset);
      }
      encode(maker, i, key);
    }
  }

  std::uint8_t* record(std::int64_t i) { return records.data() + i * Format::kRecordBytes; }
  std::uint8_t* scale(std::int64_t i) { return scales.data() + i * kScaleBytes; }

 private:
  void encode(const SourceMaker& maker, std::int64_t i, float* key) {
    const auto draw = [&](int j) { return maker.random(kScaleOf, static_cast<std::uint64_t>(i * Format::kDim + j)); };
    if constexpr (Format::kNope == 0) {
      if (maker.s.values == Values::kExponents) {
        for (int d = 0; d < Format::kDim; ++d) key[d] *= 0.125f * static_cast<float>(1 << below(draw(d / 64), 6));
      }
    }
    encode_key<Format>(key, record(i), scale(i), maker.spec.v32_pow2);
    if constexpr (Format::kNope > 0) {
      if (maker.s.values != Values::kNormal) rescale(maker, i, key, draw);
    }
  }

  // Codes and scales that no quantiser would choose.
  template <typename Draw>
  void rescale(const SourceMaker& maker, std::int64_t i, const float* key, const Draw& draw) {
    const bool any = maker.s.values == Values::kCodes;
    for (int d = 0; d < Format::kNope; ++d) {
      auto code = any ? static_cast<std::uint8_t>(draw(64 + d)) : float_to_fp8(Format::kFlavour, key[d]);
      if (is_nan(fp8_to_float(Format::kFlavour, code))) code = 0x01;  // the smallest subnormal
      record(i)[d] = code;
    }
    for (int tile = 0; tile < Format::kScales; ++tile) {
      const std::uint64_t r = draw(tile);
      if constexpr (Format::kScaling == Scaling::kTailUe8m0) {
        const auto low = static_cast<std::uint8_t>(any ? 113 : 124), count = static_cast<std::uint8_t>(any ? 7 : 6);
        scale(i)[tile] = static_cast<std::uint8_t>(low + below(r, count));
        if (any && r % 16 == 0) scale(i)[tile] = 0;  // 2^-127
      } else if constexpr (Format::kScaling != Scaling::kNone) {
        float value = any ? static_cast<float>(0.004 * normal(r)) : 0.125f * static_cast<float>(1 << below(r, 6));
        if (any && r % 16 == 0) value = 0;
        std::uint8_t* at =
            Format::kScaling == Scaling::kSideFloat ? scale(i) + 4 * tile : record(i) + Format::kNope + 4 * tile;
        store_float(at, value);
      }
    }
  }
};

// Where a slot's bytes are in a pool.
template <typename Format>
struct SlotBytes {
  std::uint8_t* record;
  std::uint8_t* scales;  // tail or side scales; nullptr if the format has none
  std::uint8_t* pe;      // the second of two pieces

  SlotBytes(const pasa_source& source, std::int64_t slot) : scales(nullptr), pe(nullptr) {
    const bool flat = source.kv.rank == 2;
    const std::int64_t page = flat ? 1 : source.kv.shape[1];
    const std::int64_t stride = source.kv.stride[0] * static_cast<std::int64_t>(dtype_bytes(source.kv.dtype));
    auto* kv = static_cast<std::uint8_t*>(source.kv.data);
    record = kv + Format::record_offset(stride, page, slot);
    if constexpr (Format::kScaling == Scaling::kTailUe8m0) scales = kv + Format::tail_offset(stride, page, slot);
    if constexpr (Format::kScaling == Scaling::kSideFloat) {
      scales = static_cast<std::uint8_t*>(source.kv_scales.data) + 4 * slot * source.kv_scales.stride[0];
    }
    if constexpr (Format::kTwoPieces) {
      const auto element = static_cast<std::int64_t>(dtype_bytes(source.kv.dtype));
      pe = source.kv_pe.rank ? static_cast<std::uint8_t*>(source.kv_pe.data) + slot * source.kv_pe.stride[0] * element
                             : record + Format::kFirstBytes;
    }
  }
};

// All bytes 0xff are NaN as e4m3fn, UE8M0, bf16, f16 and float; e4m3fnuz alone has its NaN at 0x80.
template <typename Format>
constexpr int kPoisonCode = Format::kNope > 0 && Format::kFlavour == Fp8::kE4m3fnuz ? 0x80 : 0xff;

template <typename Format>
void write_record(const SlotBytes<Format>& place, const std::uint8_t* record) {
  std::memcpy(place.record, record, Format::kFirstBytes);
  if constexpr (Format::kTwoPieces) std::memcpy(place.pe, record + Format::kFirstBytes, Format::kPeBytes);
}

template <typename Format>
void poison_slot(const SlotBytes<Format>& place) {
  std::uint8_t record[Format::kRecordBytes];
  std::memset(record, kPoisonCode<Format>, sizeof record);
  write_record(place, record);
  if (place.scales) std::memset(place.scales, 0xff, Format::kTailBytes + Format::kSideScaleBytes);
}

template <typename Format>
void write_nan(const SlotBytes<Format>& place, int d) {
  auto* at = const_cast<std::uint8_t*>(Format::component({place.record, place.scales, place.pe}, d));
  if (d < Format::kNope) {
    *at = Format::kFlavour == Fp8::kE4m3fnuz ? 0x80 : 0x7f;
  } else {
    store_u16(at, 0x7fff);  // NaN as bf16 and as f16
  }
}

template <typename Format>
void SourceMaker::fill_pool(const pasa_source& source) const {
  constexpr std::int64_t kTableKeys = 1024;
  const std::int64_t table_keys = std::min(slots, kTableKeys);
  KeyTable<Format> table(*this, table_keys);

  std::vector<std::uint8_t> selected(static_cast<std::size_t>(slots), spec.poison == Poison::kNone);
  const auto* indices = static_cast<const std::int32_t*>(source.indices.data);
  const auto* indptr = static_cast<const std::int32_t*>(source.indptr.data);
  const auto* lengths = static_cast<const std::int32_t*>(source.lengths.data);
  for (std::int64_t t = 0; t < lists; ++t) {
    const std::int64_t begin = indptr ? indptr[t] : t * source.indices.stride[0];
    const std::int64_t count = indptr ? indptr[t + 1] - begin : lengths ? lengths[t] : s.len;
    for (std::int64_t i = begin; i < begin + count; ++i) {
      if (indices[i] >= 0 && indices[i] < slots) selected[static_cast<std::size_t>(indices[i])] = 1;
    }
  }

  const std::int64_t pages = slots / page;
  const bool whole = touches_whole_pool();
  const bool pad_pages = whole && spec.poison != Poison::kNone && spec.pe == Pe::kWhole;
#pragma omp parallel for schedule(dynamic, 16)
  for (std::int64_t b = 0; b < pages; ++b) {
    for (std::int64_t slot = b * page; slot < (b + 1) * page; ++slot) {
      const auto at = static_cast<std::size_t>(slot);
      const SlotBytes<Format> place(source, slot);
      if (!selected[at]) {
        const bool beside = (slot > 0 && selected[at - 1]) || (slot + 1 < slots && selected[at + 1]) || slot == 0;
        if (whole || beside) poison_slot(place);
        continue;
      }
      const auto key =
          slots <= kTableKeys
              ? slot
              : static_cast<std::int64_t>(below(random(kKeyOf, at), static_cast<std::uint64_t>(table_keys)));
      write_record(place, table.record(key));
      if (place.scales) std::memcpy(place.scales, table.scale(key), KeyTable<Format>::kScaleBytes);
      // The byte behind the exponents means nothing.
      if constexpr (Format::kTailBytes > 0) {
        if (spec.poison != Poison::kNone) place.scales[Format::kTailBytes - 1] = 0xff;
      }
      const std::uint64_t r = random(kNanAt, at);
      if (s.nan > 0 && uniform(r) < s.nan) write_nan(place, static_cast<int>(hash(r, 0, 0) % Format::kDim));
    }
    if (pad_pages && b + 1 < pages) {  // nothing is mapped behind the last page
      const std::int64_t used = page * Format::kTokenBytes;
      auto* kv = static_cast<std::uint8_t*>(source.kv.data);
      std::memset(kv + b * page_stride + used, 0xff, static_cast<std::size_t>(page_stride - used));
    }
  }
}

void SourceMaker::make_pool(Case& c, pasa_source& source) const {
  const int dim = spec.resolved_dim();
  const std::int64_t pages = slots / page;
  with_format(s.format, dim, [&]<typename Format>() {
    const bool sparse = !touches_whole_pool();
    if (info.paged) {
      constexpr std::int64_t kToken = Format::kTokenBytes / (Format::kNope > 0 ? 1 : 2);
      source.kv = c.allocate(info.bytes ? PASA_U8 : PASA_BF16, {pages, page, kToken},
                             {info.bytes ? page_stride : page_stride / 2, kToken, 1}, sparse);
    } else {
      const pasa_dtype dtype = Format::kWord == Word16::kF16        ? PASA_F16
                               : Format::kNope == 0                 ? PASA_BF16
                               : Format::kFlavour == Fp8::kE4m3fnuz ? PASA_F8_E4M3FNUZ
                                                                    : PASA_F8_E4M3FN;
      make_flat_pool(c, source, dtype, sparse);
    }
    if constexpr (Format::kScaling == Scaling::kSideFloat) {
      const std::int64_t row = Format::kScales + (spec.strided == Gaps::kOdd ? 1 : 0);
      source.kv_scales = c.allocate(PASA_F32, {slots, Format::kScales}, {row, 1}, sparse);
    }
    fill_pool<Format>(source);
  });
}

void SourceMaker::make_flat_pool(Case& c, pasa_source& source, pasa_dtype dtype, bool sparse) const {
  const std::int64_t dim = spec.resolved_dim(), element = info.bytes ? 1 : 2, row = page_stride / element;
  const auto view = [&](pasa_tensor tensor, std::int64_t column, std::int64_t columns) {
    tensor.shape[1] = columns;
    tensor.data = static_cast<std::byte*>(tensor.data) + column * element;
    return tensor;
  };
  const auto allocate = [&](std::int64_t columns, std::int64_t stride) {
    const pasa_tensor tensor = c.allocate(dtype, {slots, columns}, {stride, 1}, sparse);
    if (!sparse && spec.poison != Poison::kNone && spec.pe != Pe::kWhole) {
      std::memset(tensor.data, 0xff, span_bytes(tensor));
    }
    return tensor;
  };
  if (spec.pe == Pe::kWhole) {
    source.kv = allocate(dim, row);
  } else if (spec.pe == Pe::kApart) {
    source.kv = allocate(kValueDim, row);
    source.kv_pe = allocate(kPeDim, s.stride > 0 ? row : spec.strided == Gaps::kOdd ? kPeDim + kPeGap : kPeDim);
  } else {
    const pasa_tensor both = allocate(dim + kPeGap, row);
    const bool behind = spec.pe == Pe::kBehind;
    source.kv = view(both, behind ? 0 : kPeDim + kPeGap, kValueDim);
    source.kv_pe = view(both, behind ? kValueDim + kPeGap : 0, kPeDim);
  }
}

void make_query(Case& c, const CaseSpec& spec) {
  const std::int64_t tokens = spec.tokens, heads = spec.heads, dim = spec.resolved_dim();
  pasa_tensor& q = c.problem.q;
  q = allocate_rows(c, spec.q, dim, tokens, heads, spec.strided);
  if (q.data && spec.strided != Gaps::kNone) std::memset(q.data, 0xff, span_bytes(q));
  const double offset = spec.shift * (2 * uniform(hash(spec.seed, kShift, 1)) - 1);
#pragma omp parallel for
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      auto* row = static_cast<std::uint16_t*>(q.data) + t * q.stride[0] + h * q.stride[1];
      for (std::int64_t d = 0; d < dim; ++d) {
        double x = spec.q_std * normal(hash(spec.seed, kQuery, static_cast<std::uint64_t>((t * heads + h) * dim + d)));
        if (spec.q_clip > 0) x = std::clamp(x, -spec.q_clip, spec.q_clip);
        row[d] = to_word(spec.q, static_cast<float>(x + offset));
      }
    }
  }
}

void make_sink(Case& c, const CaseSpec& spec) {
  if (spec.sink == Sink::kNone) return;
  c.problem.attn_sink = c.allocate(PASA_F32, {spec.heads});
  auto* sink = static_cast<float*>(c.problem.attn_sink.data);
  for (int h = 0; h < spec.heads; ++h) {
    const double x = normal(hash(spec.seed, kSinkValue, static_cast<std::uint64_t>(h)));
    const double kind = uniform(hash(spec.seed, kSinkKind, static_cast<std::uint64_t>(h)));
    switch (spec.sink) {
      case Sink::kSmall:
        sink[h] = static_cast<float>(0.1 * x);
        break;
      case Sink::kNormal:
        sink[h] = static_cast<float>(x);
        break;
      case Sink::kMixed:
        sink[h] = kind < 0.31 ? kInfinity : kind < 0.62 ? -kInfinity : static_cast<float>(x);
        break;
      case Sink::kMinusInf:
        sink[h] = -kInfinity;
        break;
      case Sink::kPlusInf:
        sink[h] = kInfinity;
        break;
      case Sink::kNotANumber:
        sink[h] = kNan;
        break;
      case Sink::kNone:
        break;
    }
  }
}

}  // namespace

namespace {

int dim_of(const pasa_source& source) {
  const bool wide = source.format == PASA_KV_FP8_V32 || source.kv_pe.rank || source.kv.shape[source.kv.rank - 1] == 576;
  return wide ? 576 : 512;
}

}  // namespace

void write_key(pasa_source& source, std::int64_t slot, const float* values, bool v32_pow2) {
  with_format(source.format, dim_of(source), [&]<typename Format>() {
    const SlotBytes<Format> place(source, slot);
    std::uint8_t record[Format::kRecordBytes];
    encode_key<Format>(values, record, place.scales, v32_pow2);
    write_record(place, record);
  });
}

void poison_key(pasa_source& source, std::int64_t slot) {
  with_format(source.format, dim_of(source), [&]<typename Format>() { poison_slot(SlotBytes<Format>(source, slot)); });
}

Case make_case(const CaseSpec& spec) {
  Case c;
  c.name = to_text(spec);
  pasa_problem& p = c.problem;
  p.struct_size = sizeof p;
  make_query(c, spec);
  make_sink(c, spec);
  pasa_source* sources[] = {&p.main, &p.extra};
  for (int s = 0; s < spec.source_count; ++s) {
    const SourceMaker maker(spec, s);
    sources[s]->format = spec.source[s].format;
    maker.make_lists(c, *sources[s]);
    maker.make_pool(c, *sources[s]);
  }
  p.softmax_scale = spec.scale;
  p.has_softmax_scale = spec.has_scale;
  p.kv_scale = spec.kv_scale;
  p.queries_per_list = spec.queries;
  p.kv_splits = spec.splits;
  p.block_h = spec.block_h;
  if (spec.nan_to_zero) p.flags |= PASA_NAN_TO_ZERO;
  if (spec.skip_reduce) p.flags |= PASA_SKIP_REDUCE;
  if (spec.no_invalid) p.flags |= PASA_NO_INVALID;
  add_outputs(c, {.lse = spec.lse, .max_logits = spec.max_logits, .gaps = spec.strided});
  return c;
}

}  // namespace pasa
