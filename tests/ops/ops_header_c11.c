/* ops.h is C11, and its example works. */
#include <pasa/ops.h>
#include <stdio.h>

int main(void) {
  static unsigned char cache[2 * 4 * 584];
  static unsigned short k[512];
  long long slots[1] = {5};
  pasa_cache_write_args a = {.struct_size = sizeof a};
  a.cache.format = PASA_KV_FP8_DS_MLA;
  a.cache.kv = (pasa_tensor){cache, PASA_U8, 3, {2, 4, 584}, {4 * 584, 584, 1}, PASA_CPU, 0};
  a.k = (pasa_tensor){k, PASA_BF16, 2, {1, 512}, {512, 1}, PASA_CPU, 0};
  a.slot_mapping = (pasa_tensor){slots, PASA_I64, 1, {1}, {1}, PASA_CPU, 0};
  if (pasa_cache_write(&a, NULL) != PASA_OK) {
    puts(pasa_last_error());
    return 1;
  }
  return cache[4 * 584 + 4 * 576 + 8] != 105; /* the exponent of an all-zero group */
}
