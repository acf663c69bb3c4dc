#include "harness/case_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "harness/safetensors.h"

namespace pasa {
namespace {

struct DtypeName {
  std::string_view name;
  pasa_dtype dtype;
};
constexpr DtypeName kDtypes[] = {
    {"BF16", PASA_BF16}, {"F16", PASA_F16}, {"F32", PASA_F32}, {"U8", PASA_U8},
    {"I8", PASA_I8},     {"I32", PASA_I32}, {"I64", PASA_I64}, {"F8_E4M3", PASA_F8_E4M3FN}};

constexpr std::string_view kMetadataKeys[] = {"kv_format", "extra_kv_format", "softmax_scale", "kv_scale",
                                              "queries_per_list"};

std::string format_names() {
  std::string names;
  for (const FormatInfo& info : kFormats) names.append(names.empty() ? "" : ", ").append(info.name);
  return names;
}

// Lists every name that is not known, so that one look mends them all.
template <typename Names, typename Known>
void refuse_unknown(const char* what, const Names& names, const Known& known) {
  std::string unknown, accepted;
  for (std::string_view name : names) {
    if (name.starts_with("x_") || std::ranges::find(known, name) != std::end(known)) continue;
    unknown += unknown.empty() ? "" : ", ";
    for (char c : name.substr(0, 64)) unknown += c < ' ' || c == 127 ? '?' : c;
  }
  if (unknown.empty()) return;
  for (std::string_view name : known) accepted.append(accepted.empty() ? "" : ", ").append(name);
  throw Error(PASA_ERROR_VALUE,
              concat("unknown ", what, " ", unknown, ", expected only ", accepted, " and names that begin with x_"));
}

pasa_kv_format parse_format(const char* key, const std::string& value) {
  for (const FormatInfo& info : kFormats) {
    if (info.name == value) return info.format;
  }
  std::string shown = value.substr(0, 64);
  std::ranges::replace_if(
      shown, [](char c) { return c < ' ' || c == 127; }, '?');
  throw Error(PASA_ERROR_RANGE, concat(key, " is '", shown, "', expected one of ", format_names()));
}

template <typename Number>
Number parse_number(const char* key, const std::string& value, const char* example) {
  Number number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  require(PASA_ERROR_RANGE, error == std::errc() && end == value.data() + value.size(), key,
          " is no number, expected one such as ", example);
  return number;
}

// A view of the stored bytes; a copy only where the file's layout misaligns them.
pasa_tensor view(const StoredTensor& stored, std::size_t alignment, Case& c) {
  const auto* known = std::ranges::find(kDtypes, std::string_view(stored.dtype), &DtypeName::name);
  require(PASA_ERROR_DTYPE, known != std::end(kDtypes), stored.name, " is ", stored.dtype,
          ", expected one of BF16, F16, F32, U8, F8_E4M3, I32");
  require(PASA_ERROR_RANK, !stored.shape.empty() && stored.shape.size() <= 4, stored.name, " has ", stored.shape.size(),
          " dimensions, expected 1 to 4");
  void* data = const_cast<std::byte*>(stored.bytes.data());  // the C struct has no const; inputs are never written
  alignment = std::max(alignment, dtype_bytes(known->dtype));
  if (!stored.bytes.empty() && reinterpret_cast<std::uintptr_t>(data) % alignment != 0) {
    c.memory.push_back(Memory::anonymous(stored.bytes.size()));
    std::memcpy(c.memory.back().data(), stored.bytes.data(), stored.bytes.size());
    data = c.memory.back().data();
    c.notes.push_back(concat(stored.name, " was copied (", stored.bytes.size(),
                             " bytes): the file does not align it to ", alignment, " bytes"));
  }
  return dense_view(data, known->dtype, stored.shape);
}

void read_source(const Container& file, pasa_source& source, const char* kv_name, pasa_kv_format format,
                 pasa_tensor& kv, Case& c) {
  source.format = format;
  const FormatInfo& info = *find_format(format);
  kv = view(*file.find(kv_name), static_cast<std::size_t>(info.alignment), c);
  // F8_E4M3 or U8: the bytes are the format's either way.
  for (pasa_tensor* piece : {&kv, &source.kv_pe}) {
    if (info.bytes && piece->dtype == PASA_F8_E4M3FN) piece->dtype = PASA_U8;
  }
}

void require_expected_shape(const Case& c, const char* name, const pasa_tensor& tensor, int rank) {
  const std::int64_t want[] = {c.tokens(), c.heads(), kValueDim};
  const bool fits = tensor.rank == rank && std::equal(want, want + rank, tensor.shape);
  require(PASA_ERROR_SHAPE, fits, name, " does not fit q, expected [", want[0], ", ", want[1],
          rank == 3 ? ", 512]" : "]");
}

}  // namespace

Case parse_case(std::span<const std::byte> bytes) {
  const Container file = parse_safetensors(bytes);
  Case c;
  pasa_problem& p = c.problem;
  p.struct_size = sizeof p;

  std::vector<NamedTensor> tensors = input_tensors(p);
  tensors.push_back({"expected_out", &c.expected_out});
  tensors.push_back({"expected_lse", &c.expected_lse});
  std::vector<std::string_view> known, present, keys;
  for (const NamedTensor& t : tensors) known.push_back(t.name);
  for (const StoredTensor& t : file.tensors) present.push_back(t.name);
  for (const auto& [key, value] : file.metadata) keys.push_back(key);
  refuse_unknown("tensor", present, known);
  refuse_unknown("metadata key", keys, kMetadataKeys);

  for (const char* name : {"q", "kv", "kv_indices"}) {
    require(PASA_ERROR_COMBINATION, file.find(name) != nullptr, name, " is absent, expected a tensor");
  }
  const auto value = [&](const char* key) -> const std::string* {
    const auto found = file.metadata.find(key);
    return found == file.metadata.end() ? nullptr : &found->second;
  };
  const std::string* format = value("kv_format");
  require(PASA_ERROR_COMBINATION, format != nullptr, "kv_format is absent from the metadata, expected one of ",
          format_names());
  const std::string* extra_format = value("extra_kv_format");
  require(PASA_ERROR_COMBINATION, !extra_format || file.find("extra_kv"),
          "extra_kv_format is given without extra_kv, expected both or none");

  for (const auto& [name, tensor] : tensors) {
    const StoredTensor* stored = file.find(name);
    const bool pool = name == std::string_view("kv") || name == std::string_view("extra_kv");
    if (stored && !pool) *tensor = view(*stored, 1, c);
  }
  const pasa_kv_format main_format = parse_format("kv_format", *format);
  read_source(file, p.main, "kv", main_format, p.main.kv, c);
  if (file.find("extra_kv")) {
    const auto chosen = extra_format ? parse_format("extra_kv_format", *extra_format) : main_format;
    read_source(file, p.extra, "extra_kv", chosen, p.extra.kv, c);
  }
  if (const std::string* scale = value("softmax_scale")) {
    p.softmax_scale = parse_number<double>("softmax_scale", *scale, "0.044194173824159216");
    p.has_softmax_scale = 1;
  }
  // In the struct 0 stands for an absent entry.
  if (const std::string* scale = value("kv_scale")) {
    p.kv_scale = parse_number<double>("kv_scale", *scale, "0.5");
    require(PASA_ERROR_RANGE, p.kv_scale != 0, "kv_scale is 0, expected another number");
  }
  if (const std::string* queries = value("queries_per_list")) {
    p.queries_per_list = parse_number<std::int32_t>("queries_per_list", *queries, "2");
    require(PASA_ERROR_RANGE, p.queries_per_list > 0, "queries_per_list is ", p.queries_per_list,
            ", expected at least 1");
  }

  require(PASA_ERROR_RANK, p.q.rank == 3, "q has ", p.q.rank, " dimensions, expected 3: [T, H, D]");
  if (c.expected_out.rank) {
    require(PASA_ERROR_DTYPE, c.expected_out.dtype == PASA_F32 || c.expected_out.dtype == PASA_BF16,
            "expected_out has a wrong dtype, expected F32 or BF16");
    require_expected_shape(c, "expected_out", c.expected_out, 3);
  }
  if (c.expected_lse.rank) {
    require(PASA_ERROR_DTYPE, c.expected_lse.dtype == PASA_F32, "expected_lse has a wrong dtype, expected F32");
    require_expected_shape(c, "expected_lse", c.expected_lse, 2);
  }
  return c;
}

Case open_case(const std::filesystem::path& path) {
  Memory map = Memory::file(path);
  Case c = parse_case(map.bytes());
  c.name = path.filename().string();
  c.memory.push_back(std::move(map));
  return c;
}

namespace {

TensorSource to_file(const std::string& name, const pasa_tensor& tensor) {
  TensorSource source{.name = name};
  const auto* known = std::ranges::find(kDtypes, tensor.dtype, &DtypeName::dtype);
  source.dtype = known == std::end(kDtypes) ? "U8" : known->name;  // fnuz codes have no name of their own
  source.shape.assign(tensor.shape, tensor.shape + tensor.rank);
  for (std::span<std::byte> run : contiguous_runs(tensor)) source.pieces.emplace_back(run);
  return source;
}

std::string shortest(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

void save_case(const std::filesystem::path& path, const Case& c) {
  pasa_problem p = c.problem;
  std::vector<TensorSource> tensors;
  // In the order of input_tensors() wide types follow the pools, so that every tensor comes to lie aligned.
  for (const auto& [name, tensor] : input_tensors(p)) {
    if (tensor->rank) tensors.push_back(to_file(name, *tensor));
  }
  if (c.expected_lse.rank) tensors.push_back(to_file("expected_lse", c.expected_lse));
  if (c.expected_out.rank) tensors.push_back(to_file("expected_out", c.expected_out));
  std::map<std::string, std::string> metadata{{"kv_format", std::string(find_format(p.main.format)->name)}};
  if (p.extra.kv.rank) metadata["extra_kv_format"] = find_format(p.extra.format)->name;
  if (p.has_softmax_scale) metadata["softmax_scale"] = shortest(p.softmax_scale);
  if (p.kv_scale != 0 && p.kv_scale != 1) metadata["kv_scale"] = shortest(p.kv_scale);
  if (p.queries_per_list > 1) metadata["queries_per_list"] = std::to_string(p.queries_per_list);
  write_safetensors(path, tensors, metadata);
}

void save_result(const std::filesystem::path& path, const Case& c, const std::string& device,
                 const std::string& kernel) {
  std::vector<TensorSource> tensors{to_file("lse", c.problem.lse), to_file("out", c.problem.out)};
  write_safetensors(path, tensors, {{"device", device}, {"kernel", kernel}, {"pasa_version", pasa_version()}});
}

}  // namespace pasa
