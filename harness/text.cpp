#include "harness/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "core/error.h"
#include "core/format.h"

namespace pasa {
namespace {

template <typename Enum>
struct Word {
  Enum value;
  std::string_view text;
};
constexpr Word<bool> kBools[] = {{false, "0"}, {true, "1"}};
constexpr Word<Gaps> kGaps[] = {{Gaps::kNone, "0"}, {Gaps::kOdd, "1"}, {Gaps::kAligned, "aligned"}};
constexpr Word<pasa_dtype> kQueryTypes[] = {{PASA_BF16, "bf16"}, {PASA_F16, "f16"}};
constexpr Word<Lists> kLists[] = {
    {Lists::kRagged, "ragged"}, {Lists::kRect, "rect"}, {Lists::kRectLengths, "rect_lengths"}};
constexpr Word<Lengths> kLengths[] = {{Lengths::kFixed, "fixed"},
                                      {Lengths::kFrom0, "from0"},
                                      {Lengths::kFrom1, "from1"},
                                      {Lengths::kQuarter, "quarter"},
                                      {Lengths::kEdges, "edges"}};
constexpr Word<Pattern> kPatterns[] = {{Pattern::kRandom, "random"},
                                       {Pattern::kUnique, "unique"},
                                       {Pattern::kWindow, "window"},
                                       {Pattern::kSequence, "sequence"}};
constexpr Word<BadIndex> kBadIndices[] = {{BadIndex::kMinusOne, "minus_one"}, {BadIndex::kAny, "any"}};
constexpr Word<Values> kValues[] = {
    {Values::kNormal, "normal"}, {Values::kExponents, "exponents"}, {Values::kCodes, "codes"}};
constexpr Word<Sink> kSinks[] = {
    {Sink::kNone, "none"},          {Sink::kSmall, "small"},      {Sink::kNormal, "normal"}, {Sink::kMixed, "mixed"},
    {Sink::kMinusInf, "minus_inf"}, {Sink::kPlusInf, "plus_inf"}, {Sink::kNotANumber, "nan"}};
constexpr Word<Pe> kPes[] = {
    {Pe::kWhole, "whole"}, {Pe::kApart, "apart"}, {Pe::kBehind, "behind"}, {Pe::kBefore, "before"}};
constexpr Word<Poison> kPoisons[] = {{Poison::kAuto, "auto"}, {Poison::kAll, "all"}, {Poison::kNone, "none"}};
constexpr Word<std::int64_t> kStrides[] = {{kStrideDense, "dense"}, {kStride576, "x576"}, {kStridePlusRow, "plus_row"}};
constexpr auto kFormatWords = [] {
  std::array<Word<pasa_kv_format>, std::size(kFormats)> words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = {kFormats[i].format, kFormats[i].name};
  return words;
}();

// A codec per type of value: text to value (false if it is none), value to text, and what is accepted.
template <typename Enum>
struct Words {
  std::span<const Word<Enum>> words;
  bool parse(std::string_view text, Enum& value) const {
    const auto found = std::ranges::find(words, text, &Word<Enum>::text);
    if (found == words.end()) return false;
    value = found->value;
    return true;
  }
  std::string print(Enum value) const { return std::string(std::ranges::find(words, value, &Word<Enum>::value)->text); }
  std::string accepted() const {
    std::string all;
    for (const Word<Enum>& word : words) all.append(all.empty() ? "" : "|").append(word.text);
    return all;
  }
};
template <typename Enum, std::size_t N>
Words(const Word<Enum> (&)[N]) -> Words<Enum>;
template <typename Enum, std::size_t N>
Words(const std::array<Word<Enum>, N>&) -> Words<Enum>;

template <typename Number>
struct Numbers {
  Number low, high;
  bool parse(std::string_view text, Number& value) const {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
  }
  std::string print(Number value) const {
    char text[32];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }
  std::string accepted() const {
    const bool open = high == std::numeric_limits<Number>::max();
    return open ? concat("a number from ", low) : concat(low, "..", high);
  }
};

// A byte count or a word.
struct StrideCodec {
  Words<std::int64_t> words{kStrides};
  Numbers<std::int64_t> bytes{1, std::int64_t{1} << 40};
  bool parse(std::string_view text, std::int64_t& value) const {
    return words.parse(text, value) || bytes.parse(text, value);
  }
  std::string print(std::int64_t value) const { return value > 0 ? bytes.print(value) : words.print(value); }
  std::string accepted() const { return words.accepted() + "|bytes"; }
};

struct Option {
  std::string_view key, what;
  bool per_source;
  std::string accepted;
  std::function<bool(CaseSpec&, int, std::string_view)> set;
  std::function<std::string(const CaseSpec&, int)> get;
};

template <typename Codec, typename Value>
Option global(std::string_view key, std::string_view what, Codec codec, Value CaseSpec::*field) {
  return {key,
          what,
          false,
          codec.accepted(),
          [=](CaseSpec& spec, int, std::string_view text) { return codec.parse(text, spec.*field); },
          [=](const CaseSpec& spec, int) { return codec.print(spec.*field); }};
}
template <typename Codec, typename Value>
Option per_source(std::string_view key, std::string_view what, Codec codec, Value SourceSpec::*field) {
  return {key,
          what,
          true,
          codec.accepted(),
          [=](CaseSpec& spec, int s, std::string_view text) { return codec.parse(text, spec.source[s].*field); },
          [=](const CaseSpec& spec, int s) { return codec.print(spec.source[s].*field); }};
}

constexpr std::int64_t kMaxCount = (std::int64_t{1} << 31) - 1;
constexpr double kHuge = std::numeric_limits<double>::max();

const std::vector<Option>& options() {
  static const std::vector<Option> kOptions = [] {
    using Int64 = Numbers<std::int64_t>;
    using Int = Numbers<int>;
    using Real = Numbers<double>;
    const Real fraction{0, 1};
    std::vector<Option> o;
    o.push_back(global("T", "query rows", Int64{0, kMaxCount}, &CaseSpec::tokens));
    o.push_back(global("H", "heads", Int{1, 4096}, &CaseSpec::heads));
    o.push_back(per_source("fmt", "KV format", Words{kFormatWords}, &SourceSpec::format));
    o.push_back(
        per_source("len", "list entries a row; main+extra makes two sources", Int64{0, kMaxCount}, &SourceSpec::len));
    o.push_back(global("D", "head dimension, 0 = the format's", Int{0, 576}, &CaseSpec::dim));
    o.push_back(global("q", "type of q and out", Words{kQueryTypes}, &CaseSpec::q));
    o.push_back(per_source("page", "slots a page (paged formats)", Int64{1, 1 << 20}, &SourceSpec::page));
    o.push_back(per_source("stride", "distance of pages (flat: slots)", StrideCodec{}, &SourceSpec::stride));
    o.push_back(per_source("slots", "pool size, 0 = T*len, at most 2^18", Int64{0, kMaxCount}, &SourceSpec::slots));
    o.push_back(per_source("lists", "form of the lists", Words{kLists}, &SourceSpec::lists));
    o.push_back(per_source("lengths", "distribution of row lengths", Words{kLengths}, &SourceSpec::lengths));
    o.push_back(per_source("pattern", "which slots a row lists", Words{kPatterns}, &SourceSpec::pattern));
    o.push_back(per_source("seq", "pattern=sequence: its tokens, 0 = len", Int64{0, kMaxCount}, &SourceSpec::seq));
    o.push_back(global("qlen", "rows that share a sequence", Int64{1, kMaxCount}, &CaseSpec::qlen));
    o.push_back(global("queries", "rows that share a list, cut causally (MTP)", Int{1, 4096}, &CaseSpec::queries));
    o.push_back(global("pe", "where the last 64 of D = 576 are", Words{kPes}, &CaseSpec::pe));
    o.push_back(global("kv_scale", "factor of every key", Real{-kHuge, kHuge}, &CaseSpec::kv_scale));
    o.push_back(global("seq_vary", "sequences of different length", Words{kBools}, &CaseSpec::seq_vary));
    o.push_back(per_source("invalid", "fraction of invalid entries", fraction, &SourceSpec::invalid));
    o.push_back(per_source("bad", "what an invalid entry is", Words{kBadIndices}, &SourceSpec::bad));
    o.push_back(
        per_source("all_invalid", "fraction of rows with only invalid entries", fraction, &SourceSpec::all_invalid));
    o.push_back(per_source("empty", "fraction of rows without entries", fraction, &SourceSpec::empty));
    o.push_back(per_source("nan", "fraction of selected slots with a NaN", fraction, &SourceSpec::nan));
    o.push_back(per_source("values", "what the pool holds", Words{kValues}, &SourceSpec::values));
    o.push_back(per_source("std", "deviation of the keys", Real{0, kHuge}, &SourceSpec::std));
    o.push_back(global("q_std", "deviation of q", Real{0, kHuge}, &CaseSpec::q_std));
    o.push_back(global("q_clip", "q is clamped to +-this, 0 = not", Real{0, kHuge}, &CaseSpec::q_clip));
    o.push_back(global("shift", "q and keys get an offset in +-this", Real{0, kHuge}, &CaseSpec::shift));
    o.push_back(global("v32_pow2", "fp8_v32 scales are powers of two", Words{kBools}, &CaseSpec::v32_pow2));
    o.push_back(global("sink", "attention sink", Words{kSinks}, &CaseSpec::sink));
    o.push_back({"scale", "softmax scale", false, "default|number",
                 [](CaseSpec& spec, int, std::string_view text) {
                   spec.has_scale = text != "default";
                   return !spec.has_scale || Real{-kHuge, kHuge}.parse(text, spec.scale);
                 },
                 [](const CaseSpec& spec, int) { return spec.has_scale ? Real{}.print(spec.scale) : "default"; }});
    o.push_back(global("strided", "gaps between rows of q, lists, outputs", Words{kGaps}, &CaseSpec::strided));
    o.push_back(global("lse", "ask for lse", Words{kBools}, &CaseSpec::lse));
    o.push_back(global("max_logits", "ask for max_logits", Words{kBools}, &CaseSpec::max_logits));
    o.push_back(global("nan_to_zero", "flag: NaN components count as 0", Words{kBools}, &CaseSpec::nan_to_zero));
    o.push_back(global("skip_reduce", "flag: partials instead of out", Words{kBools}, &CaseSpec::skip_reduce));
    o.push_back(global("no_invalid", "hint: no index is invalid", Words{kBools}, &CaseSpec::no_invalid));
    o.push_back(global("splits", "parts of each list, 0 = choose", Int{0, 256}, &CaseSpec::splits));
    o.push_back(global("block_h", "heads a tile, 0 = choose", Int{0, 4096}, &CaseSpec::block_h));
    o.push_back(global("poison", "NaN in unselected slots and gaps", Words{kPoisons}, &CaseSpec::poison));
    o.push_back(global("seed", "of the generator", Numbers<std::uint64_t>{0, std::numeric_limits<std::uint64_t>::max()},
                       &CaseSpec::seed));
    return o;
  }();
  return kOptions;
}

constexpr Word<Kind> kKinds[] = {{Kind::kDecode, "decode"}, {Kind::kPrefill, "prefill"}, {Kind::kMla, "mla"}};

CaseSpec defaults(Kind kind, int sources) {
  CaseSpec spec;
  spec.kind = kind;
  spec.source_count = sources;
  if (kind == Kind::kDecode) return spec;
  for (SourceSpec& source : spec.source) source.format = PASA_KV_BF16;
  if (kind == Kind::kPrefill) {
    spec.tokens = 4096;
    spec.source[0].len = 512;
  } else {
    spec.tokens = 32;
    spec.heads = 16;
    spec.dim = 576;
    spec.sink = Sink::kNone;
    for (SourceSpec& source : spec.source) source.lists = Lists::kRectLengths;
    spec.source[0].len = 8192;
  }
  return spec;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::string all_keys() {
  std::string keys;
  for (const Option& option : options()) keys.append(keys.empty() ? "" : ", ").append(option.key);
  return keys;
}

}  // namespace

int CaseSpec::resolved_dim() const {
  if (dim) return dim;
  for (int s = 0; s < source_count; ++s) {
    if (find_format(source[s].format)->dim == 576) return 576;
  }
  return 512;
}

bool is_text(std::string_view text) {
  return std::ranges::find(kKinds, text.substr(0, text.find(':')), &Word<Kind>::text) != std::end(kKinds);
}

CaseSpec parse_text(std::string_view text) {
  const std::size_t colon = text.find(':');
  const auto kind = std::ranges::find(kKinds, text.substr(0, colon), &Word<Kind>::text);
  require(PASA_ERROR_RANGE, kind != std::end(kKinds), "problem '", text,
          "' is neither a known name nor a description, expected decode:key=value,... or prefill:... or mla:...");
  std::vector<std::pair<const Option*, std::string_view>> given;
  const bool decode = kind->value == Kind::kDecode;
  int sources = decode ? 2 : 1;
  if (colon != std::string_view::npos && colon + 1 < text.size()) {
    for (std::string_view item : split(text.substr(colon + 1), ',')) {
      const std::size_t equals = item.find('=');
      const auto option = std::ranges::find(options(), item.substr(0, equals), &Option::key);
      require(PASA_ERROR_RANGE, option != options().end() && equals != std::string_view::npos, "problem key '",
              item.substr(0, equals), "' is ", option == options().end() ? "unknown" : "without a value",
              ", expected key=value with a key of: ", all_keys());
      given.emplace_back(&*option, item.substr(equals + 1));
      if (option->key == "len") sources = static_cast<int>(split(item.substr(equals + 1), '+').size());
    }
  }
  require(PASA_ERROR_RANGE, sources <= 2, "len names ", sources, " sources, expected 1 or 2");

  CaseSpec spec = defaults(kind->value, sources);
  if (decode && sources == 2) spec.source[0].len = 128;
  for (const auto& [option, value] : given) {
    const std::vector<std::string_view> values = option->per_source ? split(value, '+') : std::vector{value};
    require(PASA_ERROR_RANGE, values.size() == 1 || static_cast<int>(values.size()) == sources, option->key, "=", value,
            " names ", values.size(), " sources, but len names ", sources);
    for (int s = 0; s < (option->per_source ? sources : 1); ++s) {
      const std::string_view one = values[values.size() == 1 ? 0 : static_cast<std::size_t>(s)];
      require(PASA_ERROR_RANGE, option->set(spec, s, one), option->key, " is '", one, "', expected ", option->accepted);
    }
  }
  if (sources == 1) spec.source[1] = defaults(spec.kind, 1).source[1];
  return spec;
}

std::string to_text(const CaseSpec& spec) {
  const CaseSpec base = defaults(spec.kind, spec.source_count);
  constexpr std::string_view kAlways[] = {"T", "H", "fmt", "len"};
  std::string text = Words{kKinds}.print(spec.kind) + ":";
  bool first = true;
  for (const Option& option : options()) {
    const bool pair = option.per_source && spec.source_count == 2;
    const std::string a = option.get(spec, 0), b = pair ? option.get(spec, 1) : a;
    const bool differs = a != option.get(base, 0) || (pair && b != option.get(base, 1));
    if (!differs && std::ranges::find(kAlways, option.key) == std::end(kAlways)) continue;
    text += concat(first ? "" : ",", option.key, "=", a);
    // len alone tells how many sources there are, so it is always spelt out.
    if (pair && (a != b || option.key == "len")) text += "+" + b;
    first = false;
  }
  return text;
}

std::string text_help() {
  const CaseSpec base = defaults(Kind::kDecode, 1);
  std::string help =
      "A problem is a name (pasa bench --list) or decode:key=value,...; prefill:... and mla:... have other defaults\n"
      "Keys marked + take main+extra, or one value for both sources:\n";
  for (const Option& option : options()) {
    std::string key = concat(option.key, option.per_source ? "+" : "");
    key.resize(std::max<std::size_t>(key.size(), 13), ' ');
    help += concat("  ", key, " ", option.what, " [", option.accepted, "]; default ", option.get(base, 0), "\n");
  }
  return help;
}

}  // namespace pasa
