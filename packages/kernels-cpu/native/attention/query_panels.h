// Panels of queries that fold the same keys: they share each block that is read.
#pragma once

#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/call_modifiers.h"
#include "attention/kv_reader.h"
#include "attention/tile_visibility.h"
#include "micro/micro_kernels.h"

namespace mosaic {

/// One call: its arguments, the kernels for it and what modifies its scores.
struct ForwardCall {
  const AttendArguments& args;
  const MicroKernels& kernels;
  const CallModifiers& modifiers;
};

class QueryPanels {
 public:
  /// For up to `capacity` panels; memory is of the arena, and lives as long. `isNarrow`: all are of one vector.
  QueryPanels(const ForwardCall& call, size_t capacity, bool isNarrow, Arena& arena);

  /// Adds a panel: its queries. `segments`, by begin, are those of its rows. Where these fit into one vector, the panel
  /// is as wide.
  void add(const PanelLocation& location, std::span<const Segment> segments);
  /// Folds the visible keys of a range, which begins at a block, in order.
  void fold(int64_t keyHead, Range keys);
  /// Merges out and lse of the rows that saw a key of the range into a state. If that `isStateEmpty`, whatever its
  /// memory holds, they replace it, and the lse of other rows becomes −∞.
  void store(const AttentionState& state, Range keys, bool isStateEmpty) const;

 private:
  struct Panel {
    const AttentionKernels* kernels;
    ForwardPanel buffers;
    ScoreModifiers modifiers;
    PanelLocation location;
    std::span<const Segment> segments, remaining;  // by begin; those that are done drop out of the second
  };

  bool isPaired() const { return wideKernels_.products == DType::BFloat16; }
  HeadRows headRows(const PanelLocation& location, int32_t head) const {
    return {location.batch, location.head + head, location.first};
  }
  void loadQueries(const Panel& panel);
  void storePanel(const Panel& panel, const AttentionState& state, Range keys, bool isStateEmpty) const;
  void foldSegment(Panel& panel, const Segment& s, const KvRows& keys) const;

  const AttendArguments& args_;
  const MicroKernels& kernels_;
  const CallModifiers& modifiers_;
  const AttentionKernels& wideKernels_;  // those of wide panels, for what does not depend on the width
  Arena& arena_;
  const int64_t depth_, valueDepth_, rowStride_;  // the last of the row buffer
  KvReader reader_;
  float* scores_;
  void* weights_;
  float* rowBuffer_;
  std::vector<Panel> panels_;
};

}  // namespace mosaic
