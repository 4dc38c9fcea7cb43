#include "binding/part.h"

#include <algorithm>

namespace mosaic::cuda {

namespace {

/// Number of positions of a span that lie before `position`.
int64_t countBefore(const Span& span, int64_t position) {
  if (position <= span.start) return 0;
  return std::min(span.length, (position - span.start + span.step - 1) / span.step);
}

}  // namespace

std::optional<Part> partOf(const Span& q, const Span& k, const Slice& slice) {
  Part part{countBefore(q, slice.q0), 0, {}};
  const int64_t rows = countBefore(q, slice.q1) - part.row;
  if (rows <= 0 || k.length == 0) return std::nullopt;
  const int64_t position = q.start + part.row * q.step;
  Visible& visible = part.visible;
  const bool begins = (slice.type & 2) != 0, ends = (slice.type & 1) != 0;
  visible.begin = {slice.k0 - k.start + (begins ? position - slice.q0 : 0), begins ? q.step : 0};
  visible.end = {slice.k1 - k.start - (ends ? slice.q1 - 1 - position : 0), ends ? q.step : 0};
  visible.step = k.step;
  visible.rows = static_cast<int32_t>(rows);
  visible.keys = static_cast<int32_t>(k.length);

  const int32_t first = firstRowBeyond(visible, visible.end, 0);
  visible.rows = firstRowBeyond(visible, visible.begin, visible.keys - 1) - first;
  if (visible.rows <= 0) return std::nullopt;
  part.row += first;
  visible.begin.at += first * visible.begin.by;
  visible.end.at += first * visible.end.by;

  part.key = edgeOf(visible, visible.begin, 0);
  visible.keys = edgeOf(visible, visible.end, visible.rows - 1) - static_cast<int32_t>(part.key);
  if (visible.keys <= 0) return std::nullopt;
  visible.begin.at -= part.key * k.step;
  visible.end.at -= part.key * k.step;
  return part;
}

}  // namespace mosaic::cuda
