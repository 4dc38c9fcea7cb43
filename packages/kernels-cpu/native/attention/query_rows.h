// A few queries of the heads that share a key head, as decoding has them: lanes lie along the keys, which are
// transposed once for all of these rows.
#pragma once

#include <span>

#include "attention/query_panels.h"

namespace mosaic {

/// Whether rows are folded faster than panels: where most lanes of a panel would be empty; for 16-bit keys, which a
/// panel converts, also where some would.
bool areRowsFaster(const ForwardCall& call);

class QueryRows {
 public:
  /// All queries of the heads that share `keyHead`. Memory comes from the arena and has its lifetime.
  QueryRows(const ForwardCall& call, int64_t batch, int64_t keyHead, Arena& arena);

  /// Folds the visible keys of a range. The bounds of `segments` are indexed by query.
  void fold(std::span<const Segment> segments, Range keys);
  /// Merges out and lse, as `QueryPanels::store` does.
  void store(const AttentionState& state, bool isStateEmpty) const;

 private:
  /// The rows of one query of every head.
  QueryFold rowsOfQuery(int64_t query) const;
  void foldKeys(const QueryFold& rows, Range keys);

  const ForwardCall& call_;
  const int64_t batch_, groupSize_, firstHead_;
  const int32_t blockKeys_;  // keys that the kernel folds at a time
  KvReader reader_;
  QueryFold rows_;  // row i · groupSize + h is query i of head h
};

}  // namespace mosaic
