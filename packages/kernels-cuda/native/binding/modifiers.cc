#include "binding/modifiers.h"

#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

namespace mosaic::cuda {

namespace {

void throwIfPositionsTooLarge(std::span<const Span> spans) {
  for (const Span& span : spans) {
    const int64_t last = span.start + (span.length - 1) * span.step;
    if (span.length > 0 && last > INT32_MAX) {
      throw std::invalid_argument("attention: expected positions below 2147483648 with slopes or dropout, received " +
                                  std::to_string(last));
    }
  }
}

}  // namespace

std::optional<ScoreModifiers> makeScoreModifiers(const Tile& tile, const GridOrigin& origin) {
  if (!tile.modifiers) return std::nullopt;
  const auto& [softcap, slopes, dropout, masks, callOrigin] = *tile.modifiers;
  const bool hasDropout = dropout && dropout->probability > 0;
  if (!(softcap > 0) && !slopes.data && !hasDropout) return std::nullopt;
  const int64_t batch = origin.batch + (callOrigin ? callOrigin->batch : 0),
                head = origin.head + (callOrigin ? callOrigin->head : 0);
  ScoreModifiers modifiers{};
  modifiers.softcap = softcap;
  if (slopes.data) {
    modifiers.slopeStride = slopes.stride[0];
    modifiers.slopes = static_cast<const float*>(slopes.data) + head * modifiers.slopeStride;
  }
  if (hasDropout) {
    modifiers.dropout = {dropout->seed, dropout->stream};
    modifiers.dropoutThreshold = static_cast<uint32_t>(std::ceil(dropout->probability * 0x1p24));
    modifiers.dropoutScale = 1.f / (1.f - dropout->probability);
    modifiers.batch = static_cast<uint32_t>(batch + dropout->batchOffset);
    modifiers.head = static_cast<uint32_t>(head);
  }
  if (slopes.data || hasDropout) {
    throwIfPositionsTooLarge(tile.q);
    throwIfPositionsTooLarge(tile.k);
  }
  return modifiers;
}

}  // namespace mosaic::cuda
