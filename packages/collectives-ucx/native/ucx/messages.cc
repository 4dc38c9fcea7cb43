#include "ucx/messages.h"

#include <cstring>
#include <utility>

namespace mosaic::ucx {

namespace {

constexpr uint64_t kInlineBytes = 8 << 10;

struct Header {
  MosaicSignature signature;
  uint8_t payload[kInlineBytes];
};

}  // namespace

/// A message of the engine in progress.
struct Messages::Transfer : Request {
  Messages* messages = nullptr;
  MosaicMessage* message = nullptr;
  uint64_t number = 0;   // among the messages between these two ranks
  uint32_t pendingPartCount = 0;  // parts of a send
  size_t activeIndex = 0;     // index in `activeTransfers_`
  bool isSend = false;
  Header header;
};

Messages::Messages(const Settings& settings) : connection_(settings) {}
Messages::~Messages() = default;

/// A completion callback that calls a method of the transfer's owner.
template <auto method>
void Messages::completeRequest(Request& request, ucs_status_t status) {
  auto& transfer = static_cast<Transfer&>(request);
  (transfer.messages->*method)(transfer, status);
}

void Messages::connect(MosaicBootstrap& bootstrap) {
  matches_ = bootstrap.matches;
  sentMessageCounts_.assign(bootstrap.size, 0);
  receivedMessageCounts_.assign(bootstrap.size, 0);
  connection_.connect(bootstrap);
}

Messages::Transfer& Messages::beginTransfer(MosaicMessage& message, uint64_t number, bool isSend) {
  if (freeTransfers_.empty()) freeTransfers_.push_back(transfers_.emplace_back(std::make_unique<Transfer>()).get());
  Transfer& transfer = *freeTransfers_.back();
  freeTransfers_.pop_back();
  transfer.messages = this;
  transfer.message = &message;
  transfer.number = number;
  transfer.isSend = isSend;
  transfer.activeIndex = activeTransfers_.size();
  activeTransfers_.push_back(&transfer);
  return transfer;
}

/// Ends the transfer of a message that was transferred completely.
void Messages::endTransfer(Transfer& transfer) {
  transfer.message->moved = transfer.message->signature.bytes;
  transfer.message->state = MOSAIC_MESSAGE_DONE;
  hasProgressed_ = true;
  activeTransfers_[transfer.activeIndex] = activeTransfers_.back();
  activeTransfers_[transfer.activeIndex]->activeIndex = transfer.activeIndex;
  activeTransfers_.pop_back();
  freeTransfers_.push_back(&transfer);
}

// ── sending

void Messages::send(MosaicMessage& message) {
  const uint64_t number = sentMessageCounts_[message.peer]++, bytes = message.signature.bytes;
  if (connection_.messageCountAtClose(message.peer)) {
    message.state = MOSAIC_MESSAGE_CLOSED;
    return;
  }
  Transfer& transfer = beginTransfer(message, number, true);
  const bool isInline = bytes <= kInlineBytes;
  transfer.pendingPartCount = isInline ? 1 : 2;
  transfer.onComplete = completeRequest<&Messages::onSent>;
  transfer.header.signature = message.signature;
  if (isInline && bytes > 0) std::memcpy(transfer.header.payload, message.data, bytes);
  const size_t headerBytes = sizeof message.signature + (isInline ? bytes : 0);
  connection_.send(message.peer, MessageKind::Header, number, &transfer.header, headerBytes, transfer);
  if (!isInline) connection_.send(message.peer, MessageKind::Payload, number, message.data, bytes, transfer);
}

/// A failed send stays in progress, because its peer is lost or has closed.
void Messages::onSent(Transfer& transfer, ucs_status_t status) {
  if (status == UCS_OK && --transfer.pendingPartCount == 0) endTransfer(transfer);
}

// ── receiving

void Messages::receive(MosaicMessage& message) {
  const uint64_t number = receivedMessageCounts_[message.peer]++;
  Transfer& transfer = beginTransfer(message, number, false);
  transfer.onComplete = completeRequest<&Messages::onHeader>;
  // If the header arrives truncated, the comparison then fails.
  transfer.header.signature = {};
  connection_.receive(message.peer, MessageKind::Header, number, &transfer.header, sizeof transfer.header, transfer);
}

void Messages::onHeader(Transfer& transfer, ucs_status_t status) {
  if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) return;
  MosaicMessage& message = *transfer.message;
  message.received = transfer.header.signature;
  hasProgressed_ = true;
  if (status != UCS_OK || !matches_(&message.signature, &message.received)) {
    message.state = MOSAIC_MESSAGE_MISMATCH;
    return;
  }
  const uint64_t bytes = message.signature.bytes;
  if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(message.data, transfer.header.payload, bytes);
    return endTransfer(transfer);
  }
  transfer.onComplete = completeRequest<&Messages::onPayload>;
  connection_.receive(message.peer, MessageKind::Payload, transfer.number, message.data, bytes, transfer);
}

void Messages::onPayload(Transfer& transfer, ucs_status_t status) {
  if (status == UCS_OK) endTransfer(transfer);
}

// ── progress

bool Messages::progress() {
  hasProgressed_ |= connection_.progress();
  hasProgressed_ |= closeMessages();
  return std::exchange(hasProgressed_, false);
}

/// Marks messages CLOSED that a closed peer will neither send nor receive. Returns whether there were any.
bool Messages::closeMessages() {
  bool hasClosedMessages = false;
  if (!connection_.hasClosedPeers()) return hasClosedMessages;
  for (const Transfer* transfer : activeTransfers_) {
    MosaicMessage& message = *transfer->message;
    const auto messageCountAtClose = connection_.messageCountAtClose(message.peer);
    if (!messageCountAtClose || message.state != MOSAIC_MESSAGE_PENDING) continue;
    if (!transfer->isSend && transfer->number < *messageCountAtClose) continue;
    message.state = MOSAIC_MESSAGE_CLOSED;
    hasClosedMessages = true;
  }
  return hasClosedMessages;
}

}  // namespace mosaic::ucx
