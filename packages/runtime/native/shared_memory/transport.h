// Messages between the ranks of one host, through shared memory: they are copied into the ring buffer of a pair and out
// of it, a piece of each in turn. A reduction reads its operands where they lie in the ring buffers.
//
// Compiled into the addons of @mosaic/collectives-local, where it is the transport, and of @mosaic/collectives-ucx,
// where it is the part of a transport that serves the ranks of this host.
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

/// How a rank that waits is woken by the others.
enum class Wakeup {
  Futex,      // it sleeps in `sleep`
  Descriptor  // it polls `fd`, and other descriptors beside it
};

/// One rank's end. But for `interrupt`, called on the communication thread only; messages and ranks are as in
/// mosaic/transport.h.
class SharedMemory {
 public:
  /// Connects the ranks that have this rank's host. Throws Failure, and std::exception for what the system refuses.
  void connect(MosaicBootstrap& bootstrap, Wakeup wakeup);
  /// Any thread: `sleep` returns early. Nothing where woken by descriptor.
  void interrupt();
  bool isConnected() const { return segment_ != nullptr; }

  void send(MosaicMessage& message) { sends_.push(localRanks_[message.peer], message); }
  void receive(MosaicMessage& message) { receives_.push(localRanks_[message.peer], message); }
  void reduce(MosaicReduction& reduction);
  /// Whether anything moved.
  bool progress();

  /// Sleeps as `MosaicHostTransport::wait` does. Woken by futex only.
  void sleep(int64_t nanoseconds, int (*ready)(void*), void* arg);
  /// From here to `endPoll` a change that `progress` may react to makes `fd` readable. Woken by descriptor only.
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
  std::vector<uint32_t> ranks_;    // of this host, in order; their indices are the peers of all that follows
  std::vector<uint32_t> localRanks_;  // by rank
  uint32_t localRank_ = 0;            // of this rank
  std::shared_ptr<Segment> segment_;
  /// Where this rank sleeps, once it is connected: `interrupt` may come before. Null where it polls: there an interrupt
  /// that comes late would take the place of a peer's, which then wakes no thread.
  std::atomic<RankPage*> page_{nullptr};
  std::optional<PeerProcesses> processes_;
  MessageQueues sends_, receives_;
  MosaicReduction* reduction_ = nullptr;
  // Woken by descriptor: this rank's, and those of its peers.
  std::optional<WakePipe> pipe_;
  std::vector<std::unique_ptr<WakePipePeer>> peerPipes_;  // null: this rank, and those that have ended
};

/// The transport of one rank whose whole world is on this host; its `free` frees it.
const MosaicTransport* openSharedMemory();

}  // namespace mosaic
