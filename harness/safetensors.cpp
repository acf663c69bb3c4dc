#include "harness/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>

#include "core/error.h"

namespace pasa {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxRank = 8;
constexpr std::size_t kDataAlignment = 64;  // of the first tensor in a file that we write

struct DtypeInfo {
  std::string_view name;
  std::uint64_t bytes;
};
constexpr DtypeInfo kDtypes[] = {{"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
                                 {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
                                 {"F32", 4},  {"C64", 8}, {"I64", 8}, {"U64", 8},     {"F64", 8}};

template <typename... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw Error(PASA_ERROR_VALUE, concat(parts...));
}

// A name from the file as it may stand in a one-line message.
std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  std::string result;
  for (char c : text.substr(0, kLongest)) result += c < ' ' || c == 127 ? '?' : c;
  return text.size() > kLongest ? result + "..." : result;
}

// What the header says of one tensor.
struct Entry {
  std::string name, dtype;
  std::vector<std::uint64_t> shape, offsets;
  bool has_shape = false, has_offsets = false;
};

// The header's grammar as a SAX handler: {"name": {"dtype": string, "shape": [n...], "data_offsets": [n, n]}...,
// "__metadata__": {string: string...}}. Anything else stops the parser at once, so depth and memory stay bounded, and a
// repeated key is seen, which a tree would hide.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { return unexpected("a fraction"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kShape && state_ != State::kOffsets) return unexpected("a number");
    std::vector<std::uint64_t>& list = state_ == State::kShape ? entries.back().shape : entries.back().offsets;
    if (list.size() >= kMaxRank) return fail(concat(where(), " has more than ", kMaxRank, " numbers"));
    list.push_back(value);
    return true;
  }
  bool string(string_t& value) override {
    if (state_ == State::kMetadata) {
      metadata[key_] = std::move(value);
      return true;
    }
    if (state_ != State::kTensor || key_ != "dtype") return unexpected("a string");
    entries.back().dtype = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override {
    if (state_ == State::kStart) {
      state_ = State::kTop;
    } else if (state_ == State::kTop && key_ == "__metadata__") {
      state_ = State::kMetadata;
    } else if (state_ == State::kTop) {
      state_ = State::kTensor;
      entries.push_back({.name = key_});
    } else {
      return unexpected("an object");
    }
    return true;
  }
  bool key(string_t& name) override {
    key_ = std::move(name);
    std::set<std::string>& seen = state_ == State::kTop ? names_ : inner_;
    if (!seen.insert(key_).second) return fail(concat(where(), " appears twice"));
    if (state_ == State::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets") {
      return fail(concat(where(), " is no key of a tensor, expected dtype, shape, data_offsets"));
    }
    return true;
  }
  bool end_object() override {
    state_ = state_ == State::kTop ? State::kDone : State::kTop;
    inner_.clear();
    return true;
  }
  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || key_ == "dtype") return unexpected("a list");
    state_ = key_ == "shape" ? State::kShape : State::kOffsets;
    (state_ == State::kShape ? entries.back().has_shape : entries.back().has_offsets) = true;
    return true;
  }
  bool end_array() override {
    state_ = State::kTensor;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return fail(concat("the header is no valid JSON at its byte ", position));
  }

 private:
  enum class State { kStart, kTop, kTensor, kShape, kOffsets, kMetadata, kDone };
  State state_ = State::kStart;
  std::string key_;
  std::set<std::string> names_, inner_;

  std::string where() const {
    if (state_ == State::kStart || state_ == State::kTop || state_ == State::kDone) {
      return key_.empty() ? "the header" : concat("'", printable(key_), "'");
    }
    const std::string outer = state_ == State::kMetadata ? "__metadata__" : printable(entries.back().name);
    return concat("'", printable(key_), "' of '", outer, "'");
  }
  bool unexpected(const char* what) { return fail(concat(where(), " holds ", what, ", which has no place there")); }
  bool fail(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }
};

StoredTensor check_entry(const Entry& entry, std::span<const std::byte> data) {
  const std::string name = printable(entry.name);
  const auto* dtype = std::ranges::find(kDtypes, entry.dtype, &DtypeInfo::name);
  if (dtype == std::end(kDtypes)) {
    refuse("tensor '", name, "' has dtype '", printable(entry.dtype), "', which is no safetensors dtype");
  }
  if (!entry.has_shape) refuse("tensor '", name, "' has no shape");
  if (!entry.has_offsets || entry.offsets.size() != 2) refuse("tensor '", name, "' needs two data_offsets");
  const std::uint64_t begin = entry.offsets[0], end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    refuse("tensor '", name, "' has data_offsets [", begin, ", ", end, "], but the file holds ", data.size(),
           " bytes of tensors");
  }
  std::uint64_t bytes = dtype->bytes;
  std::int64_t extent = static_cast<std::int64_t>(bytes);  // as if no size were 0: strides must fit too
  for (std::uint64_t size : entry.shape) {
    bytes *= size;
    if (__builtin_mul_overflow(extent, std::max<std::uint64_t>(size, 1), &extent)) {
      refuse("tensor '", name, "' has a shape whose size overflows");
    }
  }
  if (bytes != end - begin) {
    refuse("tensor '", name, "' has ", end - begin, " bytes, but its shape and dtype ", entry.dtype, " need ", bytes);
  }
  return {entry.name, entry.dtype, {entry.shape.begin(), entry.shape.end()}, data.subspan(begin, bytes)};
}

}  // namespace

const StoredTensor* Container::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &StoredTensor::name);
  return found == tensors.end() ? nullptr : &*found;
}

Container parse_safetensors(std::span<const std::byte> file) {
  std::uint64_t header_bytes = 0;
  if (file.size() < sizeof header_bytes)
    refuse("the file has ", file.size(), " bytes, too few for a safetensors header");
  std::memcpy(&header_bytes, file.data(), sizeof header_bytes);
  if (header_bytes >= kMaxHeaderBytes) {
    refuse("the header length is ", header_bytes, ", expected less than ", kMaxHeaderBytes,
           ": not a safetensors file?");
  }
  if (header_bytes > file.size() - sizeof header_bytes) {
    refuse("the header length is ", header_bytes, ", but only ", file.size() - sizeof header_bytes, " bytes follow it");
  }
  const auto* text = reinterpret_cast<const char*>(file.data()) + sizeof header_bytes;
  HeaderReader reader;
  nlohmann::json::sax_parse(text, text + header_bytes, &reader);
  if (!reader.error.empty()) refuse(reader.error);

  Container container;
  container.metadata = std::move(reader.metadata);
  const std::span<const std::byte> data = file.subspan(sizeof header_bytes + header_bytes);
  for (const Entry& entry : reader.entries) container.tensors.push_back(check_entry(entry, data));
  std::ranges::stable_sort(container.tensors, {}, [](const StoredTensor& t) { return t.bytes.data(); });
  const StoredTensor* previous = nullptr;
  for (const StoredTensor& tensor : container.tensors) {
    if (tensor.bytes.empty()) continue;
    if (previous && previous->bytes.data() + previous->bytes.size() > tensor.bytes.data()) {
      refuse("tensors '", printable(previous->name), "' and '", printable(tensor.name), "' overlap");
    }
    previous = &tensor;
  }
  return container;
}

void write_safetensors(const std::filesystem::path& path, const std::vector<TensorSource>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    std::uint64_t bytes = 0;
    for (std::span<const std::byte> piece : tensor.pieces) bytes += piece.size();
    header[tensor.name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.append((kDataAlignment - (8 + text.size()) % kDataAlignment) % kDataAlignment, ' ');

  // A device such as /dev/null is written to; a regular file is replaced only when its successor is complete.
  struct stat status {};
  const bool in_place = stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode);
  std::filesystem::path target = path;
  if (!in_place) target += ".part" + std::to_string(getpid());
  const auto fail = [&] {
    const int error = errno;
    if (!in_place) unlink(target.c_str());
    throw std::system_error(error, std::generic_category(), path.string());
  };
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(target.c_str(), "wb"), &std::fclose);
  if (!file) throw std::system_error(errno, std::generic_category(), path.string());
  const auto put = [&](const void* data, std::size_t bytes) {
    if (bytes && std::fwrite(data, 1, bytes, file.get()) != bytes) fail();
  };
  const std::uint64_t header_bytes = text.size();
  put(&header_bytes, sizeof header_bytes);
  put(text.data(), text.size());
  for (const TensorSource& tensor : tensors) {
    for (std::span<const std::byte> piece : tensor.pieces) put(piece.data(), piece.size());
  }
  if (std::fclose(file.release()) != 0) fail();
  if (!in_place && std::rename(target.c_str(), path.c_str()) != 0) fail();
}

}  // namespace pasa
