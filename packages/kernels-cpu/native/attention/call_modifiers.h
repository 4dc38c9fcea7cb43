// What modifies the scores and weights of one call, and what of it kernels need for the rows of a panel.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/attention.h"
#include "attention/attention_kernels.h"
#include "pool/pool.h"

namespace mosaic {

/// Which rows a panel has: those of `heads` heads, one head after the other.
struct PanelLocation {
  int64_t batch, head;
  int32_t heads;
  int64_t first;  // row of each head
  int32_t count;  // rows of each head
  int32_t rows() const { return heads * count; }
};

class CallModifiers {
 public:
  /// Throws std::invalid_argument for positions that 31 bits do not hold, where they count.
  explicit CallModifiers(const Tile& tile);

  /// Whether there are any that modify scores or weights; sample masks and the origin do not.
  bool modifiesScores() const { return modifiesScores_; }
  /// Those of the rows of a panel, `width` of them; memory is of the arena.
  ScoreModifiers makeScoreModifiers(const PanelLocation& location, int32_t width, Arena& arena) const;

 private:
  bool modifiesScores_ = false;
  float softcap_ = 0, dropoutScale_ = 1;
  std::vector<float> slopes_;              // of all heads of the model; empty: none
  std::vector<int32_t> queryPositions_, keyPositions_;    // positions of all rows, where they count
  int64_t batch_ = 0, head_ = 0;           // of the first sample and of the first head
  uint32_t dropoutThreshold_ = 0, philoxKey_[2] = {0, 0};
};

}  // namespace mosaic
