// The engine's messages between ranks of several hosts, over a connection of UCX.
//
// A message consists of a header, which is the signature, and a payload with another tag, which is sent from and
// received into the tensors directly. The payload is received only once the expected header has arrived, so that
// mismatched data is never written to a tensor. Both are sent at the same time, so this costs no round trip. Small
// payloads are part of the header's message.
#pragma once

#include <memory>
#include <vector>

#include "ucx/connection.h"

namespace mosaic::ucx {

/// Except for `interrupt`, used on the communication thread only. Messages and ranks are as in mosaic/transport.h.
class Messages {
 public:
  explicit Messages(const Settings& settings);
  ~Messages();
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  /// Connects this rank with those of other hosts. Throws Failure.
  void connect(MosaicBootstrap& bootstrap);
  /// Makes `connect` and `wait` return early. May be called from any thread.
  void interrupt() const { connection_.interrupt(); }

  void send(MosaicMessage& message);
  void receive(MosaicMessage& message);
  /// Transfers the data that can be transferred now. Returns whether any was.
  bool progress();
  /// As `MosaicHostTransport::wait`; also returns once the descriptor `extraFd`, if any, is readable.
  void wait(int64_t nanoseconds, int (*ready)(void*), void* arg, int extraFd = -1) {
    connection_.wait(nanoseconds, ready, arg, extraFd);
  }

  bool isLost(uint32_t rank) const { return connection_.isLost(rank); }
  void abandon() { connection_.abandon(); }
  void close() { connection_.close(sentMessageCounts_); }
  /// Whether UCX may still use memory of this object.
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
  std::vector<uint64_t> sentMessageCounts_, receivedMessageCounts_;  // by rank
  std::vector<Transfer*> activeTransfers_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<Transfer*> freeTransfers_;
  bool hasProgressed_ = false;
};

}  // namespace mosaic::ucx
