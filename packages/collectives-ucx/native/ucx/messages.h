// The engine's messages between ranks of several hosts, over a connection of UCX.
//
// A message is a header, which is the signature, and its payload under another tag, straight from and into the tensors.
// The payload is received only once its header has arrived and is the expected one: what does not match reaches no
// tensor. Both are on the way at the same time, so that this costs no round trip. Small payloads travel in the header.
#pragma once

#include <memory>
#include <vector>

#include "ucx/connection.h"

namespace mosaic::ucx {

/// But for `interrupt`, called on the communication thread only; messages and ranks are as in mosaic/transport.h.
class Messages {
 public:
  explicit Messages(const Settings& settings);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Connects this rank with those of other hosts. Throws Failure.
  void connect(MosaicBootstrap& bootstrap);
  /// Any thread: `connect` and `wait` return early.
  void interrupt() const { connection_.interrupt(); }

  void send(MosaicMessage& message);
  void receive(MosaicMessage& message);
  /// Whether anything moved.
  bool progress();
  /// As `MosaicHostTransport::wait`; also returns once the descriptor `extraFd`, if any, is readable.
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg, int extraFd = -1) {
    connection_.wait(nanoseconds, ready, arg, extraFd);
  }

  bool isLost(uint32_t rank) const { return connection_.isLost(rank); }
  void abandon() { connection_.abandon(); }
  void close() { connection_.close(sentMessageCounts_); }
  /// Whether UCX may still use memory of this.
  bool isInUse() const { return connection_.isInUse(); }

 private:
  struct Transfer;

  Transfer& beginTransfer(MosaicMessage& message, uint64_t number, bool isSend);
  void endTransfer(Transfer& transfer);
  void onSent(Transfer& transfer, ucs_status_t status);
  void onHeader(Transfer& transfer, ucs_status_t status);
  void onPayload(Transfer& transfer, ucs_status_t status);
  bool closeMessages();
  template <auto method>
  static void completeRequest(Request& request, ucs_status_t status);

  MosaicMatches matches_ = nullptr;
  Connection connection_;
  std::vector<uint64_t> sentMessageCounts_, receivedMessageCounts_;  // messages to and from each rank
  std::vector<Transfer*> activeTransfers_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<Transfer*> freeTransfers_;
  bool hasProgressed_ = false;
};

}  // namespace mosaic::ucx
