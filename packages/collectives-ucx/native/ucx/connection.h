// One rank's connection to those of other hosts: tagged messages to and from each of them, and how it begins and ends.
//
// A rank that closes sends how many messages it has sent, and waits, for a moment, until every rank has received that:
// closing its sockets before would take along what is still on the way.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mosaic/event_fd.h"
#include "mosaic/transport.h"
#include "ucx/worker.h"

namespace mosaic::ucx {

/// What a message is. Its tag is kind, job, sender and number: nothing of another job, or of a rank of an earlier
/// attempt, matches a receive.
enum class MessageKind : uint64_t { Header, Payload, Connect, Close, CloseReceived };

/// A tag has 12 bits for the sender.
constexpr uint32_t kMaxRanks = 4096;

/// Under way; stays where it is until `onComplete` was called, by `progress` or at once.
struct Request {
  void (*onComplete)(Request& request, ucs_status_t status) = nullptr;
};

class Connection {
 public:
  explicit Connection(const Settings& settings) : settings_(settings) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Exchanges addresses, makes the endpoints, and one message with each rank of another host, so that no connection is
  /// made inside the first collective; nothing where there is none. Throws Failure.
  void connect(MosaicBootstrap& bootstrap);
  /// Any thread: `connect` and `wait` return early.
  void interrupt() const { wakeEvent_.signal(); }

  void send(uint32_t peer, MessageKind kind, uint64_t number, const void* data, size_t bytes, Request& request);
  void receive(uint32_t peer, MessageKind kind, uint64_t number, void* data, size_t bytes, Request& request);
  /// Whether anything moved.
  bool progress();
  /// As `MosaicHostTransport::wait`; also returns once the descriptor `extraFd`, unless negative, is readable.
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg, int extraFd);

  /// How many messages the peer had sent when it closed, once it has.
  std::optional<uint64_t> messageCountAtClose(uint32_t peer) const { return peers_[peer].messageCountAtClose; }
  bool hasClosedPeers() const { return hasClosedPeers_; }
  /// The peer's process or its host is gone, as far as UCX notices.
  bool isLost(uint32_t peer) const { return peers_[peer].isLost && !peers_[peer].messageCountAtClose; }

  /// UCX is not called any more, so that nothing moves in or out of any memory; what it has under way stays there
  /// until the process ends. Cancelling it instead has crashed versions of UCX.
  void abandon() { isAbandoned_ = true; }
  /// Closes in order; `sentMessageCounts`: messages to each rank.
  void close(const std::vector<uint64_t>& sentMessageCounts);
  /// Whether UCX may still use the memory of requests.
  bool isInUse() const { return worker_ != nullptr; }

 private:
  struct Peer;
  struct Notice : Request {  // a message of 8 bytes about the connection itself
    Connection* connection = nullptr;
    Peer* peer = nullptr;
    MessageKind kind = MessageKind::Connect;
    uint64_t value = 0;
  };
  struct Peer {
    uint32_t rank = 0;
    ucp_ep_h endpoint = nullptr;
    bool isLost = false, isConnected = false, hasReceivedClose = false;
    std::optional<uint64_t> messageCountAtClose;
    Notice sentNotices[3], receivedNotices[3];
  };

  void openEndpoints(MosaicBootstrap& bootstrap);
  void exchangeNotices(MosaicBootstrap& bootstrap);
  void sendNotice(Peer& peer, MessageKind kind, uint64_t value);
  void onNotice(Notice& notice);
  bool sleep(int64_t nanoseconds, int extraFd = -1);
  template <typename Condition>
  bool progressUntil(int64_t deadline, Condition condition);

  const Settings settings_;
  const EventFd wakeEvent_;
  std::unique_ptr<Worker> worker_;
  std::vector<Peer> peers_;  // by rank; those of this host have no endpoint
  uint32_t rank_ = 0;
  uint64_t jobId_ = 0, unsentNoticeCount_ = 0;
  bool isAbandoned_ = false, hasProgressed_ = false, hasClosedPeers_ = false;
};

}  // namespace mosaic::ucx
