// Dropout (Srivastava et al. 2014) whose mask is a function of where an element lies in the whole tensor.
#pragma once

#include "kernels/random.h"

namespace mosaic {
namespace {

template <class T>
void dropout(const DropoutArguments& args, Pool& pool) {
  const auto& [out, x, spec] = args;
  using V = typename T::Vec;
  View index = out;  // no memory, as in `random`: its "address" is twice the index of an element
  index.data = reinterpret_cast<void*>(static_cast<uintptr_t>(2 * spec.offset));
  index.dtype = DType::Float16;
  for (int axis = 0; axis < out.rank; axis++) index.stride[axis] = spec.strides.along[axis];
  const RandomSpec random{RandomKind::Uniform, 0, 1, spec.seed, spec.stream};
  const V probability = T::set1(spec.probability), scale = T::set1(1.0f / (1.0f - spec.probability));
  const Loop<3> loop = makeLoop<3>({&out, &x, &index});
  const int inner = loop.rank - 1;
  forEachPiece(loop, pool, [&](const Piece<3>& piece) {
    const uint64_t first = reinterpret_cast<uintptr_t>(piece.data[2]) / 2;
    const int64_t step = loop.stride[2][inner], n = piece.length;
    float drawn[kPiece], buffers[2][kPiece];
    if (step == 1) {
      draw<T>(first, n, random, drawn);
    } else {
      for (int64_t i = 0; i < n; i++) draw<T>(first + static_cast<uint64_t>(i * step), 1, random, drawn + i);
    }
    const float* from = fetch<T>(loop.dtype[1], piece.data[1], loop.stride[1][inner], n, buffers[1]);
    float* to = target(loop.dtype[0], piece.data[0], loop.stride[0][inner], buffers[0]);
    map2<T>(to, from, drawn, n,
            [&](V v, V u) { return blend<T>(below<T>(u, probability), T::zero(), v * scale); });
    flush<T>(loop.dtype[0], piece.data[0], loop.stride[0][inner], n, to);
  });
}

}  // namespace
}  // namespace mosaic
