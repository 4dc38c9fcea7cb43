// Hopper's attention kernels, forward and backward: one per dtype and head size.
#if !defined(__CUDACC__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "kernels/attend_backward_hopper.cuh"
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

#define ATTEND_BACKWARD(T, NAME, D)                                                                                  \
  extern "C" __global__ void __launch_bounds__(keysHopperShape(D).threads(), 1)                                      \
      attendKeysHopper_##NAME##_##D(const __grid_constant__ AttendBackwardHopperParameters p) {                      \
    attendKeysHopper<T, D>(p);                                                                                       \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(queriesHopperShape(D).threads(), 1)                                   \
      attendQueriesHopper_##NAME##_##D(const __grid_constant__ AttendBackwardHopperParameters p) {                   \
    attendQueriesHopper<T, D>(p);                                                                                    \
  }                                                                                                                  \
  EMULATED_KERNEL(attendKeysHopper_##NAME##_##D, AttendBackwardHopperParameters)                                     \
  EMULATED_KERNEL(attendQueriesHopper_##NAME##_##D, AttendBackwardHopperParameters)

ATTEND_BACKWARD(bf16, bfloat16, 64)
ATTEND_BACKWARD(bf16, bfloat16, 128)
ATTEND_BACKWARD(fp16, float16, 64)
ATTEND_BACKWARD(fp16, float16, 128)

#undef ATTEND_BACKWARD

#endif
