#include "attention/key_reader.h"

namespace mosaic {

KeyReader::KeyReader(const AttentionKernels& kernels, const TensorView& k, const TensorView& v, Arena& arena)
    : kernels_(kernels), copyStride_(spreadStride(k.shape[3])), k_(source(k, arena)), v_(source(v, arena)) {}

KeyReader::Source KeyReader::source(const TensorView& view, Arena& arena) const {
  const bool inPlace = view.dtype == DType::Float32 && view.stride[3] == 1 && view.stride[2] < 128;
  return {view, inPlace ? nullptr : arena.take<float>(kKeyBlock * copyStride_)};
}

KeyBlock KeyReader::read(int32_t first, int32_t count) const {
  return {read(k_, first, count), read(v_, first, count), stride(k_), stride(v_), first, count};
}

const float* KeyReader::read(const Source& source, int32_t first, int32_t count) const {
  const Rows rows = rowsOf(source.view, {batch_, head_, first});
  if (source.copy == nullptr) return static_cast<const float*>(rows.data);
  kernels_.unpack(rows, count, source.view.shape[3], source.copy, copyStride_);
  return source.copy;
}

}  // namespace mosaic
