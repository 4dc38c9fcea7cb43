// Blocks of K and V as the kernels read them.
#pragma once

#include "attention/rows.h"
#include "pool/pool.h"

namespace mosaic {

/// Keys of a block: its K and V, with the weights of a panel, stay in the second-level cache.
inline constexpr int32_t kKeyBlock = 128;

/// A row length of at least `columns` and an odd number of cache lines, so that a column visits every set of the cache.
constexpr int64_t paddedStride(int64_t columns) { return 16 * ((columns + 15) / 16 | 1); }

/// Reads blocks of the keys of one head: where they lie if they are float32 with unit column stride and rows close
/// together, else through a copy, made once per block and shared by the panels that use it.
///
/// Rows 512 bytes or more apart are copied too: a column of them, which is how V is read, falls into so few sets of the
/// first-level cache that it evicts itself.
class KvReader {
 public:
  KvReader(const AttentionKernels& kernels, const TensorView& k, const TensorView& v, Arena& arena);

  void select(int64_t batch, int64_t head) { batch_ = batch, head_ = head; }
  /// Keys [first, first + count), count ≤ kKeyBlock. Valid until the next call.
  KvRows read(int32_t first, int32_t count) const;

 private:
  struct Source {
    TensorView view;
    float* copy;  // null: read in place
  };
  Source source(const TensorView& view, Arena& arena) const;
  const float* read(const Source& source, int32_t first, int32_t count) const;
  int64_t stride(const Source& source) const { return source.copy != nullptr ? copyStride_ : source.view.stride[2]; }

  const AttentionKernels& kernels_;
  int64_t copyStride_;
  Source k_, v_;
  int64_t batch_ = 0, head_ = 0;
};

inline KvReader::KvReader(const AttentionKernels& kernels, const TensorView& k, const TensorView& v, Arena& arena)
    : kernels_(kernels), copyStride_(paddedStride(k.shape[3])), k_(source(k, arena)), v_(source(v, arena)) {}

inline KvReader::Source KvReader::source(const TensorView& view, Arena& arena) const {
  const bool inPlace = view.dtype == DType::Float32 && view.stride[3] == 1 && view.stride[2] < 128;
  return {view, inPlace ? nullptr : arena.allocate<float>(kKeyBlock * copyStride_)};
}

inline KvRows KvReader::read(int32_t first, int32_t count) const {
  return {read(k_, first, count), read(v_, first, count), stride(k_), stride(v_), first, count};
}

inline const float* KvReader::read(const Source& source, int32_t first, int32_t count) const {
  const Rows rows = rowsOf(source.view, {batch_, head_, first});
  if (source.copy == nullptr) return static_cast<const float*>(rows.data);
  kernels_.unpack(rows, count, source.view.shape[3], source.copy, copyStride_);
  return source.copy;
}

/// Keys [begin, end) of a block that contains them.
inline KvRows subBlock(const KvRows& block, int32_t begin, int32_t end) {
  const int64_t skip = begin - block.first;
  return {block.k + skip * block.kStride, block.v + skip * block.vStride, block.kStride, block.vStride, begin,
          end - begin};
}

}  // namespace mosaic
