// What part of the rectangle of all rows and keys one launch of attention takes.
#pragma once

#include <optional>
#include <vector>

#include "kernels/visible.h"
#include "mosaic/tile.h"

namespace mosaic::cuda {

/// Consecutive local rows and keys: where they begin, and what is visible among them.
struct Part {
  int64_t row, key;
  Visible visible;
};

/// What one slice lets one span of rows see of one span of keys, without rows and keys at the ends that nobody needs.
std::optional<Part> partOf(const Span& q, const Span& k, const Slice& slice);

/// Calls body(part) for every pair of spans that a slice touches.
template <class Body>
void forEachPart(const std::vector<Span>& q, const std::vector<Span>& k, const std::vector<Slice>& mask, Body body) {
  int64_t row = 0;
  for (const Span& rows : q) {
    int64_t key = 0;
    for (const Span& keys : k) {
      for (const Slice& slice : mask) {
        std::optional<Part> part = partOf(rows, keys, slice);
        if (!part) continue;
        part->row += row;
        part->key += key;
        body(*part);
      }
      key += keys.length;
    }
    row += rows.length;
  }
}

}  // namespace mosaic::cuda
