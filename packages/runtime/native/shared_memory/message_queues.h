// The queues of a rank's messages to, or from, each other rank.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "mosaic/transport.h"

namespace mosaic {

/// Messages by peer, in order, and the list of peers with messages. A peer is listed once, no matter how often its
/// queue empties and fills between two sweeps.
class MessageQueues {
 public:
  using Queue = std::deque<MosaicMessage*>;

  void resize(uint32_t peers) { queues_.resize(peers); }
  Queue& operator[](uint32_t peer) { return queues_[peer].messages; }
  void push(uint32_t peer, MosaicMessage& message) {
    PeerQueue& queue = queues_[peer];
    queue.messages.push_back(&message);
    if (!std::exchange(queue.isActive, true)) activePeers_.push_back(peer);
  }
  /// Calls `step` for each peer that has messages. Returns whether any call returned true.
  template <typename Step>
  bool progressActivePeers(Step step) {
    bool hasProgressed = false;
    std::erase_if(activePeers_, [&](uint32_t peer) {
      hasProgressed |= step(peer);
      return !(queues_[peer].isActive = !queues_[peer].messages.empty());
    });
    return hasProgressed;
  }
  void clear() {
    for (PeerQueue& queue : queues_) queue = {};
    activePeers_.clear();
  }

 private:
  struct PeerQueue {
    Queue messages;
    bool isActive = false;
  };
  std::vector<PeerQueue> queues_;
  std::vector<uint32_t> activePeers_;
};

}  // namespace mosaic
