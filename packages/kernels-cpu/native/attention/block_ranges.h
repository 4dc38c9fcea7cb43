// The keys of a task that have been copied.
#pragma once

#include <algorithm>

#include "attention/tile_visibility.h"
#include "pool/pool.h"
#include "simd/integers.h"

namespace mosaic {

/// For each block of keys, one range: the keys that have been copied. Blocks begin at multiples of the block size after
/// the first key.
class BlockRanges {
 public:
  BlockRanges() = default;
  BlockRanges(const Range& keys, int64_t blockKeys, Arena& arena)
      : begin_(keys.begin),
        blockKeys_(blockKeys),
        blocks_(ceilDiv(keys.end - keys.begin, blockKeys)),
        ranges_(arena.allocate<Range>(blocks_)) {
    std::fill(ranges_, ranges_ + blocks_, Range{0, 0});
  }

  bool isEmpty() const { return blocks_ == 0; }
  int64_t capacity() const { return blocks_ * blockKeys_; }  // keys

  /// Extends the range of a block to contain `keys`, which are keys of one block, and calls copy(range) for each range
  /// of keys that was not part of it.
  template <class Fn>
  void extend(const Range& keys, Fn copy) {
    Range& range = ranges_[(keys.begin - begin_) / blockKeys_];
    if (range.begin == range.end) {
      copy(keys);
      range = keys;
      return;
    }
    if (keys.begin < range.begin) copy(Range{keys.begin, range.begin});
    if (keys.end > range.end) copy(Range{range.end, keys.end});
    range = {std::min(keys.begin, range.begin), std::max(keys.end, range.end)};
  }

  /// Returns the range of the block of a key; empty if no key of the block has been copied.
  const Range& rangeOf(int64_t key) const { return ranges_[(key - begin_) / blockKeys_]; }

 private:
  int64_t begin_ = 0, blockKeys_ = 1, blocks_ = 0;
  Range* ranges_ = nullptr;
};

}  // namespace mosaic
