// The range that a block owns, and its iteration over tiles of the other axis, part after part, skipping masked tiles.
#pragma once

#include "kernels/attend.h"
#include "kernels/ptx.cuh"

namespace mosaic::cuda {

/// Consecutive rows (or keys) of one head of one batch element.
struct RowRange {
  int batch, head, first, length;
};

/// The parts [first, end) with the rows (or keys) of a block, and the index of the block's tile in them.
struct WorkTile {
  int first, end, tile;
};

DEVICE WorkTile findWorkTile(const Parts& parts, int block) {
  int first = 0, end = 1;
  while (end < parts.count && parts.part[end].block <= block) {
    if (parts.part[end].block != parts.part[first].block) first = end;
    end++;
  }
  return {first, end, block - parts.part[first].block};
}

/// Returns the batch element that a block works on.
DEVICE int batchIndex(const Parts& parts) { return parts.batch + static_cast<int>(blockIdx.z); }

/// Returns the first row of a tile, counted from the last rows, which start first because a causal mask makes them
/// slowest.
DEVICE int tileStartFromEnd(int rows, int size, int tile) { return ((rows - 1) / size - tile) * size; }

/// Iterates over the keys visible to at least one of the rows [row0, row0 + ROWS), SIZE at a time.
template <int ROWS, int SIZE>
struct KeyTileIterator {
  const Parts& parts;
  int part, lastPart, row0;
  int key0 = 0, end = 0;
  int fullBegin = 0, fullEnd = 0;  // visible to every row

  DEVICE KeyTileIterator(const Parts& parts, const WorkTile& work, int row0)
      : parts(parts), part(work.first), lastPart(work.end), row0(row0) {
    seek();
  }
  DEVICE bool isValid() const { return part < lastPart; }
  DEVICE void next() {
    key0 += SIZE;
    if (key0 < end) return;
    part++;
    seek();
  }
  DEVICE const VisibleInterval& visible() const { return parts.part[part].visible; }
  DEVICE bool needsMask() const { return key0 < fullBegin || key0 + SIZE > fullEnd; }
  /// Returns the index of the tile's first key among the tensor's keys.
  DEVICE int firstKey() const { return parts.part[part].key + key0; }
  /// Returns the keys of this part up to the last that is visible to a row of the block. Later keys may be NaN, and 0 ·
  /// NaN is NaN.
  DEVICE RowRange range(int batch, int head) const { return {batch, head, parts.part[part].key, end}; }
  /// Returns the number of the tile's keys within that range.
  DEVICE int validRowCount() const { return end - key0; }

 private:
  DEVICE void seek() {
    for (; part < lastPart; part++) {
      const VisibleInterval& visible = this->visible();
      const int lastRow = min(row0 + ROWS, visible.rows) - 1;
      key0 = edgePosition(visible, visible.begin, row0);
      end = edgePosition(visible, visible.end, lastRow);
      if (key0 >= end) continue;
      fullBegin = edgePosition(visible, visible.begin, lastRow);
      fullEnd = edgePosition(visible, visible.end, row0);
      return;
    }
  }
};

/// Iterates over the queries to which at least one of the keys [key0, key0 + KEYS) is visible, SIZE at a time, for each
/// head from `firstHead` on.
template <int KEYS, int SIZE>
struct QueryTileIterator {
  const Parts& parts;
  int part, lastPart, key0, firstHead, lastHead;
  int head = 0, row0 = 0, begin = 0, end = 0;
  int fullBegin = 0, fullEnd = 0;  // every key is visible to these

  DEVICE QueryTileIterator(const Parts& parts, const WorkTile& work, int key0, int firstHead, int heads)
      : parts(parts),
        part(work.first),
        lastPart(work.end),
        key0(key0),
        firstHead(firstHead),
        lastHead(firstHead + heads) {
    seek();
  }
  DEVICE bool isValid() const { return part < lastPart; }
  DEVICE void next() {
    row0 += SIZE;
    if (row0 < end) return;
    row0 = begin;
    if (++head < lastHead) return;
    part++;
    seek();
  }
  DEVICE const VisibleInterval& visible() const { return parts.part[part].visible; }
  DEVICE bool needsMask() const { return row0 < fullBegin || row0 + SIZE > fullEnd; }
  /// Returns the rows of this part and the current head up to the last that attends to a key of the block; see
  /// KeyTileIterator::range.
  DEVICE RowRange range(int batch) const { return {batch, head, parts.part[part].row, end}; }
  /// Returns the number of the tile's rows within that range.
  DEVICE int validRowCount() const { return end - row0; }

 private:
  DEVICE void seek() {
    for (; part < lastPart; part++) {
      const VisibleInterval& visible = this->visible();
      const int lastKey = min(key0 + KEYS, visible.keys) - 1;
      begin = firstRowBeyond(visible, visible.end, key0);
      end = firstRowBeyond(visible, visible.begin, lastKey);
      if (begin >= end) continue;
      row0 = begin;
      head = firstHead;
      fullBegin = firstRowBeyond(visible, visible.end, lastKey);
      fullEnd = firstRowBeyond(visible, visible.begin, key0);
      return;
    }
  }
};

/// Whether any key of the block's parts is visible to the row.
DEVICE bool hasVisibleKeys(const Parts& parts, const WorkTile& work, int row) {
  bool isVisible = false;
  for (int part = work.first; part < work.end; part++) {
    const VisibleInterval& visible = parts.part[part].visible;
    isVisible = isVisible || edgePosition(visible, visible.begin, row) < edgePosition(visible, visible.end, row);
  }
  return isVisible;
}

}  // namespace mosaic::cuda
