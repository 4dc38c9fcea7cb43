#include "exchange.h"

namespace mosaic {

namespace {

// What one lane moves before the others get their turn, and before the other side hears of it.
constexpr uint64_t kChunk = 128 << 10;
constexpr uint64_t kReduceBlock = 4096;  // elements

bool allDone(const std::vector<Lane>& lanes) {
  return std::all_of(lanes.begin(), lanes.end(), [](const Lane& lane) { return lane.done(); });
}

void advance(Lane& lane) {
  if (lane.moved < lane.messages[lane.next].signature.bytes) return;
  lane.next++;
  lane.open = false;
  lane.moved = 0;
}

}  // namespace

Exchange::Exchange(const Segment& segment, uint32_t rank, Stage& stage, Bytes& bytes)
    : segment_(segment), rank_(rank), stage_(stage), bytes_(bytes) {
  for (const Copy& copy : stage.copies) {
    if (copy.bytes && copy.to != copy.from) std::memmove(copy.to, copy.from, copy.bytes);
  }
}

bool Exchange::sent() const { return allDone(stage_.sends); }

bool Exchange::done() const {
  if (stage_.reduction && stage_.reduction->reduced < stage_.reduction->count) return false;
  return sent() && allDone(stage_.receives);
}

bool Exchange::step() {
  bool moved = false;
  for (Lane& lane : stage_.sends) moved |= send(lane);
  for (Lane& lane : stage_.receives) moved |= receive(lane);
  if (stage_.reduction && !mismatch_) moved |= reduce(*stage_.reduction);
  return moved;
}

bool Exchange::send(Lane& lane) {
  Channel channel = outgoing(lane);
  uint64_t budget = kChunk;
  bool moved = false;
  while (!lane.done() && budget > 0) {
    Message& message = lane.messages[lane.next];
    if (!lane.open) {
      // A header goes in whole or not at all: the reader may look at it in place.
      if (channel.writable() < sizeof(Signature)) break;
      channel.write(&message.signature, sizeof(Signature));
      lane.open = moved = true;
      bytes_.messages++;
    }
    const uint64_t wanted = std::min(budget, message.signature.bytes - lane.moved);
    const uint64_t count = channel.write(message.data + lane.moved, wanted);
    lane.moved += count;
    bytes_.sent += count;
    budget -= count;
    moved |= count > 0;
    if (lane.moved < message.signature.bytes && count == 0) break;
    advance(lane);
  }
  if (moved) ring(lane);
  return moved;
}

bool Exchange::open(Lane& lane, Channel& channel) {
  if (channel.readable() < sizeof(Signature)) return false;
  Signature received;
  channel.read(&received, sizeof received);
  lane.open = true;
  const Signature& expected = lane.messages[lane.next].signature;
  if (!matches(expected, received) && !mismatch_) mismatch_ = Mismatch{lane.peer, expected, received};
  return true;
}

bool Exchange::receive(Lane& lane) {
  Channel channel = incoming(lane);
  uint64_t budget = kChunk;
  bool moved = false;
  while (!lane.done() && budget > 0 && !mismatch_) {
    if (!lane.open) {
      if (!open(lane, channel)) break;
      moved = true;
      if (mismatch_) break;
    }
    Message& message = lane.messages[lane.next];
    // Of an operand of a reduction, the payload stays in the ring until all ranks' operands are there.
    if (stage_.reduction && message.signature.bytes > 0) break;
    const uint64_t wanted = std::min(budget, message.signature.bytes - lane.moved);
    const uint64_t count = channel.read(message.data + lane.moved, wanted);
    lane.moved += count;
    bytes_.received += count;
    budget -= count;
    moved |= count > 0;
    if (lane.moved < message.signature.bytes && count == 0) break;
    advance(lane);
  }
  // A writer that sleeps before a full ring is worth waking only for a good piece of it.
  if (moved && (lane.done() || channel.halfEmpty())) ring(lane);
  return moved;
}

bool Exchange::reduce(Reduction& r) {
  if (r.afterSends && !sent()) return false;
  const uint64_t width = dtypeBytes(r.dtype);
  alignas(64) float acc[kReduceBlock];
  alignas(64) float bounce[kReduceBlock];
  bool moved = false;
  while (r.reduced < r.count) {
    uint64_t ready = std::min(kReduceBlock, r.count - r.reduced);
    for (Lane& lane : stage_.receives) {
      ready = std::min(ready, lane.open ? incoming(lane).readable() / width : 0);
    }
    // Whole blocks only, but for the last: a trickle would cost more than it hides.
    if (ready < std::min(kReduceBlock, r.count - r.reduced)) break;
    for (size_t i = 0; i < r.order.size(); i++) {
      const void* operand = r.own + r.reduced * width;
      if (r.order[i] >= 0) operand = incoming(stage_.receives[r.order[i]]).peek(ready * width, bounce);
      accumulate(acc, operand, ready, r.dtype, r.op, i == 0);
    }
    finish(r.out + r.reduced * width, acc, ready, r.dtype, r.op, static_cast<uint32_t>(r.order.size()));
    for (Lane& lane : stage_.receives) {
      incoming(lane).consume(ready * width);
      lane.moved += ready * width;
      bytes_.received += ready * width;
      advance(lane);
      if (lane.done() || incoming(lane).halfEmpty()) ring(lane);
    }
    r.reduced += ready;
    moved = true;
  }
  return moved;
}

}  // namespace mosaic
