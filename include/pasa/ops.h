/* pasa: the operations around the attention call. Writing a KV cache, reading it back, and building the index lists.
 *
 * All of them are exact: integers and bytes are the same on every device, bit for bit. They run on the caller's stream,
 * write only into the caller's tensors, allocate nothing and never wait for the device, so they may be captured in a graph.
 * Conventions are pasa.h's: tensors are views, a zeroed tensor is absent, zero means "none" or "default", struct_size is
 * sizeof of the struct, and checks look at shapes, dtypes, strides and scalars only. What device data says is never an
 * error: a bad slot or table entry is skipped, or becomes -1 in a list.
 *
 *     pasa_cache_write_args a = {.struct_size = sizeof a};
 *     a.cache.format = PASA_KV_FP8_DS_MLA; a.cache.kv = ...; a.k = ...; a.slot_mapping = ...;
 *     if (pasa_cache_write(&a, stream) != PASA_OK) puts(pasa_last_error());
 *
 * Integers are I32. Where a comment says INT, I64 is taken too.
 */
#ifndef PASA_OPS_H
#define PASA_OPS_H

#include "pasa/pasa.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- KV caches ---- */

/* A cache as in pasa_source. A paged byte format may also come as [blocks, page bytes]; then block_size says how many
 * tokens a page holds. Otherwise block_size is optional, and checked if given. */
typedef struct pasa_cache {
  pasa_kv_format format;
  pasa_tensor kv;
  pasa_tensor kv_scales; /* F32 [slots, D/64]: only and always with the uniform fp8 formats */
  int64_t block_size;
} pasa_cache;

enum {
  PASA_POWER_OF_TWO_SCALES = 1
}; /* fp8_v32: FlashMLA's scales 2^ceil(log2(amax/448)); default: amax/448 as it is */

/* Quantises row i of k and writes it to slot slot_mapping[i]; a slot outside the cache is skipped, and rows of k beyond the
 * mapping's length are padding. No byte changes but those of the slots named. A slot named twice holds an unspecified mix. */
typedef struct pasa_cache_write_args {
  size_t struct_size;
  pasa_cache cache;
  pasa_tensor k;            /* BF16 (with an f16 cache F16) [n, D] or [n, 1, D], any row stride */
  pasa_tensor slot_mapping; /* INT [m], m <= n */
  uint32_t flags;
} pasa_cache_write_args;
PASA_API pasa_status pasa_cache_write(const pasa_cache_write_args* args, pasa_stream stream);

/* Dequantises tokens into 16-bit rows, either those of a slot list,
 *     out[i] = cache[slots[i]],
 * or the last g = gather_lens[r] tokens (all seq_lens[r] without gather_lens) of each sequence, found through its row of
 * the block table:
 *     out[r, offset + i] = token at position seq_lens[r] - g + i,   i = 0 ... g - 1.
 * What lies outside the cache, the table or out is skipped: rows of out that receive nothing keep their contents. */
typedef struct pasa_cache_gather_args {
  size_t struct_size;
  pasa_cache cache;
  pasa_tensor out;         /* BF16 or F16 [n, D] with slots, else [R, max_tokens, D] */
  pasa_tensor slots;       /* INT [n] */
  pasa_tensor seq_lens;    /* [R], with block_table */
  pasa_tensor gather_lens; /* optional [R] */
  pasa_tensor block_table; /* [R, C], any row stride */
  int64_t offset;          /* first row of out[r] that is written */
  uint32_t flags;          /* PASA_NAN_TO_ZERO: NaN components count as 0 */
} pasa_cache_gather_args;
PASA_API pasa_status pasa_cache_gather(const pasa_cache_gather_args* args, pasa_stream stream);

/* ---- addresses ---- */

/* Where the tokens of a sequence are: entry e of request r has slot
 *     base + block_table[r][e div block_size] * block_size + e mod block_size,
 * or -1 if e < 0, the column or the request does not exist, the table entry is not in [0, num_blocks), or the slot exceeds
 * 2^31 - 1. For a compressed cache block_size is the number of compressed entries in a page. ring = 1: columns wrap, as in
 * a sliding-window ring of C blocks. */
typedef struct pasa_paging {
  pasa_tensor block_table; /* [R, C], any row stride */
  int64_t block_size;      /* >= 1 */
  int64_t num_blocks;      /* 0: not known */
  int64_t base;            /* first slot of this cache in a unified pool */
  int32_t ring;
} pasa_paging;

/* slots[t, j] = slot of position positions[t, j] in the cache of request token_to_req[t].
 * ratio > 1: the slot to which the compressed entry that this token completes is written: -1 unless (position + 1) is a
 * multiple of ratio, else the slot of entry position div ratio. */
typedef struct pasa_slots_args {
  size_t struct_size;
  pasa_tensor positions;    /* INT [T] or [T, W], contiguous */
  pasa_tensor token_to_req; /* [T]; absent: row t belongs to request t */
  pasa_paging paging;
  int64_t ratio;     /* 0 or 1: every token has a slot of its own */
  pasa_tensor slots; /* INT, as positions */
} pasa_slots_args;
PASA_API pasa_status pasa_slots(const pasa_slots_args* args, pasa_stream stream);

/* What a query at each position attends to: n_window = min(position + 1, window) tokens, and compressed entries:
 * none for compress_ratio 0 or 1, min((position + 1) div 4, topk) for 4, (position + 1) div 128 for 128, at most width. */
typedef struct pasa_token_counts_args {
  size_t struct_size;
  pasa_tensor positions;    /* INT [T] */
  int64_t window;           /* >= 1 */
  int64_t compress_ratio;   /* 0, 1, 4 or 128 */
  int64_t topk;             /* with 4 */
  int64_t width;            /* with 128; 0: no limit */
  pasa_tensor n_window;     /* [T] */
  pasa_tensor n_compressed; /* [T] */
} pasa_token_counts_args;
PASA_API pasa_status pasa_token_counts(const pasa_token_counts_args* args, pasa_stream stream);

/* ---- index lists ----
 *
 * Every builder makes one list per row t, in either form that pasa_source takes: ragged, rows behind each other with indptr,
 * or rectangular, each row filled up with -1. One launch each. */
typedef struct pasa_lists {
  pasa_tensor indices; /* ragged: [n], n at least T times the longest possible list; entries beyond indptr[T] are not
                          written. Rectangular: [T, W], W at least the longest possible list, any row stride */
  pasa_tensor indptr;  /* [T+1]: only and always with ragged indices */
  pasa_tensor lengths; /* [T]: optional */
} pasa_lists;

/* The queries of a decode step. */
typedef struct pasa_queries {
  pasa_tensor positions;    /* INT [T] */
  pasa_tensor token_to_req; /* [T]; absent: row t belongs to request t */
  pasa_tensor is_valid;     /* optional U8 or I8 [T]: a row with 0 gets an empty list (padding in a captured graph) */
} pasa_queries;

/* The first lengths[t] entries of each row of a dense tensor (clamped to the row's width). has_num_rows: an entry outside
 * [0, num_rows) becomes -1 where it stands. */
typedef struct pasa_list_dense_args {
  size_t struct_size;
  pasa_tensor indices; /* [..., W]: leading dimensions are taken together, contiguous */
  pasa_tensor lengths; /* as many as there are rows, contiguous */
  int64_t num_rows;
  int32_t has_num_rows;
  pasa_lists lists;
} pasa_list_dense_args;
PASA_API pasa_status pasa_list_dense(const pasa_list_dense_args* args, pasa_stream stream);

/* The slots of the cache entries that an indexer picked, in order; entries without a slot are left out. */
typedef struct pasa_list_topk_args {
  size_t struct_size;
  pasa_tensor topk_indices; /* [T, K], any row stride: entries of the row's own request; -1 for none */
  pasa_tensor token_to_req; /* [T]; absent: row t belongs to request t */
  pasa_tensor is_valid;     /* optional U8 or I8 [T] */
  pasa_paging paging;
  pasa_lists lists;
} pasa_list_topk_args;
PASA_API pasa_status pasa_list_topk(const pasa_list_topk_args* args, pasa_stream stream);

/* Top-k and window combined, as indices into a prefill workspace: request r has `rows_per_request` (M) rows from r * M on,
 * the first `compressed_rows` (N) of them compressed entries, then its last gather_lens[r] tokens. Query i of request r is
 * at position seq_lens[r] - (its queries) + i and lists min((position + 1) div ratio, topk) entries of topk_indices, then
 * its window, oldest first. An entry outside [0, N), a missing column of topk_indices, or a token that was not gathered
 * becomes -1. */
typedef struct pasa_list_combine_args {
  size_t struct_size;
  pasa_tensor topk_indices;    /* [T, W], any row stride; optional if topk = 0 */
  pasa_tensor query_start_loc; /* [R+1]; may start at any value, as of a chunk */
  pasa_tensor seq_lens;        /* [R] */
  pasa_tensor gather_lens;     /* [R] */
  int64_t window;              /* >= 1 */
  int64_t ratio;               /* >= 1 */
  int64_t topk;                /* >= 0 */
  int64_t rows_per_request;    /* M >= N */
  int64_t compressed_rows;     /* N >= 0 */
  pasa_lists lists;            /* of T rows, which the sizes of lists.lengths or lists.indptr tell */
} pasa_list_combine_args;
PASA_API pasa_status pasa_list_combine(const pasa_list_combine_args* args, pasa_stream stream);

/* All compressed entries that a query may see, min((position + 1) div ratio, width): as slots, or without a block table as
 * the entries' own numbers 0, 1, 2, ... */
typedef struct pasa_list_compressed_args {
  size_t struct_size;
  pasa_queries queries;
  pasa_paging paging; /* block_table absent: entry numbers; token_to_req is not needed then */
  int64_t ratio;      /* >= 1 */
  int64_t width;      /* >= 0: longest list */
  pasa_lists lists;
} pasa_list_compressed_args;
PASA_API pasa_status pasa_list_compressed(const pasa_list_compressed_args* args, pasa_stream stream);

/* The slots of the last min(position + 1, window) tokens up to the query's own, oldest first. */
typedef struct pasa_list_window_args {
  size_t struct_size;
  pasa_queries queries;
  pasa_paging paging;
  int64_t window; /* >= 1 */
  pasa_lists lists;
} pasa_list_window_args;
PASA_API pasa_status pasa_list_window(const pasa_list_window_args* args, pasa_stream stream);

/* ---- results ---- */

/* Merges two attention results over disjoint key sets, each computed without a sink:
 *     out = (e^lse_a out_a + e^lse_b out_b) / (e^lse_a + e^lse_b + e^sink),   lse = ln(e^lse_a + e^lse_b).
 * An lse of -inf, or +inf as FlashMLA writes it, marks a row without keys: its out is not looked at. out may be out_a or
 * out_b itself, lse may be lse_a or lse_b. */
typedef struct pasa_merge_args {
  size_t struct_size;
  pasa_tensor out_a, out_b; /* BF16, F16 or F32 [T, H, 512], any row strides */
  pasa_tensor lse_a, lse_b; /* F32 [T, H], any strides */
  pasa_tensor attn_sink;    /* optional F32 [H] */
  pasa_tensor out;          /* BF16, F16 or F32 [T, H, 512], any row strides */
  pasa_tensor lse;          /* optional F32 [T, H], any strides */
} pasa_merge_args;
PASA_API pasa_status pasa_merge(const pasa_merge_args* args, pasa_stream stream);

#ifdef __cplusplus
}
#endif
#endif
