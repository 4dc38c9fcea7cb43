// The table of functions by which the collectives engine of @mosaic/runtime drives UCX.
//
// A message is a header, which is the signature, and its payload under another tag, straight from and into the tensors.
// The payload is received only once its header has arrived and is the expected one: what does not match reaches no
// tensor. Both are on the way at the same time, so that this costs no round trip. Small payloads travel in the header.
#include "ucx/transport.h"

#include <cstring>
#include <memory>
#include <utility>

#include "mosaic/failure.h"
#include "ucx/connection.h"

namespace mosaic::ucx {

namespace {

constexpr uint64_t kInlineBytes = 8 << 10;

struct Header {
  MosaicSignature signature;
  uint8_t payload[kInlineBytes];
};

class Transport;

/// A message of the engine under way.
struct Transfer : Request {
  Transport* transport = nullptr;
  MosaicMessage* message = nullptr;
  uint64_t number = 0;   // among the messages between these two ranks
  uint32_t pending = 0;  // parts of a send
  size_t index = 0;      // in `active_`
  bool isSend = false;
  Header header;
};

class Transport {
 public:
  explicit Transport(const Settings& settings);
  const MosaicTransport* table() const { return &table_; }

 private:
  static Transport& of(void* self) { return *static_cast<Transport*>(self); }

  void connect(MosaicBootstrap& bootstrap);
  void send(MosaicMessage& message);
  void receive(MosaicMessage& message);
  bool progress();
  void close();

  Transfer& begin(MosaicMessage& message, uint64_t number, bool isSend);
  void end(Transfer& transfer);
  void onSent(Transfer& transfer, ucs_status_t status);
  void onHeader(Transfer& transfer, ucs_status_t status);
  void onPayload(Transfer& transfer, ucs_status_t status);
  bool closeMessages();

  /// A callback of UCX that calls a method of the transfer's transport.
  template <auto method>
  static void call(Request& request, ucs_status_t status) {
    auto& transfer = static_cast<Transfer&>(request);
    (transfer.transport->*method)(transfer, status);
  }

  MosaicTransport table_;
  MosaicHostTransport host_;
  MosaicMatches matches_ = nullptr;
  Connection connection_;
  std::vector<uint64_t> sent_, received_;  // messages to and from each rank
  std::vector<Transfer*> active_;
  std::vector<std::unique_ptr<Transfer>> transfers_;
  std::vector<Transfer*> unused_;
  bool hasMoved_ = false;
};

void Transport::connect(MosaicBootstrap& bootstrap) {
  matches_ = bootstrap.matches;
  sent_.assign(bootstrap.size, 0);
  received_.assign(bootstrap.size, 0);
  connection_.connect(bootstrap);
}

Transfer& Transport::begin(MosaicMessage& message, uint64_t number, bool isSend) {
  if (unused_.empty()) unused_.push_back(transfers_.emplace_back(std::make_unique<Transfer>()).get());
  Transfer& transfer = *unused_.back();
  unused_.pop_back();
  transfer.transport = this;
  transfer.message = &message;
  transfer.number = number;
  transfer.isSend = isSend;
  transfer.index = active_.size();
  active_.push_back(&transfer);
  return transfer;
}

/// All of the message has moved.
void Transport::end(Transfer& transfer) {
  transfer.message->moved = transfer.message->signature.bytes;
  transfer.message->state = MOSAIC_MESSAGE_DONE;
  hasMoved_ = true;
  active_[transfer.index] = active_.back();
  active_[transfer.index]->index = transfer.index;
  active_.pop_back();
  unused_.push_back(&transfer);
}

// ── sending

void Transport::send(MosaicMessage& message) {
  const uint64_t number = sent_[message.peer]++, bytes = message.signature.bytes;
  if (connection_.closedAfter(message.peer)) {
    message.state = MOSAIC_MESSAGE_CLOSED;
    return;
  }
  Transfer& transfer = begin(message, number, true);
  const bool isInline = bytes <= kInlineBytes;
  transfer.pending = isInline ? 1 : 2;
  transfer.done = call<&Transport::onSent>;
  transfer.header.signature = message.signature;
  if (isInline && bytes > 0) std::memcpy(transfer.header.payload, message.data, bytes);
  const size_t headerBytes = sizeof message.signature + (isInline ? bytes : 0);
  connection_.send(message.peer, Kind::Header, number, &transfer.header, headerBytes, transfer);
  if (!isInline) connection_.send(message.peer, Kind::Payload, number, message.data, bytes, transfer);
}

/// What could not be sent stays under way: the peer is lost, or has closed.
void Transport::onSent(Transfer& transfer, ucs_status_t status) {
  if (status == UCS_OK && --transfer.pending == 0) end(transfer);
}

// ── receiving

void Transport::receive(MosaicMessage& message) {
  const uint64_t number = received_[message.peer]++;
  Transfer& transfer = begin(message, number, false);
  transfer.done = call<&Transport::onHeader>;
  // A header that is too short is that of no signature.
  transfer.header.signature = {};
  connection_.receive(message.peer, Kind::Header, number, &transfer.header, sizeof transfer.header, transfer);
}

void Transport::onHeader(Transfer& transfer, ucs_status_t status) {
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
  transfer.done = call<&Transport::onPayload>;
  connection_.receive(message.peer, Kind::Payload, transfer.number, message.data, bytes, transfer);
}

void Transport::onPayload(Transfer& transfer, ucs_status_t status) {
  if (status == UCS_OK) end(transfer);
}

// ── progress

bool Transport::progress() {
  hasMoved_ |= connection_.progress();
  hasMoved_ |= closeMessages();
  return std::exchange(hasMoved_, false);
}

/// Of peers that have closed, what they will not send, and what they will not receive.
bool Transport::closeMessages() {
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

void Transport::close() { connection_.close(sent_); }

// ── the table

Transport::Transport(const Settings& settings) : table_{}, host_{}, connection_(settings) {
  table_ = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_HOST, "ucx", &host_, nullptr};
  host_.self = this;
  host_.connect = [](void* self, MosaicBootstrap* bootstrap, MosaicFailure* failure) {
    return captured(failure, "connect", [&] { of(self).connect(*bootstrap); });
  };
  host_.interrupt = [](void* self) { of(self).connection_.interrupt(); };
  host_.send = [](void* self, MosaicMessage* message) { of(self).send(*message); };
  host_.receive = [](void* self, MosaicMessage* message) { of(self).receive(*message); };
  host_.progress = [](void* self) -> int { return of(self).progress(); };
  host_.wait = [](void* self, int64_t nanoseconds, int (*ready)(void*), void* arg) {
    of(self).connection_.wait(nanoseconds, ready, arg);
  };
  host_.lost = [](void* self, uint32_t rank) -> int { return of(self).connection_.isLost(rank); };
  host_.cancel = [](void* self) { of(self).connection_.abandon(); };
  host_.close = [](void* self) { of(self).close(); };
  host_.free = [](void* self) {
    // What UCX was stopped in the middle of refers to this for ever.
    if (!of(self).connection_.isInUse()) delete &of(self);
  };
}

}  // namespace

const MosaicTransport* openTransport(const Settings& settings) {
  library();  // throws if none was loaded
  return (new Transport(settings))->table();
}

}  // namespace mosaic::ucx
