// What a block owns, and its walk over what that meets: tile after tile, part after part, skipping what is hidden.
#pragma once

#include "kernels/attend.h"
#include "kernels/ptx.cuh"

namespace mosaic::cuda {

/// Consecutive rows (or keys) of one head of one batch.
struct Run {
  int batch, head, first, length;
};

/// The head that a block is for. A grid reaches 65 535 along y and z, which heads and batches need not: together they
/// count along y, and what is left of them along z. Of blocks that are too many, the batch is none.
struct HeadAt {
  int batch, head;
};

DEVICE HeadAt headOf(const Heads& heads) {
  const unsigned i = blockIdx.z * gridDim.y + blockIdx.y, count = static_cast<unsigned>(heads.count);
  return {static_cast<int>(i / count), static_cast<int>(i % count)};
}

/// The parts [first, end) whose rows (or keys) a block shares with others, and which one of these it is.
struct Share {
  int first, end, tile;
};

DEVICE Share shareOf(const Parts& parts, int block) {
  int first = 0, end = 1;
  while (end < parts.count && parts.part[end].block <= block) {
    if (parts.part[end].block != parts.part[first].block) first = end;
    end++;
  }
  return {first, end, block - parts.part[first].block};
}

/// The first row of the `tile`th block to start, if the last rows go first: under a causal mask they take longest.
DEVICE int lastTileFirst(int rows, int size, int tile) { return ((rows - 1) / size - tile) * size; }

/// Walks over the keys that some of rows [row0, row0 + ROWS) see, SIZE at a time.
template <int ROWS, int SIZE>
struct KeyTiles {
  const Parts& parts;
  int part, lastPart, row0;
  int key0 = 0, end = 0;
  int fullBegin = 0, fullEnd = 0;  // every row sees these

  DEVICE KeyTiles(const Parts& parts, const Share& share, int row0)
      : parts(parts), part(share.first), lastPart(share.end), row0(row0) {
    open();
  }
  DEVICE bool some() const { return part < lastPart; }
  DEVICE void next() {
    key0 += SIZE;
    if (key0 < end) return;
    part++;
    open();
  }
  DEVICE const Visible& visible() const { return parts.part[part].visible; }
  DEVICE bool hides() const { return key0 < fullBegin || key0 + SIZE > fullEnd; }
  /// Of the tensor's keys, the tile's first.
  DEVICE int place() const { return parts.part[part].key + key0; }

 private:
  DEVICE void open() {
    for (; part < lastPart; part++) {
      const Visible& seen = visible();
      const int rowLast = min(row0 + ROWS, seen.rows) - 1;
      key0 = edgeOf(seen, seen.begin, row0);
      end = edgeOf(seen, seen.end, rowLast);
      if (key0 >= end) continue;
      fullBegin = edgeOf(seen, seen.begin, rowLast);
      fullEnd = edgeOf(seen, seen.end, row0);
      return;
    }
  }
};

/// Walks over the queries that see some of keys [key0, key0 + KEYS), SIZE at a time, of each head from the first on.
template <int KEYS, int SIZE>
struct QueryTiles {
  const Parts& parts;
  int part, lastPart, key0, firstHead, lastHead;
  int head = 0, row0 = 0, begin = 0, end = 0;
  int fullBegin = 0, fullEnd = 0;  // these see every key

  DEVICE QueryTiles(const Parts& parts, const Share& share, int key0, int firstHead, int heads)
      : parts(parts),
        part(share.first),
        lastPart(share.end),
        key0(key0),
        firstHead(firstHead),
        lastHead(firstHead + heads) {
    open();
  }
  DEVICE bool some() const { return part < lastPart; }
  DEVICE void next() {
    row0 += SIZE;
    if (row0 < end) return;
    row0 = begin;
    if (++head < lastHead) return;
    part++;
    open();
  }
  DEVICE const Visible& visible() const { return parts.part[part].visible; }
  DEVICE bool hides() const { return row0 < fullBegin || row0 + SIZE > fullEnd; }
  /// The rows that this part has of the current head.
  DEVICE Run run(int batch) const { return {batch, head, parts.part[part].row, visible().rows}; }

 private:
  DEVICE void open() {
    for (; part < lastPart; part++) {
      const Visible& seen = visible();
      const int keyLast = min(key0 + KEYS, seen.keys) - 1;
      begin = firstRowBeyond(seen, seen.end, key0);
      end = firstRowBeyond(seen, seen.begin, keyLast);
      if (begin >= end) continue;
      row0 = begin;
      head = firstHead;
      fullBegin = firstRowBeyond(seen, seen.end, keyLast);
      fullEnd = firstRowBeyond(seen, seen.begin, key0);
      return;
    }
  }
};

/// Whether the row sees any key of the share's parts.
DEVICE bool seesAny(const Parts& parts, const Share& share, int row) {
  bool any = false;
  for (int part = share.first; part < share.end; part++) {
    const Visible& seen = parts.part[part].visible;
    any = any || edgeOf(seen, seen.begin, row) < edgeOf(seen, seen.end, row);
  }
  return any;
}

}  // namespace mosaic::cuda
