// Tensor core attention kernels, forward and backward: one per dtype and head size, and for each a variant that
// modifies scores. With modified scores, heads of up to 32 use the kernels for 64.
#include "kernels/attend_backward_mma.cuh"
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

#define ATTEND_MODIFIED(T, NAME, D)                                                                                  \
  extern "C" __global__ void __launch_bounds__(forwardShape(D).threads())                                            \
      attendModified_##NAME##_##D(const __grid_constant__ AttendModifiedParameters p) {                              \
    attendTile<T, D>(p.base, ModifiedScores<FastTanh>(p));                                                           \
  }                                                                                                                  \
  EMULATED_KERNEL(attendModified_##NAME##_##D, AttendModifiedParameters)

ATTEND_MODIFIED(bf16, bfloat16, 64)
ATTEND_MODIFIED(bf16, bfloat16, 128)
ATTEND_MODIFIED(bf16, bfloat16, 256)
ATTEND_MODIFIED(fp16, float16, 64)
ATTEND_MODIFIED(fp16, float16, 128)
ATTEND_MODIFIED(fp16, float16, 256)

#undef ATTEND_MODIFIED

#define ATTEND_BACKWARD(T, NAME, D)                                                                                  \
  extern "C" __global__ void __launch_bounds__(keysShape(D).threads())                                               \
      attendKeys_##NAME##_##D(const __grid_constant__ AttendBackwardParameters p) {                                  \
    attendKeysTile<T, D>(p);                                                                                         \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(queriesShape(D).threads())                                            \
      attendQueries_##NAME##_##D(const __grid_constant__ AttendBackwardParameters p) {                               \
    attendQueriesTile<T, D>(p);                                                                                      \
  }                                                                                                                  \
  EMULATED_KERNEL(attendKeys_##NAME##_##D, AttendBackwardParameters)                                                 \
  EMULATED_KERNEL(attendQueries_##NAME##_##D, AttendBackwardParameters)

ATTEND_BACKWARD(bf16, bfloat16, 32)
ATTEND_BACKWARD(bf16, bfloat16, 64)
ATTEND_BACKWARD(bf16, bfloat16, 128)
ATTEND_BACKWARD(bf16, bfloat16, 256)
ATTEND_BACKWARD(fp16, float16, 32)
ATTEND_BACKWARD(fp16, float16, 64)
ATTEND_BACKWARD(fp16, float16, 128)
ATTEND_BACKWARD(fp16, float16, 256)

#undef ATTEND_BACKWARD

#define ATTEND_BACKWARD_MODIFIED(T, NAME, D)                                                                         \
  extern "C" __global__ void __launch_bounds__(keysShape(D).threads())                                               \
      attendKeysModified_##NAME##_##D(const __grid_constant__ AttendBackwardModifiedParameters p) {                  \
    attendKeysTile<T, D>(p.base, ModifiedScores<FastTanh>(p));                                                       \
  }                                                                                                                  \
  extern "C" __global__ void __launch_bounds__(queriesShape(D).threads())                                            \
      attendQueriesModified_##NAME##_##D(const __grid_constant__ AttendBackwardModifiedParameters p) {               \
    attendQueriesTile<T, D>(p.base, ModifiedScores<FastTanh>(p));                                                    \
  }                                                                                                                  \
  EMULATED_KERNEL(attendKeysModified_##NAME##_##D, AttendBackwardModifiedParameters)                                 \
  EMULATED_KERNEL(attendQueriesModified_##NAME##_##D, AttendBackwardModifiedParameters)

ATTEND_BACKWARD_MODIFIED(bf16, bfloat16, 64)
ATTEND_BACKWARD_MODIFIED(bf16, bfloat16, 128)
ATTEND_BACKWARD_MODIFIED(bf16, bfloat16, 256)
ATTEND_BACKWARD_MODIFIED(fp16, float16, 64)
ATTEND_BACKWARD_MODIFIED(fp16, float16, 128)
ATTEND_BACKWARD_MODIFIED(fp16, float16, 256)

#undef ATTEND_BACKWARD_MODIFIED
