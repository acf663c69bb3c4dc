#include "harness/cases.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/format.h"

namespace pasa {
namespace {

// ---- named problems

constexpr NamedProblem kNamed[] = {
    {"dsv4-c4a-1k", "decode:T=64,H=128,len=128+256,page=256+64,pattern=window+unique",
     "DeepSeek-V4, compression 4, context 1024: window 128 + 256 of the compressed cache"},
    {"dsv4-c4a-8k", "decode:T=64,H=128,len=128+1024,page=256+64,pattern=window+unique",
     "the same, context 8192: 128 + 1024"},
    {"dsv4-c128a-1k", "decode:T=64,H=128,len=128+8,page=256+2,pattern=window+unique",
     "compression 128, context 1024: 128 + 8"},
    {"dsv4-c128a-8k", "decode:T=64,H=128,len=128+64,page=256+2,pattern=window+unique",
     "compression 128, context 8192: 128 + 64"},
    {"dsv4-prefill", "prefill:T=1024,H=64,len=512+128,pattern=random+window",
     "DeepSeek-V4 prefill from a gathered bf16 workspace: top-k 512 and a window of 128"},
    {"v32-decode", "decode:T=64,H=128,fmt=fp8_v32,len=2048,page=64,lists=rect,pattern=unique",
     "DeepSeek V3.2: one list of 2048, 656-byte records"},
    {"mla-decode", "mla:T=32,H=16,len=8192,pattern=sequence", "dense MLA decode in bf16: 32 sequences of 8192 tokens"},
    {"mla-mtp-fp8", "mla:T=128,H=16,fmt=fp8_e4m3fn,len=8192,queries=4,pe=apart,kv_scale=0.5,pattern=sequence",
     "the same in fp8 with the RoPE part in a tensor of its own, four queries a sequence"},
    {"small", "decode:T=3,H=16,len=128+64,page=64+2,lengths=from0,invalid=0.05", "a few rows, to try things out"},
};

// ---- grids

template <typename... Parts>
void add(std::vector<TestCase>& cases, std::string_view tolerance, const Parts&... parts) {
  cases.push_back({parse_text(concat(parts...)), tolerance});
}

// A. aiter test_pa_decode_sparse_vs_reference, with sentinels and skip_reduce besides.
std::vector<TestCase> aiter_decode() {
  std::vector<TestCase> cases;
  for (int tokens : {1, 64, 256, 2048})
    for (int heads : {16, 32, 64, 128})
      for (int len : {136, 388, 1024})
        for (const char* lengths : {"fixed", "from1"})
          for (const char* invalid : {"0", "0.0625"})
            for (int skip_reduce : {0, 1})
              add(cases, "aiter-5e-3", "decode:T=", tokens, ",H=", heads, ",fmt=bf16,len=", len,
                  ",slots=", tokens * len, ",lengths=", lengths, ",invalid=", invalid, ",skip_reduce=", skip_reduce);
  return cases;
}

// B. the same in uniform fp8, both flavours.
std::vector<TestCase> aiter_decode_fp8() {
  std::vector<TestCase> cases;
  for (const char* format : {"fp8_e4m3fnuz", "fp8_e4m3fn"})
    for (int tokens : {1, 32})
      for (const char* lengths : {"fixed", "from1"})
        add(cases, "aiter-1e-2", "decode:T=", tokens, ",H=16,fmt=", format, ",len=100,slots=", tokens * 100,
            ",lengths=", lengths, ",no_invalid=1");
  return cases;
}

// C. two sources; the strided ones have an extra pool that spans more than 2 GiB.
std::vector<TestCase> aiter_two_loop() {
  std::vector<TestCase> cases;
  for (int tokens : {1, 32, 128})
    for (int extra : {8, 256})
      for (const char* format : {"packed_bf16", "fp8_ds_mla"})
        for (bool strided : {false, true}) {
          const bool fp8 = std::string_view(format) == "fp8_ds_mla";
          if (strided && !(fp8 && tokens == 128)) continue;
          const std::int64_t pages = tokens * extra / 256;
          const std::int64_t pitch = ((std::int64_t{1} << 31) / std::max<std::int64_t>(pages - 1, 1) + 16) / 16 * 16;
          add(cases, fp8 ? "aiter-1e-2" : "aiter-5e-3", "decode:T=", tokens, ",H=16,fmt=", format, ",len=128+", extra,
              ",page=256,pattern=window+random,values=", fp8 ? "exponents" : "normal",
              ",std=0.4,q_std=0.125,stride=dense+", strided ? std::to_string(pitch) : "dense");
        }
  return cases;
}

// D. what of vLLM's DSV4 tests a description can say: tiny pages, splits, extra lengths around a block of 64.
std::vector<TestCase> vllm_decode() {
  std::vector<TestCase> cases;
  for (const char* len : {"2", "2+2"})
    for (const char* sink : {"none", "small"})
      for (int splits : {1, 2, 3, 4, 8})
        add(cases, "vllm-2e-2", "decode:T=2,H=3,len=", len, ",page=4,slots=8,sink=", sink, ",splits=", splits);
  for (int extra : {0, 1, 31, 32, 33, 63, 64, 65})
    add(cases, "vllm-2e-2", "decode:T=2,H=3,len=2+", extra,
        ",page=4,slots=8+128,invalid=0+0.03,bad=any,empty=0.5,splits=0");
  return cases;
}

struct FlashMlaList {
  int seq, topk, page;
};

// E. the sequence lengths that a batch runs with: both kinds only for b = 74 without list lengths.
template <typename Body>
void flashmla_batches(bool any_lengths, const Body& body) {
  for (int batch : {4, 74, 321}) {
    body(batch, 1);
    if (batch == 74 && !any_lengths) body(batch, 0);
  }
}

// Every dim, head count, pair of lists and pair of list lengths. body(text, any_lengths) completes the description.
template <typename Body>
void flashmla_shapes(std::span<const FlashMlaList> lists, const Body& body) {
  const auto form = [](bool lengths) { return lengths ? "rect_lengths" : "rect"; };
  const auto spread = [](bool lengths) { return lengths ? "from0" : "fixed"; };
  for (int dim : {576, 512})
    for (int heads : {64, 128})
      for (const FlashMlaList& main : lists) {
        const std::string one = concat("H=", heads, ",fmt=", dim == 576 ? "fp8_v32" : "fp8_ds_mla");
        for (bool lengths : {false, true}) {
          if (dim == 576 && lengths) continue;
          body(concat(one, ",len=", main.topk, ",seq=", main.seq, ",page=", main.page, ",lists=", form(lengths),
                      ",lengths=", spread(lengths)),
               lengths);
          if (dim == 576) continue;
          for (const FlashMlaList& extra : lists)
            for (bool extra_lengths : {false, true})
              body(concat(one, ",len=", main.topk, "+", extra.topk, ",seq=", main.seq, "+", extra.seq,
                          ",page=", main.page, "+", extra.page, ",lists=", form(lengths), "+", form(extra_lengths),
                          ",lengths=", spread(lengths), "+", spread(extra_lengths)),
                   lengths || extra_lengths);
        }
      }
}

constexpr std::string_view kFlashMlaDecodeData =
    ",pattern=sequence,q_clip=1,q_std=1,std=0.1,v32_pow2=1,strided=aligned";

std::string flashmla_decode_text(int batch, int s_q, const std::string& shape) {
  const bool v32 = shape.find("fp8_v32") != std::string::npos;
  // Pages are a record longer than their tokens, or padded to a multiple of 576 bytes. The scale is d^-0.55, not the default.
  return concat("decode:T=", batch * s_q, ",qlen=", s_q, ",", shape, kFlashMlaDecodeData,
                v32 ? ",stride=plus_row,scale=0.03031" : ",stride=x576,scale=0.03235");
}

std::vector<TestCase> flashmla_decode() {
  constexpr FlashMlaList kLists[] = {{512, 64, 2},    {512, 64, 64},   {512, 64, 69},    {1024, 576, 2},
                                     {1024, 576, 61}, {2046, 2048, 2}, {2046, 2048, 64}, {2046, 2048, 576}};
  std::vector<TestCase> cases;
  flashmla_shapes(kLists, [&](const std::string& shape, bool any_lengths) {
    flashmla_batches(any_lengths, [&](int batch, int vary) {
      for (int s_q : {1, 3})
        add(cases, "flashmla-decode", flashmla_decode_text(batch, s_q, shape), ",seq_vary=", vary, ",sink=mixed");
    });
  });
  return cases;
}

std::vector<TestCase> flashmla_decode_corner() {
  constexpr FlashMlaList kLists[] = {{512, 64, 61}, {650, 576, 53}};
  std::vector<TestCase> cases;
  flashmla_shapes(kLists, [&](const std::string& shape, bool any_lengths) {
    flashmla_batches(any_lengths, [&](int batch, int vary) {
      for (int all_invalid : {0, 1})
        for (const char* empty : {"0", "0.5"})
          for (const char* sink : {"none", "mixed"}) {
            const bool plain = !all_invalid && empty[1] == 0 && sink[0] == 'n';
            if (plain) continue;
            add(cases, "flashmla-decode", flashmla_decode_text(batch, 3, shape), ",seq_vary=", vary,
                ",all_invalid=", all_invalid, ",empty=", empty, ",sink=", sink);
          }
    });
  });
  return cases;
}

std::vector<TestCase> flashmla_decode_speed() {
  std::vector<TestCase> cases;
  const auto text = [](int batch, const std::string& shape) {
    return concat(flashmla_decode_text(batch, 2, shape), ",sink=mixed");
  };
  for (int batch : {2, 64, 74, 128})
    add(cases, "flashmla-decode", text(batch, "H=128,fmt=fp8_v32,len=2048,seq=32768,page=64,lists=rect"));
  struct Config {
    int heads, extra, extra_page;
    bool extra_lengths;
  };
  for (const Config& c :
       {Config{64, 512, 64, false}, {128, 1024, 64, false}, {64, 1024, 2, true}, {128, 1024, 2, true}})
    for (int batch : {2, 64, 74, 128, 148, 256})
      add(cases, "flashmla-decode",
          text(batch, concat("H=", c.heads, ",fmt=fp8_ds_mla,len=128+", c.extra, ",seq=16384,page=256+", c.extra_page,
                             c.extra_lengths ? ",lists=rect+rect_lengths,lengths=fixed+from0" : ",lists=rect")));
  for (int heads : {64, 128})
    for (const char* format : {"fp8_ds_mla", "fp8_v32"})
      add(cases, "flashmla-decode",
          text(148, concat("H=", heads, ",fmt=", format, ",len=16384,seq=32768,page=64,lists=rect")));
  for (TestCase& test : cases) test.run_only = true;
  return cases;
}

// F. aiter's development harness.
std::vector<TestCase> aiter_development() {
  std::vector<TestCase> cases;
  for (const char* len : {"64", "64+64"})
    add(cases, "aiter-1e-2", "decode:T=256,H=128,len=", len, ",page=64,slots=16384");
  for (int rows : {1, 32, 128})
    for (const char* shape :
         {"len=2048,page=256,slots=131072", "len=64+64,page=64,slots=32768", "len=1024+1024,page=2,slots=4096"})
      add(cases, "aiter-1e-2", "decode:T=", rows, ",H=128,", shape);
  return cases;
}

// G. ours: one thing varied at a time around a small problem, for every format.
constexpr const char* kFormatKeys[] = {"bf16",       "f16",         "fp8_e4m3fn", "fp8_e4m3fnuz",
                                       "fp8_ds_mla", "packed_bf16", "fp8_v32"};

bool rounds_keys(std::string_view formats) {
  return formats.find("e4m3") != formats.npos || formats.find("v32") != formats.npos;
}

const char* own_tolerance(std::string_view formats) { return rounds_keys(formats) ? "rounded-key" : "exact-key"; }

// The format's q type: f16 pools need f16 queries.
const char* q_of(std::string_view formats) {
  return formats.find("f16") == 0 || formats.find("+f16") != formats.npos ? "f16" : "bf16";
}

std::vector<TestCase> own_formats() {
  std::vector<TestCase> cases;
  for (const char* format : kFormatKeys) {
    const std::string name = format;
    const char* tolerance = own_tolerance(name);
    const auto one = [&](std::string_view len, std::string_view rest) {
      const std::string text(rest);
      const std::string rows = text.find("T=") == std::string::npos ? "T=3," : "";
      const std::string heads = text.find("H=") == std::string::npos ? "H=16," : "";
      const std::string q = text.find("q=") == std::string::npos ? concat(",q=", q_of(name)) : "";
      add(cases, tolerance, "decode:", rows, heads, "fmt=", name, ",len=", len, q, text.empty() ? "" : ",", text);
    };
    for (int heads : {1, 3, 8, 12, 16, 40, 64, 96, 128}) {
      one("140", concat("H=", heads));
      one("40+65", concat("H=", heads, ",T=2"));
    }
    for (int len : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129}) one(std::to_string(len), "T=2");
    one("300", "T=22,lengths=edges");
    for (const char* gaps : {"1", "aligned"}) {
      one("300", concat("T=22,lengths=edges,lists=rect_lengths,strided=", gaps, ",max_logits=1"));
    }
    one("300+300", "T=22,lengths=edges+from0,invalid=0.05,bad=any,lists=ragged+rect_lengths");
    one("8192", "T=1");
    one("20000", "T=1,H=3");
    for (int splits : {1, 2, 3, 7, 16, 64, 256}) one("200+70", concat("splits=", splits));
    for (int splits : {2, 5, 256}) one("200", concat("splits=", splits, ",skip_reduce=1"));
    for (const char* sink : {"none", "normal", "mixed", "minus_inf", "plus_inf", "nan"}) {
      one("70", concat("T=6,lengths=from0,empty=0.3,sink=", sink));
    }
    for (const char* scale : {"0", "-0.05", "0.5", "1e-30"}) one("100", concat("scale=", scale));
    for (const char* rows : {"T=0", "T=17", "T=100"}) one("33", concat(rows, ",H=2"));
    one("64", "invalid=1,T=2");
    one("64+64", "all_invalid=0.5,T=8,bad=any,max_logits=1");
    one("64+64", "empty=0.5,T=8,lists=rect");
    one("0+30", "T=4");
    one("30+0", "T=4");
    one("100", "nan=0.02,T=9,H=2");
    one("100", "nan=0.05,T=9,H=2,nan_to_zero=1");
    one("100", "no_invalid=1,invalid=0.1,bad=any");
    one("100", "values=exponents,std=0.4");
    one("100", "values=codes,std=0.2");
    one("600", "slots=64,pattern=random");
    one("100", "block_h=64,H=20");
    one("130", "lse=0");
    one("160+96", "lists=rect,pattern=unique,T=5,H=128,max_logits=1");
    if (name == "bf16" || name == "f16") {
      one("150", "D=576,H=12");
      one("65+40", "D=576,T=4,lengths=edges");
    }
    if (name.starts_with("fp8")) {
      one("128", "q=f16");
      one("65+20", "q=f16,lengths=from0,H=40");
    }
    if (name == "fp8_v32") one("128", "v32_pow2=1");
  }
  return cases;
}

// Every pair of formats with equal D (and one 16-bit type).
std::vector<TestCase> own_pairs() {
  std::vector<TestCase> cases;
  for (const FormatInfo& a : kFormats)
    for (const FormatInfo& b : kFormats) {
      if (a.dim && b.dim && a.dim != b.dim) continue;
      const bool f16 = a.format == PASA_KV_F16 || b.format == PASA_KV_F16;
      const auto is_bf16 = [](const FormatInfo& f) {
        return f.format == PASA_KV_BF16 || f.format == PASA_KV_PACKED_BF16;
      };
      if (f16 && (is_bf16(a) || is_bf16(b))) continue;
      const std::string formats = concat(a.name, "+", b.name);
      for (const int dim : {512, 576}) {
        if ((a.dim && a.dim != dim) || (b.dim && b.dim != dim)) continue;
        for (const char* rest : {"T=5,H=16,len=70+33", "T=3,H=40,len=33+150,lengths=from0,invalid=0.1,splits=3"})
          add(cases, own_tolerance(formats), "decode:", rest, ",fmt=", formats, ",page=3+64,q=", f16 ? "f16" : "bf16",
              ",D=", dim);
      }
    }
  return cases;
}

// Page sizes of the packed formats, padded and not.
std::vector<TestCase> own_pages() {
  std::vector<TestCase> cases;
  for (const char* format : {"fp8_ds_mla", "packed_bf16", "fp8_v32"})
    for (int page : {1, 2, 4, 16, 53, 61, 64, 69, 128, 256, 576})
      for (const char* stride : {"dense", "x576", "plus_row"})
        add(cases, own_tolerance(format), "decode:T=4,H=16,fmt=", format, ",len=75+30,page=", page,
            "+64,stride=", stride, ",slots=1200");
  return cases;
}

// Offsets beyond 2^31 and 2^32 bytes in each pool; the mappings are sparse.
std::vector<TestCase> own_large() {
  std::vector<TestCase> cases;
  for (const char* format : kFormatKeys) {
    const std::string q = q_of(format);
    const bool paged = find_format(parse_text(concat("decode:fmt=", format)).source[0].format)->paged;
    // 40 pages of 16 slots, or 640 slots, spread over about 5 GiB
    const char* stride = paged ? "134217744" : "8388624";
    for (const char* form : {"len=100,stride=", "len=40+100,stride=dense+"})
      add(cases, own_tolerance(format), "decode:T=4,H=16,fmt=", format, ",", form, stride, ",slots=640,page=16,q=", q);
    // A dense pool whose selected slots lie anywhere in more than 4 GiB
    const int bytes = paged ? 584 : 512;
    add(cases, own_tolerance(format), "decode:T=2,H=16,fmt=", format,
        ",len=200,slots=", (std::int64_t{9} << 29) / bytes, ",q=", q);
  }
  return cases;
}

// Many rows.
std::vector<TestCase> own_rows() {
  std::vector<TestCase> cases;
  for (const char* format : {"bf16", "fp8_ds_mla"})
    for (const char* shape : {"T=4096,H=1,len=5", "T=65537,H=1,len=3", "T=70000,H=2,len=2+1,lengths=from0"})
      add(cases, own_tolerance(format), "decode:", shape, ",fmt=", format, ",slots=5000");
  return cases;
}

// Prefill A: aiter test_pa_prefill_sparse, and T 1, 63, 65.
std::vector<TestCase> aiter_prefill() {
  std::vector<TestCase> cases;
  const auto one = [&](int tokens, int prefix, int extend, const char* invalid) {
    const std::string len = extend < 0 ? std::to_string(prefix) : concat(prefix, "+", extend);
    const std::string slots =
        extend < 0 ? std::to_string(tokens * prefix) : concat(tokens * prefix, "+", tokens * extend);
    add(cases, "aiter-5e-3", "prefill:T=", tokens, ",H=64,len=", len, ",slots=", slots, ",invalid=", invalid);
  };
  for (int tokens : {1, 63, 65, 1024, 16384}) {
    for (int prefix : {0, 128, 255})
      for (int extend : {1, 128})
        for (const char* invalid : {"0.0625", "0"}) one(tokens, prefix, extend, invalid);
    one(tokens, 128, 0, "0");
    one(tokens, 0, 128, "0");
    for (int prefix : {255, 512}) one(tokens, prefix, -1, "0");
  }
  return cases;
}

// Prefill B, C: the shapes of the pull request's harness and benchmark, with its gate.
std::vector<TestCase> dsv4_prefill() {
  std::vector<TestCase> cases;
  for (const char* sink : {"none", "small"}) {
    add(cases, "aiter-1e-2", "prefill:T=4096,H=128,len=512,slots=4096,sink=", sink);
    add(cases, "aiter-1e-2", "prefill:T=128,H=128,len=512,slots=2048,lengths=quarter,pattern=unique,sink=", sink);
  }
  return cases;
}
std::vector<TestCase> dsv4_prefill_speed() {
  std::vector<TestCase> cases;
  for (int tokens : {4096, 8192})
    for (int topk : {512, 1024})
      add(cases, "aiter-1e-2", "prefill:T=", tokens, ",H=128,len=", topk, ",slots=", tokens,
          ",lengths=quarter,pattern=unique");
  for (TestCase& test : cases) test.run_only = true;
  return cases;
}

// Prefill D: FlashMLA test_flash_mla_sparse_prefill.
constexpr std::string_view kFlashMlaPrefillData =
    ",lists=rect,pattern=unique,bad=any,q_std=0.1,std=0.1,shift=0.05,scale=0.5,strided=aligned,max_logits=1";

struct PrefillShape {
  int seq_kv, topk;
};
constexpr PrefillShape kPrefillShapes[] = {{128, 128},  {256, 256},  {512, 512}, {592, 128}, {1840, 256},
                                           {1592, 384}, {1521, 512}, {95, 128},  {153, 256}, {114, 384}};

std::string flashmla_prefill_text(int dim, int heads, int rows, PrefillShape shape) {
  return concat("prefill:T=", rows, ",H=", heads, ",D=", dim, ",len=", shape.topk, ",slots=", shape.seq_kv,
                kFlashMlaPrefillData);
}

template <typename Body>
void for_dims_and_heads(const Body& body) {
  for (int dim : {512, 576})
    for (int heads : {64, 128}) body(dim, heads);
}

std::vector<TestCase> flashmla_prefill() {
  std::vector<TestCase> cases;
  for_dims_and_heads([&](int dim, int heads) {
    for (int rows : {1, 62, 213})
      for (const PrefillShape& shape : kPrefillShapes)
        add(cases, "flashmla-prefill", flashmla_prefill_text(dim, heads, rows, shape), ",sink=none");
  });
  return cases;
}

// The original lists each of these twice; here the second one has another seed.
std::vector<TestCase> flashmla_prefill_features() {
  std::vector<TestCase> cases;
  for_dims_and_heads([&](int dim, int heads) {
    for (int rows : {62, 213})
      for (const PrefillShape& shape : std::span(kPrefillShapes).last(7))
        for (const char* sink : {"none", "mixed"})
          for (const char* lengths : {"", ",lists=rect_lengths,lengths=from0"})
            for (int seed : {0, 1})
              add(cases, "flashmla-prefill", flashmla_prefill_text(dim, heads, rows, shape), ",sink=", sink, lengths,
                  ",seed=", seed);
  });
  return cases;
}

std::vector<TestCase> flashmla_prefill_corner() {
  struct Corner {
    int rows;
    PrefillShape shape;
  };
  constexpr Corner kCorners[] = {{1, {128, 128}},      {1, {256, 256}},    {1234, {4321, 4096}},
                                 {4096, {2048, 2048}}, {1, {32, 2048}},    {1024, {32, 2048}},
                                 {1, {64, 8192}},      {1024, {64, 8192}}, {70000, {256, 256}}};
  std::vector<TestCase> cases;
  for_dims_and_heads([&](int dim, int heads) {
    for (const Corner& corner : kCorners) {
      add(cases, "flashmla-prefill", flashmla_prefill_text(dim, heads, corner.rows, corner.shape),
          ",sink=mixed,lists=rect_lengths,lengths=from0,all_invalid=0.02");
      cases.back().run_only = corner.rows == 70000;
    }
  });
  return cases;
}

std::vector<TestCase> flashmla_prefill_speed() {
  std::vector<TestCase> cases;
  const auto one = [&](int dim, int heads, PrefillShape shape) {
    add(cases, "flashmla-prefill", flashmla_prefill_text(dim, heads, 4096, shape), ",sink=normal");
    cases.back().run_only = true;
  };
  for (int seq_kv : {8192, 32768, 65536, 98304, 131072}) one(576, 128, {seq_kv, 2048});
  for (int seq_kv : {8192, 32768, 49152, 65536}) {
    one(512, 64, {seq_kv, 512});
    one(512, 128, {seq_kv, 1024});
  }
  return cases;
}

// Prefill E: vLLM's ragged prefill, as far as a description can say it.
std::vector<TestCase> vllm_prefill() {
  std::vector<TestCase> cases;
  for (const char* rest : {"", ",strided=1", ",empty=0.34", ",len=2+3"})
    add(cases, "vllm-2e-2", "prefill:T=3,H=3,len=3,slots=5,lengths=from0", rest);
  return cases;
}

// Prefill I: ours.
std::vector<TestCase> own_prefill() {
  std::vector<TestCase> cases;
  for (int len : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129})
    for (int heads : {1, 12, 64, 128}) add(cases, "exact-key", "prefill:T=3,H=", heads, ",len=", len, ",slots=300");
  add(cases, "exact-key", "prefill:T=2,H=16,len=8192,slots=10000");
  add(cases, "exact-key", "prefill:T=0,H=16,len=10");
  add(cases, "exact-key", "prefill:T=70000,H=1,len=4,slots=100");
  for (const char* sink : {"none", "mixed", "minus_inf", "plus_inf", "nan"})
    add(cases, "exact-key",
        "prefill:T=20,H=16,len=64+32,slots=500,lengths=from0,all_invalid=0.2,bad=any,invalid=0.2,sink=", sink,
        ",max_logits=1");
  for (const char* q : {"bf16", "f16"})
    for (const char* dim : {"512", "576"})
      add(cases, "exact-key", "prefill:T=9,H=24,q=", q, ",fmt=", q, ",D=", dim,
          ",len=100+28,slots=500,strided=1,lists=rect");
  return cases;
}

// MLA F: aiter test_mla. q and keys are N(0, 1), the scale is 576^-0.5.
constexpr const char* kMlaFormats[] = {"bf16", "fp8_e4m3fn"};
constexpr std::string_view kMlaData = ",q_std=1,std=1";

template <typename... Parts>
void add_mla(std::vector<TestCase>& cases, const char* format, int batch, int heads, int queries, int context,
             const Parts&... rest) {
  add(cases, format == kMlaFormats[0] ? "aiter-mla" : "aiter-mla-fp8", "mla:T=", batch * queries, ",H=", heads,
      ",fmt=", format, ",len=", context, ",queries=", queries, kMlaData, rest...);
}

std::vector<TestCase> aiter_mla() {
  struct Form {
    int heads, queries;
  };
  std::vector<TestCase> cases;
  for (const char* format : kMlaFormats)
    for (int context : {21, 64, 256, 512, 1200, 3200, 5200, 8192})
      for (int batch : {1, 3, 5, 16, 32, 64, 128, 256})
        for (const Form& form : {Form{16, 1}, {16, 2}, {16, 4}, {128, 1}, {128, 2}})
          add_mla(cases, format, batch, form.heads, form.queries, context);
  return cases;
}

// The lines of its CI, with both pool layouts and sequences of different length besides; sequential slots beyond 2^32 bytes.
std::vector<TestCase> aiter_mla_ci() {
  std::vector<TestCase> cases;
  for (const char* pe : {"whole", "apart"})
    for (const char* lengths : {"fixed", "from0"}) {
      const auto one = [&](const char* format, int batch, int heads, int queries, int context) {
        add_mla(cases, format, batch, heads, queries, context, ",pe=", pe, ",lengths=", lengths);
      };
      one("bf16", 1, 16, 1, 49152);
      one("fp8_e4m3fn", 1, 16, 1, 98304);
      for (int context : {10000, 100000})
        for (int batch : {1, 3, 4})
          for (int heads : {12, 16}) one(kMlaFormats[0], batch, heads, 1, context);
      for (int context : {1, 21, 63, 64, 65, 256}) one(kMlaFormats[0], 1, 16, 1, context);
      for (int queries : {8, 17}) one(kMlaFormats[0], 4, 16, queries, 16384);
      for (int context : {260, 388})
        for (int batch : {1, 2}) one(kMlaFormats[0], batch, 16, 8, context);
      for (int batch : {64, 128})
        for (int heads : {64, 128}) one(kMlaFormats[0], batch, heads, 1, 16384);
    }
  for (const char* format : kMlaFormats) {
    add_mla(cases, format, 1, 16, 1, 10000000, ",pattern=window,slots=10000000");  // 5.8 and 11.5 GB
  }
  for (TestCase& test : cases) test.run_only = test.spec.tokens * test.spec.source[0].len >= 1000000;
  return cases;
}

// MLA G: aiter's Triton test of the same operation.
std::vector<TestCase> triton_mla() {
  std::vector<TestCase> cases;
  for (const char* format : kMlaFormats)
    for (int batch : {1, 4, 8, 32})
      for (int queries : {1, 3})
        for (int context : {1328, 4371})
          for (int heads : {16, 128}) add_mla(cases, format, batch, heads, queries, context, ",lengths=from1");
  return cases;
}

// Ours: for every flat format and place of the RoPE part, one thing varied at a time.
std::vector<TestCase> own_mla() {
  std::vector<TestCase> cases;
  for (const char* format : {"bf16", "f16", "fp8_e4m3fn", "fp8_e4m3fnuz"}) {
    const std::string q = q_of(format);
    const auto one = [&](const char* pe, const std::string& rest) {
      add(cases, "exact-key", "mla:", rest, ",fmt=", format, ",pe=", pe, rest.find("q=") == rest.npos ? ",q=" + q : "");
    };
    for (const char* pe : {"behind", "before"}) one(pe, "T=8,H=20,len=70,queries=2,kv_scale=0.7,lengths=from0");
    for (const char* pe : {"whole", "apart"}) {
      for (int heads : {1, 12, 16, 96, 128}) one(pe, concat("T=3,H=", heads, ",len=140"));
      for (int queries : {1, 2, 4, 8, 17})
        for (const char* lists : {"rect_lengths", "ragged"})
          one(pe, concat("T=", 4 * queries, ",len=40,lengths=from0,empty=0.2,queries=", queries, ",lists=", lists));
      for (const char* scale : {"0.03125", "0.7", "-2"}) one(pe, concat("T=2,len=100,kv_scale=", scale));
      one(pe, "T=2,len=100,strided=1,max_logits=1,values=codes,std=0.2");
    }
    for (int len : {0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129}) one("apart", concat("T=2,len=", len));
    for (int splits : {1, 3, 7, 64, 256})
      one("apart", concat("T=16,len=30,queries=8,lengths=from0,splits=", splits));  // parts that the cut empties
    for (int splits : {2, 5, 256})
      one("apart", concat("T=16,len=30,queries=8,kv_scale=0.5,skip_reduce=1,splits=", splits));
    one("whole", "T=16,H=20,len=3,queries=8");  // more queries than tokens
    one("apart", "T=2,len=8192");
    one("apart", "T=8,len=64+32,lists=ragged,lengths=from0,kv_scale=3");
    for (const char* sink : {"normal", "mixed", "minus_inf", "plus_inf", "nan"})
      one("apart", concat("T=8,len=60,lengths=from0,queries=2,kv_scale=0.5,sink=", sink));
    for (const char* invalid : {"0.1", "1"}) one("apart", concat("T=4,len=64,queries=2,bad=any,invalid=", invalid));
    one("apart", "T=9,H=2,len=100,nan=0.02");
    one("apart", "T=9,H=2,len=100,nan=0.05,nan_to_zero=1");
    const bool fp8 = std::string_view(format).starts_with("fp8");
    if (fp8) one("apart", "T=3,len=128,q=f16");
    // Slots 8 MiB apart, both pieces beyond 2^32; a dense pool of more than 4 GiB.
    for (const char* pe : {"whole", "apart", "behind"}) one(pe, "T=4,len=100,stride=8388624,slots=640");
    one("apart", concat("T=2,len=200,slots=", (std::int64_t{9} << 29) / (fp8 ? 512 : 1024)));
  }
  return cases;
}

constexpr Grid kGrids[] = {
    {"aiter-decode", "aiter test_pa_decode_sparse_vs_reference, with sentinels and partials", aiter_decode},
    {"aiter-decode-fp8", "its uniform fp8 variant, both flavours", aiter_decode_fp8},
    {"aiter-two-loop", "its two-source variant, spans beyond 2 GiB included", aiter_two_loop},
    {"vllm-decode", "vLLM test_rocm_triton_attn_dsv4", vllm_decode},
    {"flashmla-decode", "FlashMLA test_flash_mla_sparse_decoding, correctness", flashmla_decode},
    {"flashmla-decode-corner", "its corner cases", flashmla_decode_corner},
    {"flashmla-decode-speed", "its performance cases", flashmla_decode_speed},
    {"aiter-development", "aiter's development harness", aiter_development},
    {"own-formats", "one thing varied at a time, for every format", own_formats},
    {"own-pairs", "every pair of formats", own_pairs},
    {"own-pages", "page sizes, padded and not", own_pages},
    {"own-large", "offsets beyond 2^31 and 2^32 bytes", own_large},
    {"own-rows", "many rows", own_rows},
    {"aiter-prefill", "aiter test_pa_prefill_sparse", aiter_prefill},
    {"dsv4-prefill", "the DSV4 prefill gates", dsv4_prefill},
    {"dsv4-prefill-speed", "the DSV4 prefill benchmark", dsv4_prefill_speed},
    {"flashmla-prefill", "FlashMLA test_flash_mla_sparse_prefill, regular", flashmla_prefill},
    {"flashmla-prefill-features", "its sink and length features", flashmla_prefill_features},
    {"flashmla-prefill-corner", "its corner cases", flashmla_prefill_corner},
    {"flashmla-prefill-speed", "its performance cases", flashmla_prefill_speed},
    {"vllm-prefill", "vLLM's ragged prefill", vllm_prefill},
    {"aiter-mla", "aiter test_mla: dense MLA decode, bf16 and fp8", aiter_mla},
    {"aiter-mla-ci", "its CI lines, for both pool layouts, fixed and mixed lengths", aiter_mla_ci},
    {"triton-mla", "aiter's Triton test of MLA decode", triton_mla},
    {"own-mla", "MLA decode, one thing varied at a time, for every flat format", own_mla},
    {"own-prefill", "lengths, sinks, rows", own_prefill},
};

// Multiply-adds of the reference, about.
double cost(const CaseSpec& spec) {
  double keys = 0;
  for (int s = 0; s < spec.source_count; ++s) keys += static_cast<double>(spec.source[s].len);
  return static_cast<double>(spec.tokens) * spec.heads * keys * (spec.resolved_dim() + kValueDim);
}

}  // namespace

std::span<const NamedProblem> named_problems() { return kNamed; }

CaseSpec find_problem(std::string_view name_or_text) {
  std::string names;
  for (const NamedProblem& named : kNamed) {
    if (named.name == name_or_text) return parse_text(named.text);
    names.append(names.empty() ? "" : ", ").append(named.name);
  }
  require(PASA_ERROR_RANGE, name_or_text.find(':') != std::string_view::npos, "problem is '", name_or_text,
          "', expected one of ", names, ", or decode:key=value,...");
  return parse_text(name_or_text);
}

std::span<const Grid> grids() { return kGrids; }

std::vector<TestCase> grid(std::string_view name) {
  std::string names;
  for (const Grid& g : kGrids) {
    if (g.name == name) return g.cases();
    names.append(names.empty() ? "" : ", ").append(g.name);
  }
  throw Error(PASA_ERROR_RANGE, concat("grid is '", name, "', expected one of ", names));
}

std::vector<TestCase> full_cases() {
  std::vector<TestCase> all;
  for (const Grid& g : kGrids) {
    for (const TestCase& test : g.cases()) all.push_back(test);
  }
  return all;
}

// A case is taken if it is cheap and says something that no case of its grid said before: a key=value of its description,
// together with its formats. So every grid, every format and pair, and every edge with every format is represented.
std::vector<TestCase> quick_cases() {
  constexpr double kAffordable = 6e8;
  std::vector<TestCase> chosen;
  for (const Grid& g : kGrids) {
    std::set<std::string> seen;
    for (const TestCase& test : g.cases()) {
      if (test.run_only || cost(test.spec) > kAffordable) continue;
      const std::string text = to_text(test.spec);
      const std::string formats = text.substr(text.find("fmt="), text.find(",len=") - text.find("fmt="));
      bool news = false;
      for (std::size_t at = text.find(':'); at != std::string::npos;) {
        const std::size_t end = text.find(',', at + 1);
        const std::string item = text.substr(at + 1, end == std::string::npos ? end : end - at - 1);
        news |= seen.insert(concat(formats, " ", item)).second;
        at = end;
      }
      if (news) chosen.push_back(test);
    }
  }
  return chosen;
}

}  // namespace pasa
