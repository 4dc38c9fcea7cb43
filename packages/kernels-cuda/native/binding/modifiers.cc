#include "binding/modifiers.h"

#include <cmath>
#include <span>
#include <stdexcept>

namespace mosaic::cuda {

namespace {

void checkPositions(std::span<const Span> spans) {
  for (const Span& span : spans) {
    if (span.length > 0 && span.start + (span.length - 1) * span.step > INT32_MAX) {
      throw std::invalid_argument("attention: slopes and dropout require positions below 2147483648");
    }
  }
}

}  // namespace

std::optional<ScoreModifiers> scoreModifiersOf(const Tile& tile, const GridOrigin& origin) {
  if (!tile.modifiers) return std::nullopt;
  const auto& [softcap, slopes, dropout, masks, first] = *tile.modifiers;
  const bool drops = dropout && dropout->probability > 0;
  if (!(softcap > 0) && !slopes.data && !drops) return std::nullopt;
  const int64_t batch = origin.batch + (first ? first->batch : 0), head = origin.head + (first ? first->head : 0);
  ScoreModifiers by{};
  by.softcap = softcap;
  if (slopes.data) {
    by.slopeStride = slopes.stride[0];
    by.slopes = static_cast<const float*>(slopes.data) + head * by.slopeStride;
  }
  if (drops) {
    by.dropout = {dropout->seed, dropout->stream};
    by.dropoutThreshold = static_cast<uint32_t>(std::ceil(dropout->probability * 0x1p24));
    by.dropoutScale = 1.f / (1.f - dropout->probability);
    by.batch = static_cast<uint32_t>(batch + dropout->batchOffset);
    by.head = static_cast<uint32_t>(head);
  }
  if (slopes.data || drops) {
    checkPositions(tile.q);
    checkPositions(tile.k);
  }
  return by;
}

}  // namespace mosaic::cuda
