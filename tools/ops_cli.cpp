// The operations on files. A subcommand reads the tensors of a safetensors file that are named as the arguments of its C
// function, takes scalars as options, runs on the CPU and writes the outputs to a new file. A tensor that the operation does
// not have is an error, as in a case file.
#include "tools/ops_cli.h"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "harness/case.h"
#include "harness/device.h"
#include "harness/safetensors.h"
#include "pasa/ops.h"

namespace pasa {
namespace {

struct DtypeName {
  const char* name;
  pasa_dtype dtype;
};
constexpr DtypeName kDtypes[] = {{"BF16", PASA_BF16}, {"F16", PASA_F16},           {"F32", PASA_F32},
                                 {"U8", PASA_U8},     {"BOOL", PASA_U8},           {"I8", PASA_I8},
                                 {"I32", PASA_I32},   {"F8_E4M3", PASA_F8_E4M3FN}, {"I64", PASA_I64}};

// The tensors of a file, copied to where they are aligned.
class Input {
 public:
  explicit Input(const std::string& path) : file_(Memory::file(path)), container_(parse_safetensors(file_.bytes())) {}

  pasa_tensor take(const std::string& name) {
    taken_.insert(name);
    const StoredTensor* stored = container_.find(name);
    if (!stored) return pasa_tensor{};
    const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                     [&](const DtypeName& d) { return stored->dtype == d.name; });
    require(PASA_ERROR_DTYPE, dtype != std::end(kDtypes), name, " is ", stored->dtype,
            ", expected a dtype that an operation takes");
    require(PASA_ERROR_RANK, !stored->shape.empty() && stored->shape.size() <= 4, name, " has rank ",
            stored->shape.size(), ", expected 1 to 4");
    memory_.push_back(Memory::anonymous(std::max<std::size_t>(stored->bytes.size(), 1)));
    std::copy(stored->bytes.begin(), stored->bytes.end(), memory_.back().data());
    return dense_view(memory_.back().data(), dtype->dtype, stored->shape);
  }

  // The option if given, else the file's kv_format.
  pasa_kv_format format(const std::string& option) const {
    const auto found = container_.metadata.find("kv_format");
    const std::string name = !option.empty() ? option : found != container_.metadata.end() ? found->second : "";
    for (const FormatInfo& info : kFormats) {
      if (info.name == name) return info.format;
    }
    throw Error(PASA_ERROR_RANGE, concat("--format is '", name, "', expected a KV format (or kv_format in the file)"));
  }

  void refuse_the_rest() const {
    for (const StoredTensor& stored : container_.tensors) {
      if (taken_.count(stored.name) || stored.name.starts_with("x_")) continue;
      std::string names;
      for (const std::string& name : taken_) names += (names.empty() ? "" : ", ") + name;
      throw Error(PASA_ERROR_VALUE, concat("tensor '", stored.name, "' is none of this operation, expected ", names));
    }
  }

 private:
  Memory file_;
  Container container_;
  std::vector<Memory> memory_;
  std::set<std::string> taken_;
};

class Output {
 public:
  pasa_tensor add(const std::string& name, pasa_dtype dtype, std::vector<std::int64_t> shape) {
    std::size_t bytes = dtype_bytes(dtype);
    for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
    memory_.push_back(Memory::anonymous(std::max<std::size_t>(bytes, 1)));
    const pasa_tensor tensor = dense_view(memory_.back().data(), dtype, shape);
    add(name, tensor);
    return tensor;
  }
  void add(const std::string& name, const pasa_tensor& t) {
    const auto* dtype =
        std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const DtypeName& d) { return t.dtype == d.dtype; });
    const auto bytes = static_cast<std::size_t>(element_count(t)) * dtype_bytes(t.dtype);
    tensors_.push_back(
        {name, dtype->name, {t.shape, t.shape + t.rank}, {{static_cast<const std::byte*>(t.data), bytes}}});
  }
  void keep_first(const std::string& name, std::int64_t count) {  // of a vector of I32
    for (TensorSource& tensor : tensors_) {
      if (tensor.name != name) continue;
      tensor.shape[0] = count;
      tensor.pieces[0] = tensor.pieces[0].first(static_cast<std::size_t>(count) * 4);
    }
  }
  void save(const std::string& path) const { write_safetensors(path, tensors_, metadata); }

  std::map<std::string, std::string> metadata = {{"pasa_version", pasa_version()}};

 private:
  std::vector<Memory> memory_;
  std::vector<TensorSource> tensors_;
};

struct Options {
  std::string input, output, format, dtype = "bf16";
  std::int64_t block_size = 0, num_blocks = 0, base = 0, offset = 0, max_tokens = -1;
  std::int64_t window = 0, ratio = 1, topk = 0, width = 0, num_rows = -1, rows_per_request = 0, compressed_rows = 0;
  bool power_of_two = false, nan_to_zero = false, ring = false, rect = false;
};

template <typename Args>
Args make_args() {
  Args args{};
  args.struct_size = sizeof args;
  return args;
}

const std::int32_t* int_data(const pasa_tensor& t) { return static_cast<const std::int32_t*>(t.data); }
bool is_ints(const pasa_tensor& t) { return t.rank == 1 && t.dtype == PASA_I32; }

// ---- cache

pasa_cache read_cache(Input& in, const Options& o) {
  const pasa_kv_format format = in.format(o.format);
  return {.format = format, .kv = in.take("kv"), .kv_scales = in.take("kv_scales"), .block_size = o.block_size};
}

void cache_write(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_cache_write_args>();
  args.cache = read_cache(in, o);
  args.k = in.take("k");
  args.slot_mapping = in.take("slot_mapping");
  args.flags = o.power_of_two ? PASA_POWER_OF_TWO_SCALES : 0;
  in.refuse_the_rest();
  check_status(pasa_cache_write(&args, nullptr));
  out.metadata["kv_format"] = find_format(args.cache.format)->name;
  out.add("kv", args.cache.kv);
  if (args.cache.kv_scales.rank) out.add("kv_scales", args.cache.kv_scales);
}

void cache_gather(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_cache_gather_args>();
  args.cache = read_cache(in, o);
  args.slots = in.take("slots");
  args.seq_lens = in.take("seq_lens");
  args.gather_lens = in.take("gather_lens");
  args.block_table = in.take("block_table");
  args.offset = o.offset;
  args.flags = o.nan_to_zero ? PASA_NAN_TO_ZERO : 0;
  in.refuse_the_rest();
  const pasa_dtype dtype = o.dtype == "f16" ? PASA_F16 : PASA_BF16;
  const FormatInfo& info = *find_format(args.cache.format);
  const std::int64_t dim = info.dim ? info.dim : args.cache.kv.rank ? args.cache.kv.shape[args.cache.kv.rank - 1] : 0;
  if (args.slots.rank) {
    args.out = out.add("out", dtype, {args.slots.shape[0], dim});
  } else {
    const pasa_tensor& lens = args.gather_lens.rank ? args.gather_lens : args.seq_lens;
    std::int64_t rows = o.max_tokens;
    for (std::int64_t r = 0; o.max_tokens < 0 && is_ints(lens) && r < lens.shape[0]; ++r) {
      rows = std::max<std::int64_t>(rows, o.offset + int_data(lens)[r]);
    }
    args.out = out.add("out", dtype, {args.seq_lens.shape[0], std::max<std::int64_t>(rows, 0), dim});
  }
  check_status(pasa_cache_gather(&args, nullptr));
}

// ---- indices

pasa_paging read_paging(Input& in, const Options& o) {
  return {.block_table = in.take("block_table"),
          .block_size = o.block_size,
          .num_blocks = o.num_blocks,
          .base = o.base,
          .ring = o.ring};
}

pasa_queries read_queries(Input& in) { return {in.take("positions"), in.take("token_to_req"), in.take("is_valid")}; }

// Runs a list builder for `rows` rows of at most `longest` entries.
template <typename Args>
void build(Args& args, pasa_status (*function)(const Args*, pasa_stream), const Input& in, const Options& o,
           std::int64_t rows, std::int64_t longest, Output& out) {
  in.refuse_the_rest();
  const std::int64_t width = std::max<std::int64_t>(longest, 0);
  require(PASA_ERROR_OVERFLOW, width <= INT32_MAX && (width == 0 || rows <= INT32_MAX / width), "lists of ", rows,
          " * ", width, " entries, expected at most ", INT32_MAX);
  if (o.rect) {
    args.lists.indices = out.add("indices", PASA_I32, {rows, width});
  } else {
    args.lists.indices = out.add("indices", PASA_I32, {rows * width});
    args.lists.indptr = out.add("indptr", PASA_I32, {rows + 1});
  }
  args.lists.lengths = out.add("lengths", PASA_I32, {rows});
  check_status(function(&args, nullptr));
  if (!o.rect) out.keep_first("indices", int_data(args.lists.indptr)[rows]);
}

void indices_slots(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_slots_args>();
  args.positions = in.take("positions");
  args.token_to_req = in.take("token_to_req");
  args.paging = read_paging(in, o);
  args.ratio = o.ratio;
  in.refuse_the_rest();
  args.slots = out.add("slots", PASA_I64, {args.positions.shape, args.positions.shape + args.positions.rank});
  check_status(pasa_slots(&args, nullptr));
}

void indices_counts(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_token_counts_args>();
  args.positions = in.take("positions");
  args.window = o.window;
  args.compress_ratio = o.ratio;
  args.topk = o.topk;
  args.width = o.width;
  in.refuse_the_rest();
  args.n_window = out.add("n_window", PASA_I32, {args.positions.shape[0]});
  args.n_compressed = out.add("n_compressed", PASA_I32, {args.positions.shape[0]});
  check_status(pasa_token_counts(&args, nullptr));
}

void indices_dense(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_list_dense_args>();
  args.indices = in.take("indices");
  args.lengths = in.take("lengths");
  args.num_rows = o.num_rows;
  args.has_num_rows = o.num_rows >= 0;
  const std::int64_t width = args.indices.rank ? args.indices.shape[args.indices.rank - 1] : 0;
  for (std::int64_t t = 0; is_ints(args.lengths) && t < args.lengths.shape[0]; ++t) {
    require(PASA_ERROR_VALUE, int_data(args.lengths)[t] >= 0 && int_data(args.lengths)[t] <= width, "lengths[", t,
            "] is ", int_data(args.lengths)[t], ", expected 0 to ", width);
  }
  build(args, pasa_list_dense, in, o, element_count(args.indices) / std::max<std::int64_t>(width, 1), width, out);
}

void indices_topk(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_list_topk_args>();
  args.topk_indices = in.take("topk_indices");
  args.token_to_req = in.take("token_to_req");
  args.is_valid = in.take("is_valid");
  args.paging = read_paging(in, o);
  build(args, pasa_list_topk, in, o, args.topk_indices.shape[0], args.topk_indices.shape[1], out);
}

void indices_combine(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_list_combine_args>();
  args.topk_indices = in.take("topk_indices");
  args.query_start_loc = in.take("query_start_loc");
  args.seq_lens = in.take("seq_lens");
  args.gather_lens = in.take("gather_lens");
  args.window = o.window;
  args.ratio = o.ratio;
  args.topk = o.topk;
  args.rows_per_request = o.rows_per_request;
  args.compressed_rows = o.compressed_rows;
  std::int64_t rows = args.topk_indices.shape[0];
  if (const pasa_tensor& starts = args.query_start_loc; is_ints(starts) && starts.shape[0] > 0) {
    for (std::int64_t r = 1; r < starts.shape[0]; ++r) {
      require(PASA_ERROR_VALUE, int_data(starts)[r] >= int_data(starts)[r - 1], "query_start_loc[", r, "] is ",
              int_data(starts)[r], ", expected at least the ", int_data(starts)[r - 1], " before it");
    }
    if (!args.topk_indices.rank) rows = std::int64_t{int_data(starts)[starts.shape[0] - 1]} - int_data(starts)[0];
  }
  build(args, pasa_list_combine, in, o, rows, o.topk + o.window, out);
}

void indices_compressed(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_list_compressed_args>();
  args.queries = read_queries(in);
  args.paging = read_paging(in, o);
  args.ratio = o.ratio;
  args.width = o.width;
  build(args, pasa_list_compressed, in, o, args.queries.positions.shape[0], o.width, out);
}

void indices_window(Input& in, const Options& o, Output& out) {
  auto args = make_args<pasa_list_window_args>();
  args.queries = read_queries(in);
  args.paging = read_paging(in, o);
  args.window = o.window;
  build(args, pasa_list_window, in, o, args.queries.positions.shape[0], o.window, out);
}

// ---- the commands

class Commands {
 public:
  // run: reads the input, fills the output.
  CLI::App* add(CLI::App* group, const char* name, const char* what, void (*run)(Input&, const Options&, Output&)) {
    CLI::App* command = group->add_subcommand(name, what);
    command->add_option("input", options_->input, "a safetensors file with the operation's tensors")->required();
    command->add_option("-o,--output", options_->output, "the file for its results")->required();
    command->callback([options = options_, run] {
      Input in(options->input);
      Output out;
      run(in, *options, out);
      out.save(options->output);
    });
    command_ = command;
    return command;
  }
  Commands& cache() {
    command_->add_option("--format", options_->format, "KV format [the file's kv_format]");
    return number("--block-size", options_->block_size, "tokens in a page [the shape's]");
  }
  Commands& paging() {
    number("--block-size", options_->block_size, "entries in a page");
    number("--num-blocks", options_->num_blocks, "table entries from here on have no slots [not known]");
    number("--base", options_->base, "first slot of this cache in a unified pool");
    return flag("--ring", options_->ring, "table columns wrap");
  }
  Commands& lists() {
    return flag("--rect", options_->rect, "rows filled up with -1 instead of ragged ones with indptr");
  }
  Commands& number(const char* name, std::int64_t& value, const char* what) {
    command_->add_option(name, value, what);
    return *this;
  }
  Commands& flag(const char* name, bool& value, const char* what) {
    command_->add_flag(name, value, what);
    return *this;
  }
  CLI::App* command() { return command_; }
  Options& options() { return *options_; }

 private:
  std::shared_ptr<Options> options_ = std::make_shared<Options>();
  CLI::App* command_ = nullptr;
};

}  // namespace

void add_ops_commands(CLI::App& app) {
  Commands c;
  Options& o = c.options();
  CLI::App* cache = app.add_subcommand("cache", "write and read KV caches");
  cache->require_subcommand(1);
  c.add(cache, "write", "quantise k [n, D] into the slots slot_mapping [m] of kv (and kv_scales)", cache_write);
  c.cache().flag("--power-of-two", o.power_of_two, "fp8_v32: scales as FlashMLA's, powers of two");
  c.add(cache, "gather", "dequantise the tokens of slots [n], or of sequences (seq_lens, block_table; gather_lens)",
        cache_gather);
  c.cache().number("--offset", o.offset, "first row of out that a sequence is written to");
  c.number("--max-tokens", o.max_tokens, "rows of out for each sequence [as many as are needed]");
  c.flag("--nan-to-zero", o.nan_to_zero, "NaN components become 0");
  c.command()->add_option("--dtype", o.dtype, "of out")->check(CLI::IsMember({"bf16", "f16"}))->capture_default_str();

  CLI::App* indices = app.add_subcommand("indices", "addresses, token counts and index lists");
  indices->require_subcommand(1);
  c.add(indices, "slots", "positions to slots through block_table (token_to_req)", indices_slots);
  c.paging().number("--ratio", o.ratio, "of a compressed cache: the slot that a position completes");
  c.add(indices, "counts", "tokens that a query at each of positions sees", indices_counts);
  c.number("--window", o.window, "tokens of the sliding window").number("--ratio", o.ratio, "0, 1, 4 or 128");
  c.number("--topk", o.topk, "most entries with ratio 4")
      .number("--width", o.width, "most entries with ratio 128 [no limit]");
  c.add(indices, "dense", "the first lengths [T] entries of indices [T, W]", indices_dense);
  c.lists().number("--num-rows", o.num_rows, "entries outside [0, N) become -1");
  c.add(indices, "topk", "slots of topk_indices [T, K] through block_table (token_to_req, is_valid)", indices_topk);
  c.paging().lists();
  c.add(indices, "combine", "topk_indices and windows in a prefill workspace (query_start_loc, seq_lens, gather_lens)",
        indices_combine);
  c.lists()
      .number("--window", o.window, "tokens of the sliding window")
      .number("--ratio", o.ratio, "tokens of a compressed entry");
  c.number("--topk", o.topk, "most compressed entries of a query");
  c.number("--rows-per-request", o.rows_per_request, "M: workspace rows of a request");
  c.number("--compressed-rows", o.compressed_rows, "N: those of them that hold compressed entries");
  c.add(indices, "compressed", "all compressed entries that positions see, as slots or (no block_table) numbers",
        indices_compressed);
  c.paging()
      .lists()
      .number("--ratio", o.ratio, "tokens of a compressed entry")
      .number("--width", o.width, "longest list");
  c.add(indices, "window", "slots of the last tokens up to each of positions", indices_window);
  c.paging().lists().number("--window", o.window, "tokens of the sliding window");
}

}  // namespace pasa
