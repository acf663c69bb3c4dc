/* pasa: paged sparse attention for multi-head latent attention caches (DeepSeek-V4 / V3.2).
 *
 * One operator. Query row t, head h attends to the cache tokens that its index list names; the value is the first 512
 * components of the key; there is one KV head. Keys come from one or two sources (sliding window + top-k, prefix + this
 * step), each with its own format, page size, strides and index list:
 *
 *     s_j  = softmax_scale * sum_d q[t,h,d] * k_j[d]              over the valid keys j of both lists
 *     out  = sum_j exp(s_j) * v_j / (sum_j exp(s_j) + exp(sink[h]))
 *     lse  = ln sum_j exp(s_j)                                    natural logarithm, without the sink
 *
 * A key is valid if 0 <= index < slots; every other index is skipped wherever it stands; a slot listed twice counts twice.
 * A row without a valid key gives out = +0 and lse = -inf. See docs/math.md for every edge case, docs/formats.md for bytes.
 *
 * Dense MLA decode is the same: a flat pool with D = 576 (kv_pe, kv_scale), the block table as lists, queries_per_list for
 * several tokens of a sequence.
 *
 * How to call it (all structs start zeroed: zero means "absent" or "choose for me"):
 *
 *     pasa_problem p = {.struct_size = sizeof p};
 *     p.q = ...; p.main.format = PASA_KV_FP8_DS_MLA; p.main.kv = ...; p.main.indices = ...; p.out = ...;
 *     pasa_plan* plan;
 *     if (pasa_plan_create(&p, &plan) != PASA_OK) puts(pasa_last_error());
 *     void* workspace = malloc(pasa_plan_workspace_bytes(plan));
 *     pasa_run(plan, &p, workspace, pasa_plan_workspace_bytes(plan), NULL);     // as often as there are layers
 *     pasa_plan_destroy(plan);
 *
 * The library never exits, aborts or prints (PASA_EXPLAIN=1 in the environment asks for one line per plan on stderr), and
 * pasa_run neither allocates nor, on a GPU, synchronises. All calls may be made from several threads at once; a plan may be
 * run by several threads if each brings its own workspace.
 */
#ifndef PASA_PASA_H
#define PASA_PASA_H

#include <stddef.h>
#include <stdint.h>

#if defined(PASA_BUILDING)
#define PASA_API __attribute__((visibility("default")))
#else
#define PASA_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define PASA_VERSION "0.1.0"

/* What went wrong. The checks run on shapes, dtypes, strides, pointers and flags only, in the order of this list from
 * DEVICE to OVERFLOW (VALUE excepted), and the first failure is reported; then nothing has been written. */
typedef enum pasa_status {
  PASA_OK = 0,
  PASA_ERROR_DEVICE = 1,       /* a tensor on the wrong device */
  PASA_ERROR_DTYPE = 2,        /* element type not allowed, or types that must agree differ */
  PASA_ERROR_RANK = 3,         /* number of dimensions */
  PASA_ERROR_SHAPE = 4,        /* sizes that disagree */
  PASA_ERROR_STRIDE = 5,       /* last dimension not contiguous, a stride that is not the format's, overlap, negative */
  PASA_ERROR_ALIGNMENT = 6,    /* base address or stride not a multiple of what the format needs */
  PASA_ERROR_COMBINATION = 7,  /* arguments that need or exclude each other */
  PASA_ERROR_RANGE = 8,        /* scalar out of range */
  PASA_ERROR_VALUE = 9,        /* tensor contents malformed: only pasa_validate and the command line look */
  PASA_ERROR_UNSUPPORTED = 10, /* legal, but no kernel here can do it, or the forced kernel cannot */
  PASA_ERROR_OVERFLOW = 11,    /* a size does not fit its index type */
  PASA_ERROR_MEMORY = 12,      /* the workspace is too small or an allocation failed */
  PASA_ERROR_INTERNAL = 13     /* a bug in pasa or a failing driver call */
} pasa_status;

typedef enum pasa_dtype {
  PASA_DTYPE_NONE = 0,
  PASA_BF16 = 1,
  PASA_F16 = 2,
  PASA_F32 = 3,
  PASA_U8 = 4,
  PASA_I8 = 5, /* bytes, as FlashMLA's callers pass them */
  PASA_F8_E4M3FN = 6,
  PASA_F8_E4M3FNUZ = 7,
  PASA_I32 = 8,
  PASA_I64 = 9
} pasa_dtype;

/* KV-cache formats, byte for byte in docs/formats.md. D is the head dimension of the key. */
typedef enum pasa_kv_format {
  PASA_KV_NONE = 0,
  PASA_KV_BF16 = 1,         /* [slots, D] or [slots, 1, D], D = 512 or 576 */
  PASA_KV_F16 = 2,          /* likewise */
  PASA_KV_FP8_E4M3FN = 3,   /* [slots, 512] + kv_scales [slots, 8]; without scales [slots, 576], see kv_scale */
  PASA_KV_FP8_E4M3FNUZ = 4, /* likewise, the other e4m3 */
  PASA_KV_FP8_DS_MLA = 5,   /* [blocks, page, 584] bytes: 448 e4m3 + 64 bf16, UE8M0 scales in the page tail */
  PASA_KV_PACKED_BF16 = 6,  /* [blocks, page, 512] */
  PASA_KV_FP8_V32 = 7       /* [blocks, page, 656] bytes: 512 e4m3 + 4 float + 64 bf16, D = 576 */
} pasa_kv_format;

typedef enum pasa_device_type { PASA_CPU = 0, PASA_CUDA = 1, PASA_HIP = 2 } pasa_device_type;

/* A view of somebody's memory. rank 0 (a zeroed struct) means absent; data may be NULL only if the tensor is empty or only
 * a plan is made. Strides are in elements. */
typedef struct pasa_tensor {
  void* data;
  pasa_dtype dtype;
  int32_t rank;
  int64_t shape[4];
  int64_t stride[4];
  pasa_device_type device;
  int32_t device_index;
} pasa_tensor;

/* One KV cache with its index list. */
typedef struct pasa_source {
  pasa_kv_format format;
  pasa_tensor kv;        /* by format */
  pasa_tensor kv_scales; /* F32 [slots, D/64]: only and always with the two uniform fp8 formats of D = 512 */
  pasa_tensor kv_pe;   /* optional [slots, 64] of kv's dtype, with D = 576: the last components of a flat pool, whose kv
                          * is then [slots, 512]; both may be views of one tensor */
  pasa_tensor indices; /* I32 [nnz] (ragged) or [L, W] (rectangular); L = T / queries_per_list, so T unless it is set */
  pasa_tensor indptr;  /* I32 [L+1]: only and always with ragged indices */
  pasa_tensor lengths; /* I32 [L]: optional, only with rectangular indices; clamped to [0, W] */
} pasa_source;

enum {
  PASA_NAN_TO_ZERO = 1, /* NaN components of a selected key count as 0 (default: they propagate) */
  PASA_SKIP_REDUCE = 2, /* write partials (acc, m, l) instead of out where the plan has more than one split */
  PASA_NO_INVALID = 4   /* hint: no index is invalid. Never changes a result. */
};

typedef struct pasa_problem {
  size_t struct_size; /* sizeof(pasa_problem): lets the struct grow */
  pasa_tensor q;      /* BF16 or F16 [T, H, D], any row strides */
  pasa_source main;
  pasa_source extra;      /* optional second source: kv and indices together or neither */
  pasa_tensor attn_sink;  /* optional F32 [H] */
  pasa_tensor out;        /* q's dtype [T, H, 512], any row strides */
  pasa_tensor lse;        /* optional F32 [T, H] */
  pasa_tensor max_logits; /* optional F32 [T, H]: largest scaled score, natural units, without the sink; -inf if none */
  pasa_tensor acc;        /* with PASA_SKIP_REDUCE and splits > 1: F32 [T, S, H, 512], at a multiple of 16 bytes, */
  pasa_tensor m;          /*   F32 [T, S, H], base-2 maximum, -inf if the split is empty, */
  pasa_tensor l;          /*   F32 [T, S, H], sum of 2^(s2 - m); the sink is in none of them. Contiguous. */
  double softmax_scale;   /* used if has_softmax_scale, else D^-0.5; finite */
  double kv_scale;        /* 0: 1; else a finite number that every component of every key is multiplied by */
  int32_t has_softmax_scale;
  int32_t kv_splits; /* 0: choose; else 1..256 parts that each list is cut into */
  int32_t block_h;   /* 0: choose; a hint: heads per tile, >= 1; results do not depend on it */
  uint32_t flags;    /* PASA_NAN_TO_ZERO | ... */
  int32_t threads;   /* CPU only. 0: all the process may use */
  /* 0 or 1: each row has a list of its own. n: rows n*i to n*i + n-1 are the last tokens of the sequence that list i names
   * and see it up to themselves: row t reads all but the last n-1 - t%n entries. n divides T; one source only. */
  int32_t queries_per_list;
  const char* kernel; /* NULL: choose; else a name that pasa_kernel_info gives, or a prefix such as "cpu" */
} pasa_problem;

typedef struct pasa_plan pasa_plan;
typedef void* pasa_stream; /* cudaStream_t or hipStream_t; NULL is the default stream; ignored on the CPU */

/* Checks the problem, picks a kernel and fixes splits and workspace. Reads no tensor data (data pointers may be NULL) and
 * touches no device memory. Outputs may be absent here. */
PASA_API pasa_status pasa_plan_create(const pasa_problem* problem, pasa_plan** plan);
PASA_API void pasa_plan_destroy(pasa_plan* plan);
PASA_API size_t pasa_plan_workspace_bytes(const pasa_plan* plan);
PASA_API int32_t pasa_plan_splits(const pasa_plan* plan);
PASA_API const char* pasa_plan_kernel(const pasa_plan* plan);
/* One line: kernel, tiles, parts, splits, workspace, whether a tuning table chose. Lives as long as the plan. */
PASA_API const char* pasa_plan_summary(const pasa_plan* plan);
/* 1 if pasa_run will write acc, m, l and leave out alone (PASA_SKIP_REDUCE and more than one split). */
PASA_API int32_t pasa_plan_is_partial(const pasa_plan* plan);

/* Runs the plan on a problem of the plan's shape (T, H, D, dtypes, formats, page sizes, widths, flags); pointers, strides,
 * pool sizes and list contents may differ from call to call. The workspace is on the problem's device, aligned to 256
 * bytes, and need not be initialised; its contents are meaningless between calls. */
PASA_API pasa_status pasa_run(const pasa_plan* plan, const pasa_problem* problem, void* workspace,
                              size_t workspace_bytes, pasa_stream stream);

/* Merges partials: acc, m, l of any number of splits S (1 included) into out and, optionally, lse, adding the sink once.
 * Terms with l = 0 are skipped whatever their acc holds. CPU tensors only where no GPU backend is built in. */
typedef struct pasa_reduce_problem {
  size_t struct_size;
  pasa_tensor acc, m, l; /* F32 [T, S, H, 512] at a multiple of 16 bytes, [T, S, H], [T, S, H] */
  pasa_tensor attn_sink; /* optional F32 [H] */
  pasa_tensor out;       /* BF16, F16 or F32 [T, H, 512] */
  pasa_tensor lse;       /* optional F32 [T, H] */
} pasa_reduce_problem;
PASA_API pasa_status pasa_reduce(const pasa_reduce_problem* problem, pasa_stream stream);

/* Reads index and length tensors (host memory only) and reports malformed ones as PASA_ERROR_VALUE: an indptr that does
 * not start at 0, decreases or does not end at nnz; lengths outside [0, W]. skipped, if not NULL, receives the number of
 * invalid indices, which are legal. */
PASA_API pasa_status pasa_validate(const pasa_problem* problem, int64_t* skipped);

/* The kernels of this library, in order of preference, and what they say to a problem. */
typedef struct pasa_kernel_info {
  size_t struct_size;
  char name[32];     /* "cpu:amx", "cuda:sm90", ..., "reference" */
  char device[8];    /* "cpu", "cuda", "hip" */
  int32_t available; /* this machine can run it */
  int32_t accepts;   /* and it serves the given problem (0 if none was given) */
  char reason[256];  /* why not, in words; empty if it can */
} pasa_kernel_info;
PASA_API int32_t pasa_kernel_count(void);
PASA_API pasa_status pasa_get_kernel_info(int32_t index, const pasa_problem* problem_or_null, pasa_kernel_info* info);

/* The text of this thread's last failing call: "<category>: <argument> is <found>, expected <wanted>". */
PASA_API const char* pasa_last_error(void);
/* "ok", "device", "dtype", ...: stable names of the categories. */
PASA_API const char* pasa_status_name(pasa_status status);
PASA_API const char* pasa_version(void);

#ifdef __cplusplus
}
#endif
#endif
