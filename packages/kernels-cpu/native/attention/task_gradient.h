// dk or dv of the keys of one task of the backward.
#pragma once

#include <cstring>

#include "attention/block_ranges.h"
#include "attention/rows.h"
#include "simd/integers.h"

namespace mosaic {

/// The rows of dk or dv that a task adds to. Rows that are far apart use a fraction of the sets of the L2 cache, and
/// each group of panels would read them from the last-level cache. They are then loaded into contiguous memory before
/// the first sum, and stored after the last. The sums have the same bits.
class TaskGradient {
 public:
  /// `isReused`: whether groups of panels add to the rows several times.
  TaskGradient(const TensorView& view, const HeadRows& first, const Range& keys, int64_t blockKeys, bool isReused,
               Arena& arena)
      : tensor_(view, first), rows_(tensor_), columns_(view.shape[3]), firstKey_(first.first) {
    if (!isReused || !areRowsFarApart()) return;
    loaded_ = BlockRanges(keys, blockKeys, arena);
    const int64_t stride = roundUp(columns_, kLineElements);
    rows_.data = arena.allocate<float>((keys.end - keys.begin) * stride);
    rows_.rowStride = stride;
    rows_.columnStride = 1;
  }

  /// Must be called before sums are added to `keys`, which are keys of one block.
  void load(const Range& keys) {
    if (loaded_.isEmpty()) return;
    loaded_.extend(keys, [&](const Range& range) { copy(tensor_, rows_, range); });
  }

  /// Stores the rows of a block that were loaded.
  void store(const Range& block) const {
    if (!loaded_.isEmpty()) copy(rows_, tensor_, loaded_.rangeOf(block.begin));
  }

  /// Returns the rows that `store` will write, for prefetching.
  RowPrefetch::Matrix upcomingStores(const Range& block) const {
    if (loaded_.isEmpty() || tensor_.columnStride != 1) return {};
    const FloatRow first = tensor_.row(block.begin - firstKey_);
    constexpr auto bytes = static_cast<int64_t>(sizeof(float));
    return {reinterpret_cast<const char*>(first.data), tensor_.rowStride * bytes, columns_ * bytes};
  }

  /// Returns the rows from key `key` on.
  FloatRows rowsFrom(int64_t key) const {
    FloatRows rows = rows_;
    rows.data += (key - firstKey_) * rows.rowStride;
    return rows;
  }

 private:
  static constexpr int64_t kLineElements = 16, kMinFarStride = 256;  // elements

  bool areRowsFarApart() const {
    return tensor_.columnStride != 1 || (tensor_.rowStride >= kMinFarStride && tensor_.rowStride >= 2 * columns_);
  }

  void copy(const FloatRows& from, const FloatRows& to, const Range& keys) const {
    for (int64_t r = keys.begin - firstKey_; r < keys.end - firstKey_; ++r) {
      const FloatRow source = from.row(r), target = to.row(r);
      if (source.stride == 1 && target.stride == 1) {
        std::memcpy(target.data, source.data, static_cast<size_t>(columns_) * sizeof(float));
      } else {
        for (int64_t c = 0; c < columns_; ++c) target.data[c * target.stride] = source.data[c * source.stride];
      }
    }
  }

  const FloatRows tensor_;  // from the first key of the task on
  FloatRows rows_;
  const int64_t columns_, firstKey_;
  BlockRanges loaded_;  // empty if the task adds to the tensor
};

}  // namespace mosaic
