// The score and weight modifiers of one call, and the form in which kernels need them for the rows of a panel.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_kernels.h"
#include "pool/pool.h"

namespace mosaic {

/// The rows of a panel: those of `heads` heads, one head after the other.
struct PanelLocation {
  int64_t batch, head;
  int32_t heads;
  int64_t first;  // first row, within each head
  int32_t count;  // rows per head
  int32_t rows() const { return heads * count; }
};

class CallModifiers {
 public:
  /// Throws std::invalid_argument for positions that do not fit 31 bits, if slopes or dropout use them.
  explicit CallModifiers(const Tile& tile);

  /// Whether any modifier changes scores or weights; sample masks and the origin do not.
  bool modifiesScores() const { return modifiesScores_; }
  /// Returns the modifiers for the `width` rows of a panel; their memory belongs to the arena.
  ScoreModifiers makeScoreModifiers(const PanelLocation& location, int32_t width, Arena& arena) const;

 private:
  bool modifiesScores_ = false;
  float softcap_ = 0, dropoutScale_ = 1;
  std::vector<float> slopes_;              // one per head of the model; empty: none
  std::vector<int32_t> queryPositions_, keyPositions_;    // positions of all rows; empty if unused
  int64_t batch_ = 0, head_ = 0;           // index of the first sample and of the first head
  uint32_t dropoutThreshold_ = 0, philoxKey_[2] = {0, 0};
};

}  // namespace mosaic
