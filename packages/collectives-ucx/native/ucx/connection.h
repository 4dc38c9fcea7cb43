// One rank's connection to the ranks of other hosts: opening, tagged messages to and from each of them, and closing.
//
// A closing rank sends the number of messages that it has sent, and waits for a short time until every rank has
// received that number. If it closed its sockets earlier, messages in flight would be lost.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "mosaic/event_fd.h"
#include "mosaic/transport.h"
#include "ucx/worker.h"

namespace mosaic::ucx {

/// The kind of a message. A tag consists of kind, job, sender and number, so that messages of another job, or of a rank
/// of an earlier attempt, match no receive.
enum class MessageKind : uint64_t { Header, Payload, Connect, Close, CloseReceived };

/// A tag has 12 bits for the sender.
constexpr uint32_t kMaxRanks = 4096;

/// A request in progress. It must not move until `onComplete` was called, by `progress` or immediately.
struct Request {
  void (*onComplete)(Request& request, ucs_status_t status) = nullptr;
};

class Connection {
 public:
  explicit Connection(const Settings& settings) : settings_(settings) {}
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Exchanges addresses, makes the endpoints, and exchanges one message with each rank of another host, so that no
  /// connection is made inside the first collective; a no-op if all ranks share this host. Throws Failure.
  void connect(MosaicBootstrap& bootstrap);
  /// Makes `connect` and `wait` return early. May be called from any thread.
  void interrupt() const { wakeEvent_.signal(); }

  void send(uint32_t peer, MessageKind kind, uint64_t number, const void* data, size_t bytes, Request& request);
  void receive(uint32_t peer, MessageKind kind, uint64_t number, void* data, size_t bytes, Request& request);
  /// Progresses UCX. Returns whether any data was transferred.
  bool progress();
  /// As `MosaicHostTransport::wait`; also returns once the descriptor `extraFd`, unless negative, is readable.
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg, int extraFd);

  /// The number of messages that the peer had sent when it closed. Absent until it has closed.
  std::optional<uint64_t> messageCountAtClose(uint32_t peer) const { return peers_[peer].messageCountAtClose; }
  bool hasClosedPeers() const { return hasClosedPeers_; }
  /// Whether UCX has detected that the peer's process or host has ended.
  bool isLost(uint32_t peer) const { return peers_[peer].isLost && !peers_[peer].messageCountAtClose; }

  /// Stops calling UCX, so that no more data is transferred to or from memory. Requests in progress remain until the
  /// process exits. They are not cancelled, because cancelling has crashed some versions of UCX.
  void abandon() { isAbandoned_ = true; }
  /// Closes in order. `sentMessageCounts`: number of messages sent to each rank.
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
  std::vector<Peer> peers_;  // by rank; ranks of this host have no endpoint
  uint32_t rank_ = 0;
  uint64_t jobId_ = 0, unsentNoticeCount_ = 0;
  bool isAbandoned_ = false, hasProgressed_ = false, hasClosedPeers_ = false;
};

}  // namespace mosaic::ucx
