// Every user error of the operator, and the way from the C structs to a Problem.
//
// The checks are one function per category, run in the order of pasa_status (device, dtype, rank, ... overflow), so that the
// first failure reported does not depend on which tensor it is in. They look at shapes, dtypes, strides, pointers and flags
// only: no tensor data is read. Each message is "<argument> is <found>, expected <wanted>".
#include "core/problem.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/tensor.h"

namespace pasa {
namespace {

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxPageTokens = 1 << 20;
constexpr std::int64_t kAccAlignment = 16;  // the widest piece in which kernels move partial sums

// ---- the arguments by name

struct SourceNames {
  std::string_view format, kv, scales, pe, indices, indptr, lengths;
};
constexpr SourceNames kNames[2] = {{"kv_format", "kv", "kv_scales", "kv_pe", "kv_indices", "kv_indptr", "kv_lengths"},
                                   {"extra_kv_format", "extra_kv", "extra_kv_scales", "extra_kv_pe", "extra_indices",
                                    "extra_indptr", "extra_lengths"}};

struct Named {
  std::string_view name;
  const pasa_tensor* tensor;
};

// Every tensor of a problem, also the absent ones.
std::array<Named, 20> tensors_of(const pasa_problem& p) {
  constexpr const SourceNames &kMain = kNames[0], &kExtra = kNames[1];
  return {{{"q", &p.q},
           {kMain.kv, &p.main.kv},
           {kMain.scales, &p.main.kv_scales},
           {kMain.pe, &p.main.kv_pe},
           {kMain.indices, &p.main.indices},
           {kMain.indptr, &p.main.indptr},
           {kMain.lengths, &p.main.lengths},
           {kExtra.kv, &p.extra.kv},
           {kExtra.scales, &p.extra.kv_scales},
           {kExtra.pe, &p.extra.kv_pe},
           {kExtra.indices, &p.extra.indices},
           {kExtra.indptr, &p.extra.indptr},
           {kExtra.lengths, &p.extra.lengths},
           {"attn_sink", &p.attn_sink},
           {"out", &p.out},
           {"lse", &p.lse},
           {"max_logits", &p.max_logits},
           {"acc", &p.acc},
           {"m", &p.m},
           {"l", &p.l}}};
}

// Equal in everything but addresses (and the kernel's name, which has done its work in a plan): what the checks of shapes,
// dtypes, strides and numbers say about one holds for the other.
bool equal_but_for_addresses(const pasa_problem& a, const pasa_problem& b) {
  const auto numbers = [](const pasa_problem& p) {
    return std::tie(p.main.format, p.extra.format, p.softmax_scale, p.kv_scale, p.has_softmax_scale, p.kv_splits,
                    p.block_h, p.flags, p.threads, p.queries_per_list);
  };
  static_assert(sizeof(pasa_problem) == 20 * sizeof(pasa_tensor) + 72, "a new field has a place here");
  const auto of_a = tensors_of(a), of_b = tensors_of(b);
  for (std::size_t i = 0; i < of_a.size(); ++i) {
    if (!described_alike(*of_a[i].tensor, *of_b[i].tensor)) return false;
  }
  return numbers(a) == numbers(b);
}

// One source under check. info is nullptr where there is no source.
struct SourceInput {
  const pasa_source& c;
  const SourceNames& names;
  const FormatInfo* info;

  bool given() const { return present(c.kv); }
  // Pools come as [slots, D] or [slots, 1, D], and [blocks, page, R] or [blocks, page, 1, R].
  int long_rank() const { return info->paged ? 4 : 3; }
  int last() const { return c.kv.rank - 1; }
  std::int64_t page_tokens() const { return info->paged ? c.kv.shape[1] : 1; }
  std::int64_t slots() const { return c.kv.shape[0] * page_tokens(); }
  bool two_pieces(std::int64_t dim) const {
    return with_format(info->format, static_cast<int>(dim), []<typename Format>() { return Format::kTwoPieces; });
  }
  std::int64_t record_elements(std::int64_t dim) const {  // the last dimension
    return with_format(info->format, static_cast<int>(dim), [&]<typename Format>() -> std::int64_t {
      if (Format::kTwoPieces && present(c.kv_pe)) return kValueDim;
      return info->bytes ? Format::kTokenBytes : Format::kDim;
    });
  }
};

class Checker {
 public:
  Checker(const pasa_problem& problem, Stage stage)
      : c_(problem),
        stage_(stage),
        sources_{{problem.main, kNames[0], find_format(problem.main.format)},
                 {problem.extra, kNames[1], find_format(problem.extra.format)}} {
    for (const Named& t : tensors_of(problem)) {
      if (present(*t.tensor)) tensors_[tensor_count_++] = t;
    }
  }

  Problem run() {
    check_presence();
    check_devices();
    check_dtypes();
    check_ranks();
    check_shapes();
    check_strides();
    check_alignments();
    check_combinations();
    if (stage_ == Stage::kRun) check_memory();
    check_ranges();
    check_overflows();
    return normalise();
  }

  // The same for a problem that differs in addresses from one that has passed.
  Problem run_again() {
    check_alignments();
    check_memory();
    return normalise();
  }

 private:
  std::int64_t tokens() const { return c_.q.shape[0]; }
  std::int64_t heads() const { return c_.q.shape[1]; }
  std::int64_t dim() const { return c_.q.shape[2]; }
  int queries_per_list() const { return std::max(c_.queries_per_list, 1); }
  std::int64_t lists() const { return tokens() / queries_per_list(); }

  // Without these nothing else can be said.
  void check_presence() {
    require(PASA_ERROR_COMBINATION, present(c_.q), "q is absent, expected a tensor");
    require(PASA_ERROR_COMBINATION, present(c_.main.kv), "kv is absent, expected a tensor");
    require(PASA_ERROR_COMBINATION, present(c_.main.indices), "kv_indices is absent, expected a tensor");
    for (const SourceInput& s : sources_) {
      require(PASA_ERROR_RANGE, !s.given() || s.info, s.names.format, " is ", static_cast<int>(s.c.format),
              ", expected a pasa_kv_format");
    }
    for (int i = 0; i < tensor_count_; ++i) {
      const pasa_tensor& t = *tensors_[i].tensor;
      require(PASA_ERROR_RANK, t.rank > 0 && t.rank <= 4, tensors_[i].name, " has rank ", t.rank, ", expected 1 to 4");
    }
  }

  void check_devices() {
    const Place home{c_.q.device, c_.q.device_index};
    for (int i = 0; i < tensor_count_; ++i) {
      const pasa_tensor& t = *tensors_[i].tensor;
      const bool same = t.device == home.device && (t.device == PASA_CPU || t.device_index == home.index);
      require(PASA_ERROR_DEVICE, same, tensors_[i].name, " is on ", Place{t.device, t.device_index}, ", expected ",
              home, " as q");
    }
    require(PASA_ERROR_DEVICE, home.device >= PASA_CPU && home.device <= PASA_HIP, "q is on ", home,
            ", expected cpu, cuda or hip");
  }

  static void require_dtype(std::string_view name, const pasa_tensor& t, pasa_dtype wanted) {
    require(PASA_ERROR_DTYPE, !present(t) || t.dtype == wanted, name, " is ", Dtype{t.dtype}, ", expected ",
            Dtype{wanted});
  }

  void check_dtypes() {
    require(PASA_ERROR_DTYPE, c_.q.dtype == PASA_BF16 || c_.q.dtype == PASA_F16, "q is ", Dtype{c_.q.dtype},
            ", expected bf16 or f16");
    for (const SourceInput& s : sources_) {
      if (s.given()) check_pool_dtype(s);
      require_dtype(s.names.scales, s.c.kv_scales, PASA_F32);
      require(PASA_ERROR_DTYPE, !present(s.c.kv_pe) || !s.given() || s.c.kv_pe.dtype == s.c.kv.dtype, s.names.pe,
              " is ", Dtype{s.c.kv_pe.dtype}, ", expected ", Dtype{s.c.kv.dtype}, " as ", s.names.kv);
      require_dtype(s.names.indices, s.c.indices, PASA_I32);
      require_dtype(s.names.indptr, s.c.indptr, PASA_I32);
      require_dtype(s.names.lengths, s.c.lengths, PASA_I32);
    }
    require_dtype("attn_sink", c_.attn_sink, PASA_F32);
    require_dtype("out", c_.out, c_.q.dtype);
    require_dtype("lse", c_.lse, PASA_F32);
    require_dtype("max_logits", c_.max_logits, PASA_F32);
    require_dtype("acc", c_.acc, PASA_F32);
    require_dtype("m", c_.m, PASA_F32);
    require_dtype("l", c_.l, PASA_F32);
  }

  void check_pool_dtype(const SourceInput& s) const {
    const pasa_dtype got = s.c.kv.dtype;
    if (!s.info->bytes) {
      const pasa_dtype stored = s.info->format == PASA_KV_F16 ? PASA_F16 : PASA_BF16;
      require(PASA_ERROR_DTYPE, got == stored, s.names.kv, " is ", Dtype{got}, ", expected ", Dtype{stored}, " with ",
              s.info->name);
      require(PASA_ERROR_DTYPE, got == c_.q.dtype, s.names.kv, " is ", Dtype{got}, ", expected ", Dtype{c_.q.dtype},
              " as q");
      return;
    }
    // The format says what the bytes mean; a container that knows only one e4m3 stores both in it. The one contradiction
    // is a tensor typed fnuz under an OCP format.
    const bool fits = got == PASA_U8 || got == PASA_I8 || got == PASA_F8_E4M3FN ||
                      (got == PASA_F8_E4M3FNUZ && s.info->format == PASA_KV_FP8_E4M3FNUZ);
    require(PASA_ERROR_DTYPE, fits, s.names.kv, " is ", Dtype{got}, ", expected bytes or fp8 as ", s.info->name,
            " has");
  }

  static void require_rank(std::string_view name, const pasa_tensor& t, int wanted) {
    require(PASA_ERROR_RANK, !present(t) || t.rank == wanted, name, " has rank ", t.rank, ", expected ", wanted);
  }

  void check_ranks() {
    require_rank("q", c_.q, 3);
    for (const SourceInput& s : sources_) {
      if (s.given()) {
        require(PASA_ERROR_RANK, s.c.kv.rank == s.long_rank() || s.c.kv.rank == s.long_rank() - 1, s.names.kv,
                " has rank ", s.c.kv.rank, ", expected ", s.long_rank() - 1,
                s.info->paged ? " [blocks, page, record]" : " [slots, D]", " with ", s.info->name);
      }
      require_rank(s.names.scales, s.c.kv_scales, 2);
      require(PASA_ERROR_RANK, !present(s.c.kv_pe) || s.c.kv_pe.rank == 2 || s.c.kv_pe.rank == 3, s.names.pe,
              " has rank ", s.c.kv_pe.rank, ", expected 2 [slots, ", kPeDim, "]");
      require(PASA_ERROR_RANK, s.c.indices.rank <= 2, s.names.indices, " has rank ", s.c.indices.rank,
              ", expected 1 (ragged) or 2 (rectangular)");
      require_rank(s.names.indptr, s.c.indptr, 1);
      require_rank(s.names.lengths, s.c.lengths, 1);
    }
    require_rank("attn_sink", c_.attn_sink, 1);
    require_rank("out", c_.out, 3);
    require_rank("lse", c_.lse, 2);
    require_rank("max_logits", c_.max_logits, 2);
    require_rank("acc", c_.acc, 4);
    require_rank("m", c_.m, 3);
    require_rank("l", c_.l, 3);
  }

  // expected: the same number of sizes as the tensor's rank; what: the sizes in words
  static void require_shape(std::string_view name, const pasa_tensor& t, std::initializer_list<std::int64_t> expected,
                            std::string_view what) {
    if (!present(t) || std::equal(expected.begin(), expected.end(), t.shape)) return;
    std::string sizes;
    for (std::int64_t n : expected) sizes += concat(sizes.empty() ? "" : ", ", n);
    throw Error(PASA_ERROR_SHAPE, concat(name, " is ", Dims{t}, ", expected [", sizes, "] (", what, ")"));
  }

  void check_shapes() {
    for (int i = 0; i < tensor_count_; ++i) {
      const pasa_tensor& t = *tensors_[i].tensor;
      require(PASA_ERROR_SHAPE, std::all_of(t.shape, t.shape + t.rank, [](std::int64_t n) { return n >= 0; }),
              tensors_[i].name, " is ", Dims{t}, ", expected sizes >= 0");
    }
    require(PASA_ERROR_SHAPE, heads() >= 1, "q is ", Dims{c_.q}, ", expected [T, H, D] with H >= 1");
    require(PASA_ERROR_SHAPE, tokens() % queries_per_list() == 0, "q is ", Dims{c_.q},
            ", expected a multiple of queries_per_list = ", queries_per_list(), " rows");
    const bool shared = queries_per_list() > 1;
    const std::string_view per_list = shared ? "T / queries_per_list" : "T";
    const std::string_view ends_of_lists = shared ? "T / queries_per_list + 1" : "T + 1";
    for (const SourceInput& s : sources_) {
      if (!s.given()) continue;
      const bool fits = s.info->dim ? dim() == s.info->dim : dim() == 512 || dim() == 576;
      // The main source fits by now: then the extra one is the odd one.
      require(PASA_ERROR_SHAPE, fits || &s == &sources_[0], s.names.kv, " is ", Dims{s.c.kv}, " with ", s.info->name,
              " keys of ", s.info->dim, ", expected keys of ", dim(), " as q");
      require(PASA_ERROR_SHAPE, fits, "q is ", Dims{c_.q}, ", expected [T, H, ", s.info->dim == 576 ? "576" : "512",
              s.info->dim ? "]" : " or 576]", " with ", s.names.format, " ", s.info->name);
    }
    for (const SourceInput& s : sources_) {
      if (s.given()) check_pool_shape(s);
      if (s.c.indices.rank == 2) {
        require(PASA_ERROR_SHAPE, s.c.indices.shape[0] == lists(), s.names.indices, " is ", Dims{s.c.indices},
                ", expected [", lists(), ", W] (", per_list, ", W)");
      }
      require_shape(s.names.indptr, s.c.indptr, {lists() + 1}, ends_of_lists);
      require_shape(s.names.lengths, s.c.lengths, {lists()}, per_list);
    }
    require_shape("attn_sink", c_.attn_sink, {heads()}, "H");
    require_shape("out", c_.out, {tokens(), heads(), kValueDim}, "T, H, 512");
    require_shape("lse", c_.lse, {tokens(), heads()}, "T, H");
    require_shape("max_logits", c_.max_logits, {tokens(), heads()}, "T, H");
    const std::int64_t splits = present(c_.acc) ? c_.acc.shape[1] : 0;
    require_shape("acc", c_.acc, {tokens(), splits, heads(), kValueDim}, "T, S, H, 512");
    require_shape("m", c_.m, {tokens(), splits, heads()}, "T, S, H");
    require_shape("l", c_.l, {tokens(), splits, heads()}, "T, S, H");
  }

  void check_pool_shape(const SourceInput& s) const {
    const pasa_tensor& kv = s.c.kv;
    const std::int64_t record = s.record_elements(dim()), found = kv.shape[s.last()];
    const bool pieces = s.two_pieces(dim());
    // Relatives that callers mistake for the formats served here.
    const std::string_view hint = !s.info->paged ? ""
                                  : found == 528 ? "; 528-byte records (16 UE8M0 scales of 32 dims) are not served"
                                  : found == 640 ? "; 640-byte aligned records are not served"
                                                 : "";
    require(PASA_ERROR_SHAPE, found == record, s.names.kv, " is ", Dims{kv}, ", expected a last dimension of ", record,
            " with ", s.info->name, hint,
            !pieces              ? ""
            : present(s.c.kv_pe) ? " and "
                                 : ", or 512 with ",
            pieces ? s.names.pe : "");
    require(PASA_ERROR_SHAPE, kv.rank != s.long_rank() || kv.shape[s.last() - 1] == 1, s.names.kv, " is ", Dims{kv},
            ", expected one KV head: size 1 in dimension ", s.last() - 1);
    require(PASA_ERROR_SHAPE, s.page_tokens() >= 1 && s.page_tokens() <= kMaxPageTokens, s.names.kv, " is ", Dims{kv},
            ", expected pages of 1 to ", kMaxPageTokens, " tokens");
    if (s.info->has_side_scales(dim())) {
      require_shape(s.names.scales, s.c.kv_scales, {kv.shape[0], dim() / 64}, "slots, D/64");
    }
    const pasa_tensor& pe = s.c.kv_pe;
    if (!present(pe) || !pieces) return;
    const bool fits =
        pe.shape[0] == kv.shape[0] && pe.shape[pe.rank - 1] == kPeDim && (pe.rank == 2 || pe.shape[1] == 1);
    require(PASA_ERROR_SHAPE, fits, s.names.pe, " is ", Dims{pe}, ", expected [", kv.shape[0], ", ", kPeDim,
            "] (slots, ", kPeDim, ")");
  }

  // Dimensions from `first` on must be dense; empty tensors have no strides to speak of.
  static void require_contiguous(std::string_view name, const pasa_tensor& t, int first) {
    if (!present(t) || empty(t)) return;
    require(PASA_ERROR_STRIDE, contiguous_from(t, first), name, " has stride ", t.stride[t.rank - 1],
            " in its last dimension or gaps, expected ",
            first == 0 ? "a contiguous tensor" : "a contiguous last dimension");
  }

  void check_strides() {
    for (int i = 0; i < tensor_count_; ++i) {
      const pasa_tensor& t = *tensors_[i].tensor;
      require(PASA_ERROR_STRIDE, empty(t) || !negative_stride(t), tensors_[i].name,
              " has a negative stride, expected >= 0");
      require(PASA_ERROR_STRIDE, empty(t) || addressable(t), tensors_[i].name, " has strides of up to ",
              *std::max_element(t.stride, t.stride + t.rank), " elements, expected a span that can be addressed");
    }
    require_contiguous("q", c_.q, 2);
    for (const SourceInput& s : sources_) {
      if (s.given() && !empty(s.c.kv)) check_pool_strides(s);
      if (present(s.c.kv_scales) && !empty(s.c.kv_scales)) {
        require_contiguous(s.names.scales, s.c.kv_scales, 1);
        require_row_stride(s.names.scales, s.c.kv_scales, s.c.kv_scales.shape[1]);
      }
      if (present(s.c.kv_pe) && !empty(s.c.kv_pe)) {
        require_contiguous(s.names.pe, s.c.kv_pe, s.c.kv_pe.rank - 1);
        require_row_stride(s.names.pe, s.c.kv_pe, kPeDim);
      }
      require_contiguous(s.names.indices, s.c.indices, s.c.indices.rank - 1);
      require_contiguous(s.names.indptr, s.c.indptr, 0);
      require_contiguous(s.names.lengths, s.c.lengths, 0);
    }
    require_contiguous("attn_sink", c_.attn_sink, 0);
    require_contiguous("out", c_.out, 2);
    for (const Named& output : {Named{"out", &c_.out}, Named{"lse", &c_.lse}, Named{"max_logits", &c_.max_logits}}) {
      if (!present(*output.tensor) || empty(*output.tensor)) continue;
      require(PASA_ERROR_STRIDE, !overlaps_itself(*output.tensor), output.name,
              " overlaps itself, expected distinct rows");
    }
    require_contiguous("acc", c_.acc, 0);
    require_contiguous("m", c_.m, 0);
    require_contiguous("l", c_.l, 0);
  }

  static void require_row_stride(std::string_view name, const pasa_tensor& t, std::int64_t least) {
    require(PASA_ERROR_STRIDE, t.shape[0] == 1 || t.stride[0] >= least, name, " has stride ", t.stride[0],
            " in dimension 0, expected at least ", least);
  }

  void check_pool_strides(const SourceInput& s) const {
    const pasa_tensor& kv = s.c.kv;
    const std::int64_t record = kv.shape[s.last()];
    require(PASA_ERROR_STRIDE, kv.stride[s.last()] == 1, s.names.kv, " has stride ", kv.stride[s.last()],
            " in its last dimension, expected 1");
    if (s.info->paged) {
      require(PASA_ERROR_STRIDE, kv.shape[1] == 1 || kv.stride[1] == record, s.names.kv, " has token stride ",
              kv.stride[1], ", expected ", record, " with ", s.info->name);
    }
    require_row_stride(s.names.kv, kv, s.page_tokens() * record);
  }

  // Base address and the stride of dimension 0, in bytes. alignment: a power of two.
  static void require_alignment(std::string_view name, const pasa_tensor& t, std::int64_t alignment) {
    if (!present(t) || empty(t)) return;
    const auto base = reinterpret_cast<std::uintptr_t>(t.data);
    require(PASA_ERROR_ALIGNMENT, (base & static_cast<std::uintptr_t>(alignment - 1)) == 0, name, " is at address ",
            t.data, ", expected a multiple of ", alignment);
    const std::int64_t stride = t.stride[0] * element_bytes(t.dtype);
    require(PASA_ERROR_ALIGNMENT, t.shape[0] == 1 || (stride & (alignment - 1)) == 0, name, " has a stride of ", stride,
            " bytes in dimension 0, expected a multiple of ", alignment);
  }

  void check_alignments() {
    for (int i = 0; i < tensor_count_; ++i) {
      require_alignment(tensors_[i].name, *tensors_[i].tensor, element_bytes(tensors_[i].tensor->dtype));
    }
    for (const SourceInput& s : sources_) {
      if (s.given()) require_alignment(s.names.kv, s.c.kv, s.info->alignment);
    }
    require_alignment("acc", c_.acc, kAccAlignment);
  }

  void check_combinations() {
    const SourceInput& extra = sources_[1];
    require(PASA_ERROR_COMBINATION, present(extra.c.indices) || !extra.given(),
            "extra_indices is absent, expected a tensor ", "with extra_kv");
    for (const Named& part : {Named{"extra_indices", &extra.c.indices}, Named{"extra_kv_scales", &extra.c.kv_scales},
                              Named{"extra_kv_pe", &extra.c.kv_pe}, Named{"extra_indptr", &extra.c.indptr},
                              Named{"extra_lengths", &extra.c.lengths}}) {
      require(PASA_ERROR_COMBINATION, !present(*part.tensor) || extra.given(), part.name,
              " is given, expected none without ", "extra_kv");
    }
    require(PASA_ERROR_COMBINATION, extra.c.format == PASA_KV_NONE || extra.given(),
            "extra_kv_format is given, expected none ", "without extra_kv");
    for (const SourceInput& s : sources_) {
      if (!s.given()) continue;
      const bool ragged = s.c.indices.rank == 1;
      const bool side_scales = s.info->has_side_scales(dim());
      require(PASA_ERROR_COMBINATION, present(s.c.kv_scales) || !side_scales, s.names.scales,
              " is absent, expected a tensor with ", s.info->name, " and D = ", dim());
      require(PASA_ERROR_COMBINATION, !present(s.c.kv_scales) || side_scales, s.names.scales,
              " is given, expected none with ", s.info->name, " and D = ", dim());
      require(PASA_ERROR_COMBINATION, !present(s.c.kv_pe) || s.two_pieces(dim()), s.names.pe,
              " is given, expected none with ", s.info->name, " and D = ", dim());
      require(PASA_ERROR_COMBINATION, present(s.c.indptr) || !ragged, s.names.indptr,
              " is absent, expected a tensor with ragged ", s.names.indices);
      require(PASA_ERROR_COMBINATION, !present(s.c.indptr) || ragged, s.names.indptr,
              " is given, expected none with rectangular ", s.names.indices);
      require(PASA_ERROR_COMBINATION, !present(s.c.lengths) || !ragged, s.names.lengths,
              " is given, expected none with ragged ", s.names.indices);
    }
    require(PASA_ERROR_COMBINATION, queries_per_list() == 1 || !extra.given(), "queries_per_list is ",
            c_.queries_per_list, ", expected 1 with ", "extra_kv");
    const int partials = present(c_.acc) + present(c_.m) + present(c_.l);
    require(PASA_ERROR_COMBINATION, partials == 0 || partials == 3, "acc, m and l: ", partials,
            " of them given, expected all or none");
  }

  void check_memory() const {
    for (int i = 0; i < tensor_count_; ++i) {
      const pasa_tensor& t = *tensors_[i].tensor;
      require(PASA_ERROR_COMBINATION, t.data != nullptr || empty(t), tensors_[i].name,
              " has no data, expected an address");
    }
    for (const pasa_tensor* output : {&c_.out, &c_.lse, &c_.max_logits, &c_.acc, &c_.m, &c_.l}) {
      if (present(*output)) require_disjoint(*output);
    }
  }

  // Two tensors may interleave (columns of one buffer) but not share a byte.
  static bool share_bytes(const pasa_tensor& a, const pasa_tensor& b) {
    struct Span {
      std::int64_t begin, row, stride, rows;
    };
    const auto span = [](const pasa_tensor& t) {
      std::int64_t row = element_bytes(t.dtype);
      for (int i = 1; i < t.rank; ++i) row += (t.shape[i] - 1) * t.stride[i] * element_bytes(t.dtype);
      return Span{static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(t.data)), row,
                  t.stride[0] * element_bytes(t.dtype), t.shape[0]};
    };
    if (empty(a) || empty(b)) return false;
    const Span x = span(a), y = span(b);
    const auto end = [](const Span& s) { return s.begin + (s.rows - 1) * s.stride + s.row; };
    if (end(x) <= y.begin || end(y) <= x.begin) return false;
    if (x.rows == 1 || y.rows == 1 || x.stride != y.stride || x.row > x.stride || y.row > y.stride) return true;
    const std::int64_t shift = ((y.begin - x.begin) % x.stride + x.stride) % x.stride;
    return shift < x.row || shift + y.row > x.stride;
  }

  void require_disjoint(const pasa_tensor& output) const {
    std::string_view name;
    for (int i = 0; i < tensor_count_; ++i) {
      if (tensors_[i].tensor == &output) name = tensors_[i].name;
    }
    for (int i = 0; i < tensor_count_; ++i) {
      if (tensors_[i].tensor == &output) continue;
      require(PASA_ERROR_COMBINATION, !share_bytes(output, *tensors_[i].tensor), name, " overlaps ", tensors_[i].name,
              ", expected separate memory");
    }
  }

  void check_ranges() {
    require(PASA_ERROR_RANGE, !c_.has_softmax_scale || std::isfinite(c_.softmax_scale), "softmax_scale is ",
            c_.softmax_scale, ", expected a finite number");
    require(PASA_ERROR_RANGE, std::isfinite(c_.kv_scale), "kv_scale is ", c_.kv_scale, ", expected a finite number");
    require(PASA_ERROR_RANGE, c_.queries_per_list >= 0, "queries_per_list is ", c_.queries_per_list,
            ", expected at least 1, or 0 for 1");
    require(PASA_ERROR_RANGE, c_.kv_splits >= 0 && c_.kv_splits <= kMaxSplits, "kv_splits is ", c_.kv_splits,
            ", expected 1 to ", kMaxSplits, ", or 0 to choose");
    require(PASA_ERROR_RANGE, c_.block_h >= 0, "block_h is ", c_.block_h, ", expected at least 1, or 0 to choose");
    require(PASA_ERROR_RANGE, c_.threads >= 0, "threads is ", c_.threads, ", expected at least 1, or 0 for all");
    constexpr std::uint32_t known = PASA_NAN_TO_ZERO | PASA_SKIP_REDUCE | PASA_NO_INVALID;
    require(PASA_ERROR_RANGE, (c_.flags & ~known) == 0, "flags is ", c_.flags, ", expected bits of ", known);
  }

  void check_overflows() {
    for (const SourceInput& s : sources_) {
      if (!s.given()) continue;
      require(PASA_ERROR_OVERFLOW, s.c.kv.shape[0] <= kMaxInt32 / s.page_tokens(), s.names.kv, " is ", Dims{s.c.kv},
              ", expected at most ", kMaxInt32, " slots");
      for (int i = 0; i < s.c.indices.rank; ++i) {
        require(PASA_ERROR_OVERFLOW, s.c.indices.shape[i] <= kMaxInt32, s.names.indices, " is ", Dims{s.c.indices},
                ", expected at most ", kMaxInt32, " entries");
      }
    }
    // Room for 256 splits of float partials in 64 bits.
    require(PASA_ERROR_OVERFLOW,
            tokens() <= kMaxInt32 && heads() <= kMaxInt32 / kMaxDim && tokens() * heads() <= (std::int64_t{1} << 42),
            "q is ", Dims{c_.q}, ", expected sizes that can be addressed");
  }

  template <typename T>
  static T* pointer(const pasa_tensor& t) {
    return present(t) ? static_cast<T*>(t.data) : nullptr;
  }

  void normalise_source(const SourceInput& s, Source& source, SourceShape& shape) const {
    shape = {s.info->format, s.page_tokens(), s.c.indices.rank == 1, present(s.c.kv_pe)};
    source.kv = pointer<const std::uint8_t>(s.c.kv);
    source.page_stride = s.c.kv.stride[0] * element_bytes(s.c.kv.dtype);
    source.slots = empty(s.c.kv) ? 0 : s.slots();
    source.scales = pointer<const std::uint8_t>(s.c.kv_scales);
    source.scale_stride = s.c.kv_scales.stride[0] * 4;
    if (shape.pe_apart) {
      source.pe = pointer<const std::uint8_t>(s.c.kv_pe);
      source.pe_stride = s.c.kv_pe.stride[0] * element_bytes(s.c.kv_pe.dtype);
    } else if (s.two_pieces(dim()) && source.kv) {
      source.pe = source.kv + kValueDim * element_bytes(s.c.kv.dtype);
      source.pe_stride = source.page_stride;
    }
    source.queries_per_list = queries_per_list();
    source.indices = pointer<const std::int32_t>(s.c.indices);
    source.indptr = pointer<const std::int32_t>(s.c.indptr);
    source.lengths = pointer<const std::int32_t>(s.c.lengths);
    if (shape.ragged) {
      source.nnz = s.c.indices.shape[0];
    } else {
      source.width = s.c.indices.shape[1];
      source.index_stride = s.c.indices.stride[0];
    }
  }

  Problem normalise() const {
    Problem p;
    p.tokens = tokens();
    p.heads = static_cast<int>(heads());
    p.dim = static_cast<int>(dim());
    p.word = c_.q.dtype == PASA_BF16 ? Word16::kBf16 : Word16::kF16;
    p.queries_per_list = queries_per_list();
    p.source_count = sources_[1].given() ? 2 : 1;
    for (int i = 0; i < p.source_count; ++i) normalise_source(sources_[i], p.sources[i], p.source[i]);
    p.device = c_.q.device;
    p.device_index = c_.q.device == PASA_CPU ? 0 : c_.q.device_index;
    p.splits = c_.kv_splits;
    p.block_h = c_.block_h;
    p.nan_to_zero = (c_.flags & PASA_NAN_TO_ZERO) != 0;
    p.skip_reduce = (c_.flags & PASA_SKIP_REDUCE) != 0;
    p.threads = c_.threads;
    p.q = pointer<const std::uint16_t>(c_.q);
    p.out = pointer<std::uint16_t>(c_.out);
    p.lse = pointer<float>(c_.lse);
    p.max_logits = pointer<float>(c_.max_logits);
    std::copy_n(c_.q.stride, 2, p.q_stride);
    std::copy_n(c_.out.stride, 2, p.out_stride);
    std::copy_n(c_.lse.stride, 2, p.lse_stride);
    std::copy_n(c_.max_logits.stride, 2, p.max_logits_stride);
    const double scale = c_.has_softmax_scale ? c_.softmax_scale : 1 / std::sqrt(static_cast<double>(dim()));
    const double kv_scale = c_.kv_scale == 0 ? 1 : c_.kv_scale;
    p.scale_log2 = static_cast<float>(kv_scale * scale * 1.4426950408889634);
    p.value_scale = static_cast<float>(kv_scale);
    p.sink = pointer<const float>(c_.attn_sink);
    p.acc = pointer<float>(c_.acc);
    p.m = pointer<float>(c_.m);
    p.l = pointer<float>(c_.l);
    p.acc_splits = present(c_.acc) ? c_.acc.shape[1] : 0;
    if (c_.kernel) p.kernel = c_.kernel;
    return p;
  }

  const pasa_problem& c_;
  Stage stage_;
  SourceInput sources_[2];
  Named tensors_[20];  // those present
  int tensor_count_ = 0;
};

}  // namespace

Problem check(const pasa_problem& problem, Stage stage, const pasa_problem* passed) {
  require(PASA_ERROR_COMBINATION, problem.struct_size == sizeof(pasa_problem), "struct_size is ", problem.struct_size,
          ", expected ", sizeof(pasa_problem));
  Checker checker(problem, stage);
  return passed && equal_but_for_addresses(problem, *passed) ? checker.run_again() : checker.run();
}

std::string mla_needs(const Problem& p) {
  if (p.value_scale != 1) return concat("kv_scale is ", p.value_scale, ", this kernel leaves values as they are");
  for (int i = 0; i < p.source_count; ++i) {
    if (p.source[i].pe_apart) return concat(kNames[i].pe, " is given, this kernel reads keys in one piece");
    const FormatInfo& info = *find_format(p.source[i].format);
    if (info.side_scales && !info.has_side_scales(p.dim)) {
      return concat(kNames[i].kv, " is ", info.name, " with D = ", p.dim, ", this kernel reads fp8 rows of 512");
    }
  }
  return "";
}

int bytes_per_key(const Shape& shape, int source) {
  return with_format(shape.source[source].format, shape.dim, []<typename Format>() { return Format::kBytesRead; });
}

std::int64_t validate(const Problem& p) {
  std::int64_t skipped = 0;
  for (int i = 0; i < p.source_count; ++i) {
    const Source& s = p.sources[i];
    const SourceNames& names = kNames[i];
    require(PASA_ERROR_DEVICE, p.device == PASA_CPU, names.indices, " is on ", Place{p.device, p.device_index},
            ", expected host memory to validate");
    const std::int64_t lists = p.tokens / p.queries_per_list;
    if (s.indptr) {
      require(PASA_ERROR_VALUE, s.indptr[0] == 0, names.indptr, "[0] is ", s.indptr[0], ", expected 0");
      for (std::int64_t list = 0; list < lists; ++list) {
        require(PASA_ERROR_VALUE, s.indptr[list + 1] >= s.indptr[list], names.indptr, "[", list + 1, "] is ",
                s.indptr[list + 1], ", expected at least the ", s.indptr[list], " before it");
      }
      require(PASA_ERROR_VALUE, s.indptr[lists] == s.nnz, names.indptr, "[", lists, "] is ", s.indptr[lists],
              ", expected ", s.nnz, " (the length of ", names.indices, ")");
    }
    for (std::int64_t list = 0; list < lists; ++list) {
      if (s.lengths) {
        require(PASA_ERROR_VALUE, s.lengths[list] >= 0 && s.lengths[list] <= s.width, names.lengths, "[", list, "] is ",
                s.lengths[list], ", expected 0 to ", s.width);
      }
      const IndexRow row = row_range(s, (list + 1) * p.queries_per_list - 1);  // its last query sees all of a list
      skipped += std::count_if(row.data, row.data + row.count,
                               [&](std::int32_t index) { return index < 0 || index >= s.slots; });
    }
  }
  return skipped;
}

Reduce check(const pasa_reduce_problem& c) {
  require(PASA_ERROR_COMBINATION, c.struct_size == sizeof c, "struct_size is ", c.struct_size, ", expected ", sizeof c);
  const Named tensors[] = {{"acc", &c.acc}, {"m", &c.m},    {"l", &c.l}, {"attn_sink", &c.attn_sink},
                           {"out", &c.out}, {"lse", &c.lse}};
  constexpr int kRanks[] = {4, 3, 3, 1, 3, 2};
  constexpr bool kOptional[] = {false, false, false, true, false, true};
  const auto each = [&](auto&& body) {
    for (std::size_t i = 0; i < std::size(tensors); ++i) {
      if (present(*tensors[i].tensor)) body(tensors[i].name, *tensors[i].tensor, i);
    }
  };
  for (std::size_t i = 0; i < std::size(tensors); ++i) {
    require(PASA_ERROR_COMBINATION, present(*tensors[i].tensor) || kOptional[i], tensors[i].name,
            " is absent, expected a tensor");
  }
  const Place home{c.acc.device, c.acc.device_index};
  each([&](std::string_view name, const pasa_tensor& t, std::size_t) {
    require(PASA_ERROR_DEVICE, t.device == home.device && (t.device == PASA_CPU || t.device_index == home.index), name,
            " is on ", Place{t.device, t.device_index}, ", expected ", home, " as acc");
  });
  each([&](std::string_view name, const pasa_tensor& t, std::size_t) {
    const bool fits = t.dtype == PASA_F32 || (&t == &c.out && (t.dtype == PASA_BF16 || t.dtype == PASA_F16));
    require(PASA_ERROR_DTYPE, fits, name, " is ", Dtype{t.dtype}, ", expected ",
            &t == &c.out ? "bf16, f16 or f32" : "f32");
  });
  each([&](std::string_view name, const pasa_tensor& t, std::size_t i) {
    require(PASA_ERROR_RANK, t.rank == kRanks[i], name, " has rank ", t.rank, ", expected ", kRanks[i]);
  });
  const std::int64_t tokens = c.acc.shape[0], splits = c.acc.shape[1], heads = c.acc.shape[2];
  const std::int64_t shapes[][4] = {
      {tokens, splits, heads, kValueDim}, {tokens, splits, heads}, {tokens, splits, heads}, {heads},
      {tokens, heads, kValueDim},         {tokens, heads}};
  each([&](std::string_view name, const pasa_tensor& t, std::size_t i) {
    require(PASA_ERROR_SHAPE, std::equal(t.shape, t.shape + t.rank, shapes[i]), name, " is ", Dims{t},
            ", expected sizes that agree with acc [T, S, H, 512] = ", Dims{c.acc});
  });
  each([&](std::string_view name, const pasa_tensor& t, std::size_t) {
    const bool output = &t == &c.out || &t == &c.lse;
    const bool fits =
        output ? !negative_stride(t) && addressable(t) && !overlaps_itself(t) && (&t == &c.lse || contiguous_from(t, 2))
               : contiguous_from(t, 0);
    require(PASA_ERROR_STRIDE, empty(t) || fits, name, " has strides that are not served, expected ",
            output ? "distinct rows with a contiguous last dimension" : "a contiguous tensor");
  });
  each([&](std::string_view name, const pasa_tensor& t, std::size_t) {
    const std::int64_t alignment = &t == &c.acc ? kAccAlignment : element_bytes(t.dtype);
    require(PASA_ERROR_ALIGNMENT,
            reinterpret_cast<std::uintptr_t>(t.data) % static_cast<std::uintptr_t>(alignment) == 0, name,
            " is at address ", t.data, ", expected a multiple of ", alignment);
  });
  each([&](std::string_view name, const pasa_tensor& t, std::size_t) {
    require(PASA_ERROR_COMBINATION, t.data != nullptr || empty(t), name, " has no data, expected an address");
  });
  require(PASA_ERROR_OVERFLOW, heads <= kMaxInt32, "acc is ", Dims{c.acc}, ", expected at most ", kMaxInt32, " heads");
  Reduce r{};
  r.tokens = tokens;
  r.splits = splits;
  r.heads = static_cast<int>(heads);
  r.acc = static_cast<const float*>(c.acc.data);
  r.m = static_cast<const float*>(c.m.data);
  r.l = static_cast<const float*>(c.l.data);
  r.sink = present(c.attn_sink) ? static_cast<const float*>(c.attn_sink.data) : nullptr;
  r.out = c.out.data;
  r.out_dtype = c.out.dtype;
  std::copy_n(c.out.stride, 2, r.out_stride);
  r.lse = present(c.lse) ? static_cast<float*>(c.lse.data) : nullptr;
  std::copy_n(c.lse.stride, 2, r.lse_stride);
  r.device = home.device;
  r.device_index = home.index;
  return r;
}

}  // namespace pasa
