// The launches that the CUDA backends share. Both kernels read a gpu::Args.
#pragma once

#include "core/gpu_args.h"

namespace pasa::cuda {

using namespace gpu;

// general.cu: partials or outputs of every part, on any GPU of sm_80 and newer. head_tile is 16 or 64.
void launch_general(const Args& args, int head_tile, void* stream);
int general_shared_bytes(int head_tile);

// reduce.cu. `overlap`: the kernel before it on the stream made the partials, and the launch need not wait for its end
// (sm_90).
void launch_merge(const MergeArgs& args, bool overlap, void* stream);
void reduce(const Reduce& problem, void* stream);  // Backend::reduce

}  // namespace pasa::cuda
