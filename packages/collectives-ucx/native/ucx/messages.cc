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

/// A message of the engine under way.
struct Messages::Transfer : Request {
  Messages* messages = nullptr;
  MosaicMessage* message = nullptr;
  uint64_t number = 0;   // among the messages between these two ranks
  uint32_t pending = 0;  // parts of a send
  size_t index = 0;      // in `active_`
  bool isSend = false;
  Header header;
};

Messages::Messages(const Settings& settings) : connection_(settings) {}
Messages::~Messages() = default;

/// A callback of UCX that calls a method of the transfer's owner.
template <auto method>
void Messages::completeRequest(Request& request, ucs_status_t status) {
  auto& transfer = static_cast<Transfer&>(request);
  (transfer.messages->*method)(transfer, status);
}

void Messages::connect(MosaicBootstrap& bootstrap) {
  matches_ = bootstrap.matches;
  sent_.assign(bootstrap.size, 0);
  received_.assign(bootstrap.size, 0);
  connection_.connect(bootstrap);
}

Messages::Transfer& Messages::begin(MosaicMessage& message, uint64_t number, bool isSend) {
  if (freeTransfers_.empty()) freeTransfers_.push_back(transfers_.emplace_back(std::make_unique<Transfer>()).get());
  Transfer& transfer = *freeTransfers_.back();
  freeTransfers_.pop_back();
  transfer.messages = this;
  transfer.message = &message;
  transfer.number = number;
  transfer.isSend = isSend;
  transfer.index = active_.size();
  active_.push_back(&transfer);
  return transfer;
}

/// All of the message has moved.
void Messages::end(Transfer& transfer) {
  transfer.message->moved = transfer.message->signature.bytes;
  transfer.message->state = MOSAIC_MESSAGE_DONE;
  hasMoved_ = true;
  active_[transfer.index] = active_.back();
  active_[transfer.index]->index = transfer.index;
  active_.pop_back();
  freeTransfers_.push_back(&transfer);
}

// ── sending

void Messages::send(MosaicMessage& message) {
  const uint64_t number = sent_[message.peer]++, bytes = message.signature.bytes;
  if (connection_.closedAfter(message.peer)) {
    message.state = MOSAIC_MESSAGE_CLOSED;
    return;
  }
  Transfer& transfer = begin(message, number, true);
  const bool isInline = bytes <= kInlineBytes;
  transfer.pending = isInline ? 1 : 2;
  transfer.done = completeRequest<&Messages::onSent>;
  transfer.header.signature = message.signature;
  if (isInline && bytes > 0) std::memcpy(transfer.header.payload, message.data, bytes);
  const size_t headerBytes = sizeof message.signature + (isInline ? bytes : 0);
  connection_.send(message.peer, Kind::Header, number, &transfer.header, headerBytes, transfer);
  if (!isInline) connection_.send(message.peer, Kind::Payload, number, message.data, bytes, transfer);
}

/// What could not be sent stays under way: the peer is lost, or has closed.
void Messages::onSent(Transfer& transfer, ucs_status_t status) {
  if (status == UCS_OK && --transfer.pending == 0) end(transfer);
}

// ── receiving

void Messages::receive(MosaicMessage& message) {
  const uint64_t number = received_[message.peer]++;
  Transfer& transfer = begin(message, number, false);
  transfer.done = completeRequest<&Messages::onHeader>;
  // A header that is too short is that of no signature.
  transfer.header.signature = {};
  connection_.receive(message.peer, Kind::Header, number, &transfer.header, sizeof transfer.header, transfer);
}

void Messages::onHeader(Transfer& transfer, ucs_status_t status) {
  if (status != UCS_OK && status != UCS_ERR_MESSAGE_TRUNCATED) return;
  MosaicMessage& message = *transfer.message;
  message.received = transfer.header.signature;
  hasMoved_ = true;
  if (status != UCS_OK || !matches_(&message.signature, &message.received)) {
    message.state = MOSAIC_MESSAGE_MISMATCH;
    return;
  }
  const uint64_t bytes = message.signature.bytes;
  if (bytes <= kInlineBytes) {
    if (bytes > 0) std::memcpy(message.data, transfer.header.payload, bytes);
    return end(transfer);
  }
  transfer.done = completeRequest<&Messages::onPayload>;
  connection_.receive(message.peer, Kind::Payload, transfer.number, message.data, bytes, transfer);
}

void Messages::onPayload(Transfer& transfer, ucs_status_t status) {
  if (status == UCS_OK) end(transfer);
}

// ── progress

bool Messages::progress() {
  hasMoved_ |= connection_.progress();
  hasMoved_ |= closeMessages();
  return std::exchange(hasMoved_, false);
}

/// Of peers that have closed, what they will not send, and what they will not receive.
bool Messages::closeMessages() {
  bool closed = false;
  if (!connection_.hasClosedPeers()) return closed;
  for (const Transfer* transfer : active_) {
    MosaicMessage& message = *transfer->message;
    const auto after = connection_.closedAfter(message.peer);
    if (!after || message.state != MOSAIC_MESSAGE_PENDING) continue;
    if (!transfer->isSend && transfer->number < *after) continue;
    message.state = MOSAIC_MESSAGE_CLOSED;
    closed = true;
  }
  return closed;
}

}  // namespace mosaic::ucx
