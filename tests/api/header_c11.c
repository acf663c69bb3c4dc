/* pasa.h as C11 sees it: compiled with -std=c11 -Wall -Wextra -pedantic -Werror, linked with the shared library, and run on a
 * problem small enough to check by hand: one key, whose value every head must return. */
#include <pasa/pasa.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(PASA_OK == 0 && PASA_ERROR_DEVICE == 1 && PASA_ERROR_INTERNAL == 13, "status codes are stable");
_Static_assert(PASA_KV_BF16 == 1 && PASA_KV_FP8_V32 == 7, "format codes are stable");

enum { kHeads = 3, kDim = 512 };

static pasa_tensor dense(void* data, pasa_dtype dtype, int rank, int64_t a, int64_t b, int64_t c) {
  pasa_tensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.dtype = dtype;
  t.rank = rank;
  t.shape[0] = a, t.shape[1] = b, t.shape[2] = c;
  t.stride[rank - 1] = 1;
  if (rank > 1) t.stride[rank - 2] = t.shape[rank - 1];
  if (rank > 2) t.stride[0] = b * c;
  return t;
}

static int fail(const char* what) {
  fprintf(stderr, "%s: %s\n", what, pasa_last_error());
  return 1;
}

int main(void) {
  static uint16_t q[kHeads * kDim], kv[2 * kDim], out[kHeads * kDim];
  static float lse[kHeads];
  int32_t index = 1;
  for (int d = 0; d < kDim; ++d) {
    kv[d] = 0x7fc0;                            /* slot 0 is not listed: NaN */
    kv[kDim + d] = (uint16_t)(0x3f80 + d % 4); /* 1.0 and its neighbours */
  }
  memset(out, 0xff, sizeof out);

  pasa_problem p = {.struct_size = sizeof p};
  p.q = dense(q, PASA_BF16, 3, 1, kHeads, kDim);
  p.main.format = PASA_KV_BF16;
  p.main.kv = dense(kv, PASA_BF16, 2, 2, kDim, 0);
  p.main.indices = dense(&index, PASA_I32, 2, 1, 1, 0);
  p.out = dense(out, PASA_BF16, 3, 1, kHeads, kDim);
  p.lse = dense(lse, PASA_F32, 2, 1, kHeads, 0);

  pasa_plan* plan = NULL;
  if (pasa_plan_create(&p, &plan) != PASA_OK) return fail("pasa_plan_create");
  size_t bytes = pasa_plan_workspace_bytes(plan);
  void* workspace = bytes ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
  if (pasa_run(plan, &p, workspace, bytes, NULL) != PASA_OK) return fail("pasa_run");
  printf("pasa %s: %s\n", pasa_version(), pasa_plan_summary(plan));
  for (int i = 0; i < kHeads * kDim; ++i) {
    if (out[i] != kv[kDim + i % kDim]) return fail("out is not the one key");
  }
  if (lse[0] != 0.0f) return fail("lse of one key with q = 0 is not 0");

  p.kv_splits = 257;
  pasa_plan* none = NULL;
  if (pasa_plan_create(&p, &none) != PASA_ERROR_RANGE || none != NULL) return fail("kv_splits = 257 was accepted");
  free(workspace);
  pasa_plan_destroy(plan);
  return 0;
}
