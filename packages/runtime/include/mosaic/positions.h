// Functions of spans, slices and sample masks that all devices share. Do not include this in files that are compiled
// for one instruction set, because the linker may keep their copy of an inline function for all others.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "mosaic/kernel_arguments.h"

namespace mosaic {

/// Returns the number of positions of a span that are less than `position`.
inline int64_t countPositionsBefore(const Span& span, int64_t position) {
  if (position <= span.start) return 0;
  const int64_t distance = position - span.start;
  return std::min(span.length, span.step == 1 ? distance : (distance + span.step - 1) / span.step);
}

inline bool areSlicesEqual(const std::vector<Slice>& a, const std::vector<Slice>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Slice& x, const Slice& y) {
    return x.q0 == y.q0 && x.q1 == y.q1 && x.k0 == y.k0 && x.k1 == y.k1 && x.type == y.type;
  });
}

/// Returns the masks of the batch elements [first, first + count) of a call, or an empty list if the call has no sample
/// masks. Throws std::invalid_argument if it has too few.
inline std::span<const std::vector<Slice>> selectSampleMasks(const Tile& tile, int64_t first, int64_t count) {
  if (!tile.modifiers || tile.modifiers->sampleMasks.empty()) return {};
  const std::vector<std::vector<Slice>>& masks = tile.modifiers->sampleMasks;
  if (tile.modifiers->origin) first += tile.modifiers->origin->batch;
  if (first < 0 || first + count > static_cast<int64_t>(masks.size())) {
    throw std::invalid_argument("attention: expected masks of samples " + std::to_string(first) + " to " +
                                std::to_string(first + count - 1) + ", received " + std::to_string(masks.size()) +
                                " masks");
  }
  return std::span(masks).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
}

}  // namespace mosaic
