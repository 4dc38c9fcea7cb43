// Blocks of K and V in the layout that the kernels read.
#pragma once

#include <algorithm>
#include <cstring>

#include "attention/block_ranges.h"
#include "attention/rows.h"
#include "attention/tile_visibility.h"
#include "pool/pool.h"
#include "simd/integers.h"

namespace mosaic {

/// Returns a row length of at least `columns` and an odd number of cache lines, so that a column uses every set of the
/// cache.
constexpr int64_t paddedStride(int64_t columns, int64_t bytes = 4) {
  const int64_t elementsPerLine = 64 / bytes;
  return elementsPerLine * (ceilDiv(columns, elementsPerLine) | 1);
}

/// Which of K and V is read by columns: V in the forward, K in the backward, neither for query rows. A few panels of
/// one or two vectors (`NarrowForward`) read a cache line once or twice, which is faster than a copy, even if a column
/// evicts itself. Query rows read each line once, and every dtype.
enum class KvUse { Forward, NarrowForward, QueryRows, Backward };

/// Whether blocks of K or V are read in place.
inline bool areBlocksReadInPlace(const AttentionKernels& kernels, const TensorView& view, KvUse use, bool isByColumns) {
  if (view.stride[3] != 1) return false;
  if (use == KvUse::QueryRows && kernels.products == DType::Float32) return true;
  if (view.dtype != kernels.products) return false;
  if (kernels.products == DType::BFloat16) return view.shape[3] % kernels.depthMultiple == 0;
  const int64_t maxStride = isByColumns ? 127 : 255;  // elements
  return use == KvUse::NarrowForward || view.stride[2] <= maxStride;
}

/// Reads blocks of the keys of one head. Blocks are read in place if they have the product dtype, unit column stride
/// and rows that are close together. Otherwise each block is copied once and shared by the panels that use it.
///
/// Float32 that is read by columns is also copied if its rows are 512 bytes or more apart, because a column then maps
/// to so few sets of the L1 cache that it evicts itself. The same holds for data read by rows, eight at a time, if the
/// rows are 1 KiB or more apart. For products of pairs, columns are transposed, unless a few panels read values by rows
/// (value_rows.h).
///
/// A task of the backward whose groups of panels read the same keys keeps the copies of all its blocks. Rows that are
/// far apart use a fraction of the sets of the L2 cache, and each group would read them from the last-level cache.
class KvReader {
 public:
  /// Copies of `keptKeys` are kept until the reader is destroyed. Reads are then within blocks that begin at multiples
  /// of the block size after the first of these keys.
  KvReader(const AttentionKernels& kernels, const KvBlock& kv, KvUse use, Arena& arena, const Range& keptKeys = {0, 0})
      : kernels_(kernels),
        use_(use),
        keys_(kv.k.shape[2]),
        columnDepth_(roundUp((use == KvUse::Backward ? kv.k : kv.v).shape[3], kernels.depthMultiple)),
        bytes_(dtypeBytes(kernels.products)),
        blockKeys_(use == KvUse::Backward ? kernels.gradientBlock : kernels.keyBlock),
        keptKeys_(keptKeys),
        kept_(keptKeys, blockKeys_, arena),
        copiedKeys_(kept_.isEmpty() ? blockKeys_ : kept_.capacity()),
        columnStride_(paddedStride(blockKeys_, bytes_)),
        k_(source(kv.k, use == KvUse::Backward, arena)),
        v_(source(kv.v, use != KvUse::Backward, arena)) {
    if (isPaired() && use_ != KvUse::QueryRows) {
      columns_ = arena.allocate<uint16_t>(copiedKeys_ / blockKeys_ * columnDepth_ * columnStride_);
    }
  }

  void select(int64_t batch, int64_t head) { batch_ = batch, head_ = head; }

  /// Reads keys [first, first + count). `count` is at most the block size and a multiple of the table's `keyMultiple`,
  /// except for the last keys. The result is valid until the next call.
  KvRows read(int32_t first, int32_t count) {
    const Range keys{first, first + count};
    count = static_cast<int32_t>(paddedCount(keys));
    if (kept_.isEmpty()) {
      copyKeys(keys, first);
    } else {
      kept_.extend(keys, [&](const Range& range) { copyKeys(range, keptKeys_.begin); });
    }
    const int64_t firstCopied = kept_.isEmpty() ? first : keptKeys_.begin;
    const Operand k = rows(k_, keys, firstCopied), v = rows(v_, keys, firstCopied);
    const Operand& columnOperand = use_ == KvUse::Backward ? k : v;
    const Operand columns = columns_ == nullptr
                                ? Operand{columnOperand.data, columnOperand.step, columnOperand.rowStride}
                                : Operand{columnsOf(first - firstCopied), columnStride_, 1};
    return {k, v, columns, first, count, {}, {}, {}, {}};
  }

  /// Whether `stage` can be used: for the forward, rows of whole vectors, and, with products of pairs, kernels that
  /// read values by rows.
  bool canStage() const {
    const auto hasWholeVectors = [&](const TensorView& view) {
      return view.stride[3] == 1 && view.shape[3] % kernels_.depthMultiple == 0;
    };
    return (use_ == KvUse::Forward || use_ == KvUse::NarrowForward) && (!isPaired() || kernels_.readsValueRows) &&
           hasWholeVectors(k_.view) && hasWholeVectors(v_.view);
  }

  /// Like `read`, for keys that the tensors have, a multiple of `keyMultiple`. K is staged unless it is read in place;
  /// `part` has room for `partElements()` numbers. V is read by rows if it would be copied or transposed otherwise and
  /// the kernels can.
  KvRows stage(int32_t first, int32_t count, float* part) const {
    const Rows k = rowsOf(k_.view, {batch_, head_, first}), none{nullptr, DType::Float32, 0, 0};
    KvRows result{{k.data, k.rowStride, 1}, {}, {}, first, count, {k_.isReadInPlace ? none : k, part}, none, {}, {}};
    if (kernels_.readsValueRows && (isPaired() || !v_.isReadInPlace)) {
      result.valueRows = rowsOf(v_.view, {batch_, head_, first});
    } else {
      const Range keys{first, first + count};
      if (!v_.isReadInPlace) copyRows(v_, keys, 0);
      const Operand v = rows(v_, keys, first);
      result.columns = {v.data, v.step, v.rowStride};
    }
    return result;
  }
  int64_t partElements() const { return StagedRows::kMaxTileRows * k_.view.shape[3]; }

  /// Returns the memory of K and V that reading keys [first, first + count) will access; empty past the last key, and
  /// for rows whose elements are not contiguous.
  UpcomingReads upcomingKeys(int64_t first, int64_t count) const { return upcomingReads(k_, first, count); }
  UpcomingReads upcomingValues(int64_t first, int64_t count) const { return upcomingReads(v_, first, count); }

 private:
  struct Source {
    TensorView view;
    char* copy;    // null if every block is read in place
    int64_t copyRowStride;
    bool isReadInPlace;  // whether whole blocks are read in place; others are never kept
  };

  bool isPaired() const { return kernels_.products == DType::BFloat16; }

  Source source(const TensorView& view, bool isReadByColumns, Arena& arena) const {
    const bool isReadInPlace = areBlocksReadInPlace(kernels_, view, use_, isReadByColumns);
    const bool isAlwaysInPlace = isReadInPlace && keys_ % kernels_.keyMultiple == 0;
    const int64_t stride = paddedStride(roundUp(view.shape[3], kernels_.depthMultiple), bytes_);
    const int64_t copiedKeys = isReadInPlace ? blockKeys_ : copiedKeys_;
    char* copy = isAlwaysInPlace ? nullptr : arena.allocate<char>(copiedKeys * stride * bytes_);
    return {view, copy, stride, isReadInPlace};
  }

  UpcomingReads upcomingReads(const Source& source, int64_t first, int64_t count) const {
    const int64_t presentKeys = std::min(count, keys_ - first);
    if (presentKeys <= 0 || source.view.stride[3] != 1) return {};
    const Rows rows = rowsOf(source.view, {batch_, head_, first});
    const int64_t stride = rows.rowStride * dtypeBytes(rows.dtype);
    const int64_t rowBytes = source.view.shape[3] * dtypeBytes(rows.dtype);
    if (stride == rowBytes) return {rows.data, 1, presentKeys * rowBytes, presentKeys * rowBytes};
    return {rows.data, presentKeys, stride, rowBytes};
  }

  int64_t presentKeys(const Range& keys) const { return std::min(keys.end, keys_) - keys.begin; }
  int64_t paddedCount(const Range& keys) const { return roundUp(keys.end - keys.begin, kernels_.keyMultiple); }

  /// Copies keys of one block, and their columns. `firstCopied` is the key whose copy is the first.
  void copyKeys(const Range& keys, int64_t firstCopied) const {
    for (const Source* source : {&k_, &v_}) {
      if (!source->isReadInPlace) copyRows(*source, keys, keys.begin - firstCopied);
    }
    if (columns_ == nullptr) return;
    const Source& source = use_ == KvUse::Backward ? k_ : v_;
    const Rows inPlace = rowsOf(source.view, {batch_, head_, keys.begin});
    const bool isInPlace = source.isReadInPlace;
    const void* rows = isInPlace ? inPlace.data : copyOf(source, keys.begin - firstCopied);
    kernels_.transpose(rows, isInPlace ? inPlace.rowStride : source.copyRowStride, presentKeys(keys),
                       roundUp(source.view.shape[3], 16), columnsOf(keys.begin - firstCopied), columnStride_);
  }

  char* copyOf(const Source& source, int64_t index) const {
    return source.copy + index * source.copyRowStride * bytes_;
  }

  /// Returns the columns of a copied key. Each block has its own matrix.
  uint16_t* columnsOf(int64_t index) const {
    return columns_ + index / blockKeys_ * columnDepth_ * columnStride_ + index % blockKeys_;
  }

  /// Copies keys to the copies from row `index` on, padded with zeros to a multiple of `keyMultiple`.
  void copyRows(const Source& source, const Range& keys, int64_t index) const {
    const int64_t count = presentKeys(keys), padding = paddedCount(keys) - count;
    const Rows rows = rowsOf(source.view, {batch_, head_, keys.begin});
    kernels_.unpack(rows, count, source.view.shape[3], copyOf(source, index), source.copyRowStride);
    std::memset(copyOf(source, index + count), 0, static_cast<size_t>(padding * source.copyRowStride * bytes_));
  }

  /// Returns the rows of keys that have been copied, if they are not read in place.
  Operand rows(const Source& source, const Range& keys, int64_t firstCopied) const {
    if (!source.isReadInPlace) return {copyOf(source, keys.begin - firstCopied), source.copyRowStride, 1};
    if (presentKeys(keys) < paddedCount(keys)) {
      copyRows(source, keys, 0);
      return {source.copy, source.copyRowStride, 1};
    }
    const Rows rows = rowsOf(source.view, {batch_, head_, keys.begin});
    return {rows.data, rows.rowStride, 1};
  }

  const AttentionKernels& kernels_;
  const KvUse use_;
  const int64_t keys_;
  const int64_t columnDepth_;  // depth of the operand that is read by columns, padded
  const int64_t bytes_, blockKeys_;
  const Range keptKeys_;
  BlockRanges kept_;  // empty if each read replaces the copies
  const int64_t copiedKeys_;  // for which there is memory
  const int64_t columnStride_;
  Source k_, v_;
  uint16_t* columns_ = nullptr;
  int64_t batch_ = 0, head_ = 0;
};

/// Returns keys [begin, end) of a block that contains them; the whole block if it is staged.
inline KvRows subBlock(const AttentionKernels& kernels, const KvRows& block, int32_t begin, int32_t end) {
  const int64_t offsetBytes = (begin - block.first) * dtypeBytes(kernels.products);
  const auto advance = [offsetBytes](const Operand& operand, int64_t stride) {
    return Operand{static_cast<const char*>(operand.data) + offsetBytes * stride, operand.rowStride, operand.step};
  };
  return {advance(block.k, block.k.rowStride),
          advance(block.v, block.v.rowStride),
          advance(block.columns, block.columns.step),
          begin,
          end - begin,
          block.stagedK,
          block.valueRows,
          block.nextK,
          block.nextV};
}

/// Calls fn(begin, end, masked) for the parts of a segment within a block: those visible to all rows of the panel, and
/// those visible to some rows. Parts begin and end at multiples of `keyMultiple`, so they may extend past the segment.
/// Parts that others follow consist of whole tiles. For this, the last keys of a part that is visible to all rows may
/// go to the masked part that follows, or its first keys to the one before.
template <class Fn>
void forEachPart(const Segment& s, const AttentionKernels& kernels, const Range& block, Fn fn) {
  const auto floorTo = [](int32_t multiple, int32_t x) { return x / multiple * multiple; };
  const auto ceilTo = [](int32_t multiple, int32_t x) { return static_cast<int32_t>(roundUp(x, multiple)); };
  const int32_t begin = std::max(floorTo(kernels.keyMultiple, s.begin), static_cast<int32_t>(block.begin)),
                end = std::min(ceilTo(kernels.keyMultiple, s.end), static_cast<int32_t>(block.end));
  if (begin >= end) return;
  int32_t coreBegin = begin + ceilTo(kernels.tileKeys, std::max(s.coreBegin - begin, 0));
  int32_t coreEnd = std::min(s.coreEnd, end);
  if (coreEnd < end) coreEnd = coreBegin + floorTo(kernels.tileKeys, coreEnd - coreBegin);
  if (coreBegin >= coreEnd) coreBegin = coreEnd = end;
  if (begin < coreBegin) fn(begin, coreBegin, true);
  if (coreBegin < coreEnd) fn(coreBegin, coreEnd, false);
  if (coreEnd < end) fn(coreEnd, end, true);
}

}  // namespace mosaic
