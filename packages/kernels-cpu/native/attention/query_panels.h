// Panels of queries that fold the same keys and share each block that is read.
#pragma once

#include <span>
#include <vector>

#include "attention/attention.h"
#include "attention/call_modifiers.h"
#include "attention/kv_reader.h"
#include "attention/tile_visibility.h"
#include "micro/micro_kernels.h"
#include "simd/prefetch.h"

namespace mosaic {

/// One call: its arguments, its kernels and its score modifiers.
struct ForwardCall {
  const AttendArguments& args;
  const MicroKernels& kernels;
  const CallModifiers& modifiers;
};

class QueryPanels {
 public:
  /// Reserves room for up to `capacity` panels; memory belongs to the arena and has its lifetime. `isNarrow`: all
  /// panels have one or two vectors.
  QueryPanels(const ForwardCall& call, size_t capacity, bool isNarrow, Arena& arena);

  /// Adds a panel and loads its queries. `segments`, ordered by begin, are those of its rows. The panel is one vector
  /// wide if its rows fit.
  void add(const PanelLocation& location, std::span<const Segment> segments);
  /// Folds the visible keys of a range in order. The range starts at the begin of a block. Makes steps of `upcoming`
  /// meanwhile, if it is not null.
  void fold(int64_t keyHead, Range keys, RowPrefetch* upcoming = nullptr);
  /// Merges out and lse of the rows that attended to a key of the range into a state. If `isStateEmpty`, the state's
  /// memory is uninitialized: these rows replace it, and the lse of other rows is set to −∞.
  void store(const AttentionState& state, Range keys, bool isStateEmpty) const;

 private:
  struct Panel {
    const AttentionKernels* kernels;
    ForwardPanel buffers;
    ScoreModifiers modifiers;
    PanelLocation location;
    std::span<const Segment> segments, remaining;  // by begin; finished ones are removed from the second
  };

  bool isPaired() const { return wideKernels_.products == DType::BFloat16; }
  HeadRows headRows(const PanelLocation& location, int32_t head) const {
    return {location.batch, location.head + head, location.first};
  }
  void loadQueries(const Panel& panel);
  void storePanel(const Panel& panel, const AttentionState& state, Range keys, bool isStateEmpty) const;
  bool isEveryRowNew(const Panel& panel, const FloatRows& lse, Range keys, bool isStateEmpty) const;
  void foldSegment(Panel& panel, const Segment& s, const KvRows& keys) const;

  const AttendArguments& args_;
  const MicroKernels& kernels_;
  const CallModifiers& modifiers_;
  const AttentionKernels& wideKernels_;  // the kernels of wide panels, for operations that do not depend on the width
  Arena& arena_;
  const int64_t depth_, valueDepth_, rowStride_;  // rowStride_: stride of the row buffer
  const AttentionKernels& readerKernels_;  // the widest that panels have
  KvReader reader_;
  const bool canStage_;  // whether blocks that all rows see in full are staged
  float* scores_;
  void* weights_;
  float* rowBuffer_;
  double* rowLse_;  // of one panel
  float* part_;  // of staged rows
  std::vector<Panel> panels_;
};

}  // namespace mosaic
