// Implements sm90.h.
#include "cuda/sm90.h"

#include "core/error.h"
#include "cuda/device.h"
#include "cuda/tile.cuh"

namespace pasa::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver's function, found at run time so that the library loads without a driver.
Encode encoder() {
  static const Encode found = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result),
          "cudaGetDriverEntryPointByVersion");
    return reinterpret_cast<Encode>(function);
  }();
  return found;
}

}  // namespace

CUtensorMap make_tensor_map(const Problem& problem, const void* data, const std::int64_t (&stride)[2], int columns,
                            int box_heads, int box_panels) {
  const auto unsigned64 = [](std::int64_t x) { return static_cast<cuuint64_t>(x); };
  const int panels = columns / kPanelColumns;
  const cuuint64_t sizes[4] = {kPanelColumns, unsigned64(problem.heads), unsigned64(panels),
                               unsigned64(problem.tokens)};
  const cuuint64_t head_bytes = unsigned64(problem.heads > 1 ? stride[1] : columns) * 2;
  const cuuint64_t token_bytes = problem.tokens > 1 ? unsigned64(stride[0]) * 2 : head_bytes * sizes[1];
  const cuuint64_t strides[3] = {head_bytes, kPanelRowBytes, token_bytes};
  const cuuint32_t box[4] = {kPanelColumns, static_cast<cuuint32_t>(box_heads), static_cast<cuuint32_t>(box_panels), 1};
  const cuuint32_t steps[4] = {1, 1, 1, 1};
  CUtensorMap map;
  // Words of 16 bits are copied as they are: bf16 stands for f16 too.
  const CUresult result = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(data), sizes, strides,
                                    box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(PASA_ERROR_INTERNAL, result == CUDA_SUCCESS, "cuTensorMapEncodeTiled returned ", static_cast<int>(result));
  return map;
}

}  // namespace pasa::cuda
