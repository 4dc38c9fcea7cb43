#include "attention/call_modifiers.h"

#include <cmath>
#include <span>
#include <stdexcept>
#include <string>

namespace mosaic {
namespace {

/// Returns the position of every row of the spans.
std::vector<int32_t> expandPositions(std::span<const Span> spans) {
  std::vector<int32_t> positions;
  for (const Span& span : spans) {
    const int64_t last = span.start + (span.length - 1) * span.step;
    if (span.length > 0 && last > INT32_MAX) {
      throw std::invalid_argument("attention: expected positions below 2147483648 with slopes or dropout, received " +
                                  std::to_string(last));
    }
    for (int64_t i = 0; i < span.length; ++i) positions.push_back(static_cast<int32_t>(span.start + i * span.step));
  }
  return positions;
}

/// Derives the key of a call's random bits: two words of Philox (kernels/philox.h) for counter `stream`, under key
/// `seed`.
void deriveKey(const AttentionDropout& dropout, uint32_t (&key)[2]) {
  uint32_t words[4] = {static_cast<uint32_t>(dropout.stream), static_cast<uint32_t>(dropout.stream >> 32), 0, 0};
  uint32_t key0 = static_cast<uint32_t>(dropout.seed), key1 = static_cast<uint32_t>(dropout.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * words[0], b = uint64_t{0xCD9E8D57u} * words[2];
    const uint32_t next[4] = {static_cast<uint32_t>(b >> 32) ^ words[1] ^ key0, static_cast<uint32_t>(b),
                              static_cast<uint32_t>(a >> 32) ^ words[3] ^ key1, static_cast<uint32_t>(a)};
    for (int i = 0; i < 4; ++i) words[i] = next[i];
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  key[0] = words[0];
  key[1] = words[1];
}

}  // namespace

CallModifiers::CallModifiers(const Tile& tile) {
  if (!tile.modifiers) return;
  const AttentionModifiers& modifiers = *tile.modifiers;
  if (modifiers.origin) batch_ = modifiers.origin->batch, head_ = modifiers.origin->head;
  softcap_ = modifiers.softcap;
  if (modifiers.slopes.data != nullptr) {
    for (int64_t i = 0; i < modifiers.slopes.shape[0]; ++i) {
      slopes_.push_back(static_cast<const float*>(modifiers.slopes.data)[i * modifiers.slopes.stride[0]]);
    }
  }
  if (modifiers.dropout && modifiers.dropout->probability > 0) {
    dropoutThreshold_ = static_cast<uint32_t>(std::ceil(modifiers.dropout->probability * 0x1p24));
    dropoutScale_ = 1.0f / (1.0f - modifiers.dropout->probability);
    batch_ += modifiers.dropout->batchOffset;
    deriveKey(*modifiers.dropout, philoxKey_);
  }
  modifiesScores_ = softcap_ > 0 || !slopes_.empty() || dropoutThreshold_ > 0;
  if (slopes_.empty() && dropoutThreshold_ == 0) return;
  queryPositions_ = expandPositions(tile.q);
  keyPositions_ = expandPositions(tile.k);
}

ScoreModifiers CallModifiers::makeScoreModifiers(const PanelLocation& location, int32_t width, Arena& arena) const {
  ScoreModifiers scoreModifiers{softcap_,          nullptr,
                                nullptr,           nullptr,
                                keyPositions_.data(),      static_cast<uint32_t>(batch_ + location.batch),
                                dropoutThreshold_, {philoxKey_[0], philoxKey_[1]},
                                dropoutScale_};
  if (keyPositions_.empty()) return scoreModifiers;
  int32_t* queries = arena.allocate<int32_t>(width);
  int32_t* heads = arena.allocate<int32_t>(width);
  float* slopes = arena.allocate<float>(width);
  for (int32_t r = 0; r < width; ++r) {
    // Padding rows repeat the first row, so that every row of a panel has a position.
    const int32_t row = r < location.rows() ? r : 0;
    queries[r] = queryPositions_[static_cast<size_t>(location.first + row % location.count)];
    heads[r] = static_cast<int32_t>(head_ + location.head + row / location.count);
    slopes[r] = slopes_.empty() ? 0 : slopes_[static_cast<size_t>(heads[r])];
  }
  scoreModifiers.queries = queries;
  scoreModifiers.heads = heads;
  if (!slopes_.empty()) scoreModifiers.slopes = slopes;
  return scoreModifiers;
}

}  // namespace mosaic
