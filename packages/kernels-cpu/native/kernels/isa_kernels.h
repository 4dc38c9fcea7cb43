// The table of one instruction set. Included once by each kernels_<isa>.cc.
#pragma once

#include "attention/attention.h"
#include "gemm/gemm.h"
#include "kernels/adam.h"
#include "kernels/copy.h"
#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "kernels/indexed.h"
#include "kernels/norm.h"
#include "kernels/random.h"
#include "kernels/reduce.h"
#include "kernels/rotary.h"
#include "kernels/rows.h"
#include "kernels/softmax.h"
#include "kernels/kernel_table.h"

namespace mosaic {
namespace {

// Products select their kernels by instruction set and dtype (micro/micro_kernels.h).
template <class T>
void attend(const AttendArguments& args, Pool& pool) {
  mosaic::attend(args, T::isa, pool);
}

template <class T>
void attendBackward(const AttendBackwardArguments& args, Pool& pool) {
  mosaic::attendBackward(args, T::isa, pool);
}

template <class T>
void matmul(const MatmulArguments& args, Pool& pool) {
  mosaic::matmul(args, T::isa, pool);
}

template <class T>
void linear(const LinearArguments& args, Pool& pool) {
  mosaic::linear(args, T::isa, pool);
}

template <class T>
void merge(const MergeArguments& args, Pool& pool) {
  mergeStates(args.into, {&args.from, 1}, pool);
}

template <class T>
constexpr Kernels makeKernels() {
#define MOSAIC_MEMBER(name, Arguments) .name = name<T>,
  return {MOSAIC_KERNELS(MOSAIC_MEMBER)};
#undef MOSAIC_MEMBER
}

}  // namespace
}  // namespace mosaic
