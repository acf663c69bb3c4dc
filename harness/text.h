// Problems as one line of text: "decode:T=64,H=128,fmt=fp8_ds_mla,len=128+1024,page=256+64".
//
// `decode`, `prefill` and `mla` differ in their defaults only. An option that exists once per source takes main+extra; a single
// value serves both. Whatever is left out has a sane default; to_text() prints only what differs from it, in a fixed order,
// so equal problems have equal text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "harness/case.h"
#include "pasa/pasa.h"

namespace pasa {

enum class Kind : std::uint8_t { kDecode, kPrefill, kMla };
enum class Lists : std::uint8_t { kRagged, kRect, kRectLengths };
// How long a row's list is: the full `len`, or uniform from 0, from 1, from len/4, or cycling through the sizes around
// which kernels have edges (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, ..., len).
enum class Lengths : std::uint8_t { kFixed, kFrom0, kFrom1, kQuarter, kEdges };
// random: with repetition; unique: none twice in a row's list; window: consecutive slots; sequence: `qlen` rows share a
// sequence of `seq` tokens in shuffled pages, each row lists a permutation of it, -1 where it is shorter than the list.
enum class Pattern : std::uint8_t { kRandom, kUnique, kWindow, kSequence };
enum class BadIndex : std::uint8_t { kMinusOne, kAny };  // any: INT_MIN, -123456, -1, slots, ..., INT_MAX
// normal: N(0, std) quantised by the format's rule; exponents: codes of N(0, std) under UE8M0 bytes 124..129; codes: random
// finite codes under random scales, zero and negative ones included where the format has them.
enum class Values : std::uint8_t { kNormal, kExponents, kCodes };
// small: N(0, 0.1); mixed: N(0, 1) with a third of the heads -inf and a third +inf.
enum class Sink : std::uint8_t { kNone, kSmall, kNormal, kMixed, kMinusInf, kPlusInf, kNotANumber };
// Poison unselected slots and padding: all of them if the pool is small enough to touch it whole, else those beside the
// selected ones; all; none (every slot holds data).
enum class Poison : std::uint8_t { kAuto, kAll, kNone };

// Where the last 64 of 576 components are: behind the others; in a tensor of their own; in the same rows as a view, behind
// or before the others, with a gap.
enum class Pe : std::uint8_t { kWhole, kApart, kBehind, kBefore };

// Page strides other than a byte count.
constexpr std::int64_t kStrideDense = 0, kStride576 = -1, kStridePlusRow = -2;

struct SourceSpec {
  pasa_kv_format format = PASA_KV_FP8_DS_MLA;
  std::int64_t len = 1024;  // entries of the longest list, or the width
  Lists lists = Lists::kRagged;
  Lengths lengths = Lengths::kFixed;
  std::int64_t page = 64;              // slots per page; 1 for flat formats
  std::int64_t stride = kStrideDense;  // bytes from page to page (flat: from slot to slot), or one of the above
  std::int64_t slots = 0;              // 0: T * len, at least len, at most 2^18
  Pattern pattern = Pattern::kRandom;
  std::int64_t seq = 0;  // Pattern::kSequence: tokens of a sequence; 0: len
  double invalid = 0;    // fraction of entries that are no slot; > 0 means at least one a row
  BadIndex bad = BadIndex::kMinusOne;
  double all_invalid = 0;  // fraction of rows whose entries are all invalid
  double empty = 0;        // fraction of rows (sequences, with that pattern) without any entry
  double nan = 0;          // fraction of the selected slots that hold a NaN component
  Values values = Values::kNormal;
  double std = 0.5;
  bool operator==(const SourceSpec&) const = default;
};

struct CaseSpec {
  Kind kind = Kind::kDecode;
  std::int64_t tokens = 64;  // T
  int heads = 128;           // H
  int dim = 0;               // 0: by format (512; 576 for fp8_v32). 576 is possible with the flat formats
  pasa_dtype q = PASA_BF16;
  std::int64_t qlen = 1;  // rows that share a sequence and its list length
  int queries = 1;        // rows that share a list, which is cut causally for all but the last of them
  Pe pe = Pe::kWhole;
  double kv_scale = 1;
  int source_count = 1;
  SourceSpec source[2];
  Sink sink = Sink::kSmall;
  double scale = 0;  // used if has_scale
  bool has_scale = false;
  double q_std = 0.5, q_clip = 0, shift = 0;  // q = clamp(N(0, q_std), +-q_clip) + shift * u; pools are shifted too
  bool seq_vary = false;                      // sequences of different length
  bool v32_pow2 = false;  // fp8_v32 scales as powers of two (FlashMLA's writer) instead of amax / 448 (vLLM's)
  Gaps strided = Gaps::kNone;
  bool lse = true, max_logits = false;
  bool nan_to_zero = false, skip_reduce = false, no_invalid = false;
  int splits = 0, block_h = 0;
  Poison poison = Poison::kAuto;
  std::uint64_t seed = 0;
  bool operator==(const CaseSpec&) const = default;

  int resolved_dim() const;
};

// Throws PASA_ERROR_RANGE with the keys or values that exist.
CaseSpec parse_text(std::string_view text);
std::string to_text(const CaseSpec& spec);
// Whether the text begins as a description does: with decode, prefill or mla.
bool is_text(std::string_view text);
// Keys, values and defaults, for --help.
std::string text_help();

}  // namespace pasa
