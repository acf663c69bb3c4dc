// What carries out a checked call. The tables of instantiations end cpu.cpp and ops_cuda.cu.
#pragma once

namespace pasa::ops {

template <typename Call>
void run_cpu(const Call& call);

// On the device's stream, without waiting. Only in a build with CUDA.
template <typename Call>
void run_cuda(const Call& call, int device, void* stream);

}  // namespace pasa::ops
