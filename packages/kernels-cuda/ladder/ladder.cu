// All rungs as kernels, for ptxas, which prints their resource usage, and for benchmark.cc, which runs them.
#include "1_naive.cuh"
#include "2_tiled.cuh"
#include "3_tensor_cores.cuh"
#include "kernels/attend_mma.cuh"

using namespace mosaic::cuda;

extern "C" __global__ void rung1(const __grid_constant__ ladder::Problem p) { ladder::naiveAttention(p); }
extern "C" __global__ void __launch_bounds__(64) rung2(const __grid_constant__ ladder::Problem p) {
  ladder::tiledAttention(p);
}
extern "C" __global__ void __launch_bounds__(32) rung3(const __grid_constant__ ladder::Problem p) {
  ladder::tensorCoreAttention(p);
}
extern "C" __global__ void __launch_bounds__(128) rung4(const __grid_constant__ AttendParameters p) {
  attendTile<bf16, 64>(p);
}

#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "5_warpgroups.cuh"
#include "kernels/attend_hopper.cuh"

extern "C" __global__ void __launch_bounds__(128) rung5(const __grid_constant__ ladder::MappedProblem p) {
  ladder::warpgroupAttention(p);
}
extern "C" __global__ void __launch_bounds__(512, 1) rung6(const __grid_constant__ AttendHopperParameters p) {
  attendHopper<bf16, 64>(p);
}

#endif
