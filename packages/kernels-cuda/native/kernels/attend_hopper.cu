#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "kernels/attend_hopper.cuh"

using namespace mosaic::cuda;

#define ATTEND(T, NAME, D)                                                                                           \
  extern "C" __global__ void __launch_bounds__(forwardHopperShape(D).threads(), 1)                                   \
      attendHopper_##NAME##_##D(const __grid_constant__ AttendHopperParameters p) {                                  \
    attendHopper<T, D>(p);                                                                                           \
  }                                                                                                                  \
  EMULATED_KERNEL(attendHopper_##NAME##_##D, AttendHopperParameters)

ATTEND(bf16, bfloat16, 64)
ATTEND(bf16, bfloat16, 128)
ATTEND(bf16, bfloat16, 256)
ATTEND(fp16, float16, 64)
ATTEND(fp16, float16, 128)
ATTEND(fp16, float16, 256)

#undef ATTEND

#endif
