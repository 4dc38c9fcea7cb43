#include "kernels/attend_mma.cuh"

using namespace mosaic::cuda;

#define ATTEND(T, NAME, D)                                                                                           \
  extern "C" __global__ void __launch_bounds__(forwardShape(D).threads())                                            \
      attend_##NAME##_##D(const __grid_constant__ AttendParameters p) {                                              \
    attendTile<T, D>(p);                                                                                             \
  }                                                                                                                  \
  EMULATED_KERNEL(attend_##NAME##_##D, AttendParameters)

ATTEND(bf16, bfloat16, 32)
ATTEND(bf16, bfloat16, 64)
ATTEND(bf16, bfloat16, 128)
ATTEND(bf16, bfloat16, 256)
ATTEND(fp16, float16, 32)
ATTEND(fp16, float16, 64)
ATTEND(fp16, float16, 128)
ATTEND(fp16, float16, 256)

#undef ATTEND
