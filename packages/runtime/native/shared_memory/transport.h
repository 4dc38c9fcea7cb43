// Messages between the ranks of one host through shared memory. They are copied into the ring buffer of a pair and out
// of it in pieces, peer by peer. A reduction reads its operands in place in the ring buffers.
//
// Compiled into the addons of @mosaic/collectives-local, where it is the transport, and of @mosaic/collectives-ucx,
// where it is the part of a transport that connects the ranks of this host.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mosaic/transport.h"
#include "shared_memory/message_queues.h"
#include "shared_memory/peer_processes.h"
#include "shared_memory/segment.h"
#include "shared_memory/wake_pipe.h"

namespace mosaic {

/// How other ranks wake a waiting rank.
enum class Wakeup {
  Futex,      // the rank sleeps in `sleep`
  Descriptor  // the rank polls `fd` together with other descriptors
};

/// One rank's endpoint. Except for `interrupt`, it is used on the communication thread only. Messages and ranks are as
/// in mosaic/transport.h.
class SharedMemory {
 public:
  /// Connects the ranks on this rank's host. Throws Failure, and std::exception for system errors.
  void connect(MosaicBootstrap& bootstrap, Wakeup wakeup);
  /// Makes `sleep` return early. May be called from any thread. Has no effect if woken by descriptor.
  void interrupt();
  bool isConnected() const { return segment_ != nullptr; }

  void send(MosaicMessage& message) { sends_.push(localRanks_[message.peer], message); }
  void receive(MosaicMessage& message) { receives_.push(localRanks_[message.peer], message); }
  void reduce(MosaicReduction& reduction);
  /// Transfers the data that can be transferred now. Returns whether any was.
  bool progress();

  /// Sleeps as `MosaicHostTransport::wait` does. Only if woken by futex.
  void sleep(int64_t nanoseconds, int (*ready)(void*), void* arg);
  /// From this call to `endPoll`, a change that `progress` may react to makes `fd` readable. Only if woken by
  /// descriptor.
  void beginPoll();
  void endPoll();
  int fd() const { return pipe_->fd(); }

  /// Whether the process of a rank has ended without having closed.
  bool isLost(uint32_t rank) const;
  /// Drops everything that is enqueued.
  void cancel();
  /// Closes in order.
  void close();

 private:
  using Queue = MessageQueues::Queue;

  bool sendTo(uint32_t peer);
  bool receiveFrom(uint32_t peer);
  bool readHeader(MosaicMessage& message, Channel& channel);
  bool computeReduction(MosaicReduction& reduction);
  void popIfDone(Queue& queue);
  void notify(uint32_t peer) const;

  bool isClosed(uint32_t peer) const { return segment_->page(peer).isClosed.load() != 0; }
  Channel outgoingChannel(uint32_t peer) const { return segment_->channel(localRank_, peer); }
  Channel incomingChannel(uint32_t peer) const { return segment_->channel(peer, localRank_); }

  MosaicMatches matches_ = nullptr;
  std::vector<uint32_t> ranks_;    // ranks of this host, in order; `peer` below is an index of this list
  std::vector<uint32_t> localRanks_;  // by rank
  uint32_t localRank_ = 0;            // local rank of this rank
  std::shared_ptr<Segment> segment_;
  /// The page with the doorbell on which this rank sleeps. Atomic and null before it is connected, because `interrupt`
  /// may be called earlier. Null if it polls: there a late interrupt would clear the flag that a peer needs to wake the
  /// thread.
  std::atomic<RankPage*> page_{nullptr};
  std::optional<PeerProcesses> processes_;
  MessageQueues sends_, receives_;
  MosaicReduction* reduction_ = nullptr;
  // If woken by descriptor: the pipes of this rank and of its peers.
  std::optional<WakePipe> pipe_;
  std::vector<std::unique_ptr<WakePipePeer>> peerPipes_;  // null for this rank and for ranks that have ended
};

/// Returns the transport of a rank whose whole world is on this host. Its `free` frees it.
const MosaicTransport* openSharedMemory();

}  // namespace mosaic
