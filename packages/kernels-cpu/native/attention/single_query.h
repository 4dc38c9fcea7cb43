// One query of each head, as decoding has them: its heads' rows fold the keys that they share, lanes along the keys.
#pragma once

#include <span>

#include "attention/query_panels.h"

namespace mosaic {

/// Whether lanes along keys do less than lanes along queries, of which most would be empty.
bool isSingleQuery(const ForwardCall& call);

class SingleQuery {
 public:
  /// The query heads of a key head. Memory is of the arena, and lives as long.
  SingleQuery(const ForwardCall& call, int64_t batch, int64_t keyHead, Arena& arena);

  /// Folds the keys of a range that `segments`, those of its rows, show.
  void fold(std::span<const Segment> segments, Range keys);
  /// As that of `QueryPanels`.
  void store(const AttentionState& state, bool isStateEmpty) const;

 private:
  const ForwardCall& call_;
  const int64_t batch_, firstHead_;
  const int32_t blockKeys_;  // what the kernel folds at a time
  KvReader reader_;
  QueryFold queryFold_;
};

}  // namespace mosaic
