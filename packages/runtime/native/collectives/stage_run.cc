#include "collectives/stage_run.h"

#include <algorithm>
#include <cstring>

#include "mosaic/reduction.h"

namespace mosaic {

StageRun::StageRun(const MosaicHostTransport& transport, const Operation& op, const Stage& stage)
    : transport_(transport), sends_(stage.sends.size()), receives_(stage.receives.size()) {
  const auto fill = [&](MosaicMessage& to, const Message& from) {
    to.data = from.data;
    to.peer = op.group->ranks[from.peer];
    to.signature = from.signature;
  };
  for (size_t i = 0; i < sends_.size(); i++) fill(sends_[i], stage.sends[i]);
  for (size_t i = 0; i < receives_.size(); i++) fill(receives_[i], stage.receives[i]);
  if (stage.reduction) prepare(op, *stage.reduction);
  for (const Copy& copy : stage.copies) std::memmove(copy.to, copy.from, copy.bytes);
  for (MosaicMessage& message : sends_) transport_.send(transport_.self, &message);
  if (stage.reduction && transport_.reduce) {
    transport_.reduce(transport_.self, &reduction_);
  } else {
    for (MosaicMessage& message : receives_) transport_.receive(transport_.self, &message);
  }
}

void StageRun::prepare(const Operation& op, const Reduction& reduction) {
  reduction_ = {reduction.out,
                reduction.own,
                reduction.count,
                op.signature.dtype,
                op.signature.reduce,
                static_cast<uint8_t>(reduction.afterSends),
                op.group->size(),
                op.group->rank,
                receives_.data(),
                sends_.data(),
                static_cast<uint32_t>(sends_.size()),
                0};
  if (transport_.reduce) return;
  const uint64_t bytes = reduction.count * elementBytes(op.signature.dtype);
  operands_ = std::make_unique<uint8_t[]>(bytes * receives_.size() + 1);
  for (size_t i = 0; i < receives_.size(); i++) receives_[i].data = operands_.get() + i * bytes;
}

bool StageRun::progress() {
  const bool moved = transport_.progress(transport_.self) != 0;
  while (firstSend_ < sends_.size() && sends_[firstSend_].state == MOSAIC_MESSAGE_DONE) firstSend_++;
  while (firstReceive_ < receives_.size() && receives_[firstReceive_].state == MOSAIC_MESSAGE_DONE) firstReceive_++;
  if (operands_ && areMessagesDone()) add();
  return moved;
}

const MosaicMessage* StageRun::fault() const {
  for (const auto* messages : {&receives_, &sends_}) {
    for (const MosaicMessage& each : *messages) {
      if (each.state == MOSAIC_MESSAGE_MISMATCH || each.state == MOSAIC_MESSAGE_CLOSED) return &each;
    }
  }
  return nullptr;
}

/// For transports that do not reduce: all operands have arrived.
void StageRun::add() {
  constexpr uint64_t kBlock = 4096;  // elements
  MosaicReduction& r = reduction_;
  const auto dtype = static_cast<DType>(r.dtype);
  const auto op = static_cast<ReduceOp>(r.op);
  const uint64_t width = elementBytes(r.dtype);
  alignas(64) float acc[kBlock];
  while (r.reduced < r.count) {
    const uint64_t count = std::min(kBlock, r.count - r.reduced), at = r.reduced * width;
    for (uint32_t i = 0, next = 0; i < r.ranks; i++) {
      const uint8_t* operand = i == r.position ? r.own : receives_[next++].data;
      reduction::accumulate(acc, operand + at, count, dtype, op, i == 0);
    }
    reduction::finish(r.out + at, acc, count, dtype, op, r.ranks);
    r.reduced += count;
  }
  operands_.reset();
}

}  // namespace mosaic
