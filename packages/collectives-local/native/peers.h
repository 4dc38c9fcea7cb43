// Who of the other ranks is still alive. The kernel tells: a pidfd becomes readable when its process ends, however.
#pragma once

#include <vector>

#include "segment.h"

namespace mosaic {

/// Start time of a process in clock ticks since boot, which together with the pid names it for good; 0 if it is gone.
uint64_t processStart(int pid);

class Peers {
 public:
  Peers(std::shared_ptr<Segment> segment, uint32_t rank);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Looks at all processes once more; a few microseconds.
  void refresh();
  /// Died without saying goodbye.
  bool dead(uint32_t rank) const { return dead_[rank]; }
  /// Said goodbye: what it has sent is still there, no more will come.
  bool left(uint32_t rank) const { return segment_->page(rank).state.load() == RankState::Left; }

 private:
  bool ended(uint32_t rank) const;
  std::shared_ptr<Segment> segment_;
  std::vector<int> pidfds_;  // -1: none needed (this process) or to be had
  std::vector<bool> dead_;
};

}  // namespace mosaic
