#include "core/tuning.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "core/error.h"

namespace pasa {
namespace {

// Reads the JSON that it is asked for; anything else is an Error that names the byte.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  template <typename Member>  // member(key) reads the value
  void object(Member&& member) {
    items('{', '}', [&] {
      const std::string key = string();
      expect(':');
      member(key);
    });
  }
  template <typename Element>  // element() reads it
  void array(Element&& element) {
    items('[', ']', element);
  }

  std::string string() {
    expect('"');
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (text_[at_] == '\\') {
        ++at_;
        if (peek() != '"' && peek() != '\\' && peek() != '/') fail("a plain character");
      }
      value += text_[at_++];
    }
    expect('"');
    return value;
  }

  std::int64_t integer(std::int64_t least, std::int64_t most) {
    skip_space();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc() || value < least || value > most) fail(concat("a number from ", least, " to ", most));
    at_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  // Any value: what a later version may add.
  void skip(int depth = 0) {
    skip_space();
    if (depth > 16) fail("less nesting");
    if (peek() == '{') {
      object([&](const std::string&) { skip(depth + 1); });
    } else if (peek() == '[') {
      array([&] { skip(depth + 1); });
    } else if (peek() == '"') {
      string();
    } else {  // a number or a name
      const std::size_t begin = at_;
      while (at_ < text_.size() && std::string_view(",]} \t\r\n").find(text_[at_]) == std::string_view::npos) ++at_;
      if (at_ == begin) fail("a value");
    }
  }

  void end() {
    skip_space();
    if (at_ != text_.size()) fail("nothing more");
  }

 private:
  template <typename Item>
  void items(char open, char close, Item&& item) {
    expect(open);
    if (next_is(close)) return expect(close);
    for (item(); !next_is(close); item()) expect(',');
    expect(close);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos) ++at_;
  }
  bool next_is(char c) {
    skip_space();
    return peek() == c;
  }
  void expect(char c) {
    if (!next_is(c)) fail(std::string_view(&c, 1));
    ++at_;
  }
  [[noreturn]] void fail(std::string_view expected) const {
    throw Error(PASA_ERROR_VALUE, concat("expected ", expected, " at byte ", at_));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

// What no measurement asks for. A split row costs memory, so parts are bounded too.
constexpr std::int64_t kMostSplits = 256, kMaxParts = 1 << 16;

Tuned read_entry(Reader& reader) {
  Tuned entry;
  reader.object([&](const std::string& key) {
    if (key == "kernel") {
      entry.kernel = reader.string();
    } else if (key == "keys") {
      entry.keys = reader.string();
    } else if (key == "heads") {
      entry.heads = static_cast<int>(reader.integer(1, INT32_MAX / 2));
    } else if (key == "tokens") {
      entry.tokens = reader.integer(1, INT32_MAX);
    } else if (key == "length") {
      entry.length = reader.integer(1, INT32_MAX);
    } else if (key == "block_h") {
      entry.block_h = static_cast<int>(reader.integer(0, 1 << 12));
    } else if (key == "splits") {
      entry.splits = static_cast<int>(reader.integer(0, kMostSplits));
    } else {
      reader.skip();
    }
  });
  require(PASA_ERROR_VALUE, entry.heads && entry.tokens && entry.length && !entry.kernel.empty(),
          "an entry lacks kernel, heads, tokens or length");
  require(PASA_ERROR_VALUE, entry.splits < 2 || entry.tokens * entry.splits <= kMaxParts, "an entry has ", entry.tokens,
          " rows x ", entry.splits, " splits, expected at most ", kMaxParts);
  return entry;
}

std::int64_t length_of(const Problem& problem) {
  std::int64_t length = 0;
  for (int i = 0; i < problem.source_count; ++i) length += problem.average_keys(i);
  return length;
}

constexpr std::int64_t tiles_of(std::int64_t heads) { return (heads + 15) / 16; }

}  // namespace

std::string key_class(const Shape& shape) {
  bool any_wide = false, any_fp8 = false, is_twice = false;
  for (int i = 0; i < shape.source_count; ++i) {
    (find_format(shape.source[i].format)->bytes ? any_fp8 : any_wide) = true;
    is_twice |= shape.word == Word16::kF16 && shape.source[i].format != PASA_KV_F16;
  }
  return concat(any_fp8 && any_wide ? "mixed" : any_fp8 ? "fp8" : "16-bit", is_twice ? " for f16 queries" : "");
}

bool Tuned::serves(const Problem& problem) const {
  const std::int64_t keys_of_row = length_of(problem);
  return problem.tokens <= tokens && problem.tokens * 8 > tokens * 7 && keys_of_row <= length &&
         keys_of_row * 4 > length * 3 && tiles_of(problem.heads) == tiles_of(heads) && key_class(problem) == keys;
}

std::string tuning_path() {
  if (const char* named = std::getenv("PASA_TUNE_TABLE")) return named;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && *cache) return concat(cache, "/pasa/tune.json");
  if (const char* home = std::getenv("HOME"); home && *home) return concat(home, "/.cache/pasa/tune.json");
  return "";
}

TuningTable parse_tuning(std::string path, std::string_view text) {
  TuningTable table{.path = std::move(path)};
  try {
    Reader reader(text);
    std::string version;
    reader.object([&](const std::string& key) {
      if (key == "pasa") {
        version = reader.string();
      } else if (key == "machines") {
        reader.object([&](const std::string& machine) {
          reader.array([&] { table.machines[machine].push_back(read_entry(reader)); });
        });
      } else {
        reader.skip();
      }
    });
    reader.end();
    require(PASA_ERROR_VALUE, version == pasa_version(), "made by pasa ", version.empty() ? "?" : version, ", this is ",
            pasa_version());
  } catch (const Error& error) {
    table.fault = concat(table.path, ": ", error.what());
    table.machines.clear();
  }
  return table;
}

TuningTable load_tuning(std::string path) {
  if (path.empty()) return {.fault = "no table is named"};
  std::error_code ignored;
  std::ifstream file(path, std::ios::binary);
  if (!file || !std::filesystem::is_regular_file(path, ignored)) {
    return {.path = path, .fault = concat(path, ": no such file")};
  }
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return parse_tuning(std::move(path), text);
}

const TuningTable& tuning_table() {
  static const TuningTable kTable = load_tuning(tuning_path());
  return kTable;
}

std::string apply_tuning(const TuningTable& table, const Backend& backend, Problem& problem) {
  if (backend.machine == nullptr) return "";
  if (problem.splits || problem.block_h) return "not tuned: splits or block_h is asked for";
  if (!table.fault.empty()) return "not tuned: " + table.fault;  // at every plan: no stream
  const std::string machine = backend.machine(problem);
  const auto entries = table.machines.find(machine);
  if (entries == table.machines.end()) return concat("not tuned: ", table.path, ": nothing about ", machine);
  const Tuned* best = nullptr;
  for (const Tuned& entry : entries->second) {
    if (entry.kernel != backend.name || !entry.serves(problem)) continue;
    if (!best || std::pair(entry.tokens, entry.length) < std::pair(best->tokens, best->length)) best = &entry;
  }
  if (!best) {
    return concat("not tuned: ", table.path, ": nothing better was found, or nothing timed, near ", problem.heads,
                  " heads, ", problem.tokens, " rows, ", length_of(problem), " ", key_class(problem), " keys");
  }
  problem.block_h = best->block_h;
  problem.splits = best->splits;
  return concat("tuned: ", table.path, ": as for ", best->heads, " heads, ", best->tokens, " rows, ", best->length,
                " keys");
}

}  // namespace pasa
