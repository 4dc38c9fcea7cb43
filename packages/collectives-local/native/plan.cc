#include "plan.h"

#include <numeric>
#include <stdexcept>

namespace mosaic {

namespace {

// Up to here one step with n times the bytes is faster than two steps.
constexpr uint64_t kOneStepBytes = 8 << 10;

using Counts = std::vector<uint64_t>;

uint64_t sizeOf(const Counts& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

Counts offsets(const Counts& counts) {
  Counts starts(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); i++) starts[i] = starts[i - 1] + counts[i - 1];
  return starts;
}

/// n shares that differ by at most one element.
Counts shares(uint64_t count, uint32_t n) {
  Counts result(n);
  for (uint32_t i = 0; i < n; i++) result[i] = count / n + (i < count % n ? 1 : 0);
  return result;
}

void setShape(Signature& signature, const Counts& shape) {
  signature.axes = static_cast<uint8_t>(std::min<size_t>(shape.size(), kMaxAxes));
  // Of more axes than fit, the outermost become one.
  const size_t folded = shape.size() - signature.axes;
  for (uint32_t axis = 0; axis < signature.axes; axis++) signature.shape[axis] = shape[axis + folded];
  for (size_t axis = 0; axis < folded; axis++) signature.shape[0] *= shape[axis];
}

/// Builds the stages of one call.
class Planner {
 public:
  Planner(const Group& group, const Call& call, const Signature& base)
      : group_(group), call_(call), base_(base), width_(dtypeBytes(call.dtype)) {}

  Stage gather(const Counts& counts, uint8_t* out, const uint8_t* in) const {
    Stage stage;
    const Counts at = offsets(counts);
    stage.copies.push_back({out + at[group_.rank] * width_, in, counts[group_.rank] * width_});
    for (uint32_t peer : others()) {
      stage.sends.push_back(lane(peer, const_cast<uint8_t*>(in), counts[group_.rank]));
      stage.receives.push_back(lane(peer, out + at[peer] * width_, counts[peer]));
    }
    return stage;
  }

  /// Rank j reduces the share counts[j] of every rank's input.
  Stage scatter(const Counts& counts, uint8_t* out, uint8_t* in) const {
    Stage stage;
    const Counts at = offsets(counts);
    for (uint32_t peer : others()) stage.sends.push_back(lane(peer, in + at[peer] * width_, counts[peer]));
    reduceInto(stage, {out, in + at[group_.rank] * width_, counts[group_.rank], call_.dtype, call_.reduce, {}});
    return stage;
  }

  /// Everybody reduces everything.
  Stage reduceAll(uint8_t* x, uint64_t count) const {
    Stage stage;
    for (uint32_t peer : others()) stage.sends.push_back(lane(peer, x, count));
    reduceInto(stage, {x, x, count, call_.dtype, call_.reduce, {}, true});
    return stage;
  }

  Stage toAll() const {
    Stage stage;
    const Counts to = offsets(call_.send), from = offsets(call_.receive);
    const uint32_t self = group_.rank;
    stage.copies.push_back({call_.out + from[self] * width_, call_.in + to[self] * width_, call_.send[self] * width_});
    for (uint32_t peer : others()) {
      stage.sends.push_back(lane(peer, call_.in + to[peer] * width_, call_.send[peer]));
      stage.receives.push_back(lane(peer, call_.out + from[peer] * width_, call_.receive[peer]));
    }
    return stage;
  }

  Stage broadcast() const {
    Stage stage;
    const uint64_t count = sizeOf(call_.shape);
    if (group_.rank != call_.root) {
      stage.receives.push_back(lane(call_.root, call_.out, count));
    } else {
      for (uint32_t peer : others()) stage.sends.push_back(lane(peer, call_.out, count));
    }
    return stage;
  }

  Stage transfers() const {
    Stage stage;
    std::vector<const Transfer*> toSelf, fromSelf;
    for (const Transfer& transfer : call_.transfers) {
      if (transfer.peer == group_.rank) {
        (transfer.send ? toSelf : fromSelf).push_back(&transfer);
      } else {
        append(transfer.send ? stage.sends : stage.receives, transfer);
      }
    }
    if (toSelf.size() != fromSelf.size()) throw std::invalid_argument("sends to itself without as many receives");
    for (size_t i = 0; i < toSelf.size(); i++) {
      if (toSelf[i]->dtype != fromSelf[i]->dtype || toSelf[i]->shape != fromSelf[i]->shape) {
        throw std::invalid_argument("receives from itself what it did not send: shapes or dtypes differ");
      }
      const uint64_t bytes = sizeOf(toSelf[i]->shape) * dtypeBytes(toSelf[i]->dtype);
      stage.copies.push_back({fromSelf[i]->data, toSelf[i]->data, bytes});
    }
    return stage;
  }

 private:
  /// The other ranks, beginning after this one, so that not all send to rank 0 first.
  std::vector<uint32_t> others() const {
    std::vector<uint32_t> peers;
    for (uint32_t i = 1; i < group_.size(); i++) peers.push_back((group_.rank + i) % group_.size());
    return peers;
  }

  Lane lane(uint32_t peer, uint8_t* data, uint64_t count) const {
    Message message{data, base_};
    message.signature.bytes = count * width_;
    return {group_.ranks[peer], {message}};
  }

  void append(std::vector<Lane>& lanes, const Transfer& transfer) const {
    const uint32_t peer = group_.ranks[transfer.peer];
    auto it = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& lane) { return lane.peer == peer; });
    if (it == lanes.end()) it = lanes.insert(it, Lane{peer, {}});
    Message message{transfer.data, base_};
    message.signature.dtype = transfer.dtype;
    message.signature.bytes = sizeOf(transfer.shape) * dtypeBytes(transfer.dtype);
    setShape(message.signature, transfer.shape);
    it->messages.push_back(message);
  }

  void reduceInto(Stage& stage, Reduction reduction) const {
    const uint32_t n = group_.size();
    for (uint32_t peer : others()) stage.receives.push_back(lane(peer, nullptr, reduction.count));
    for (uint32_t rank = 0; rank < n; rank++) {
      reduction.order.push_back(rank == group_.rank ? -1 : static_cast<int>((rank + n - group_.rank) % n) - 1);
    }
    stage.reduction = std::move(reduction);
  }

  const Group& group_;
  const Call& call_;
  const Signature& base_;
  const uint64_t width_;
};

std::vector<Stage> planAllReduce(const Planner& planner, const Group& group, const Call& call) {
  const uint64_t count = sizeOf(call.shape), width = dtypeBytes(call.dtype);
  if (count * width <= kOneStepBytes) return {planner.reduceAll(call.out, count)};
  const Counts counts = shares(count, group.size());
  uint8_t* own = call.out + offsets(counts)[group.rank] * width;
  return {planner.scatter(counts, own, call.out), planner.gather(counts, call.out, own)};
}

}  // namespace

Signature signatureOf(const Group& group, const Call& call, uint64_t sequence, uint64_t index) {
  Signature signature;
  signature.op = call.op;
  signature.dtype = call.dtype;
  signature.reduce = call.reduce;
  signature.group = group.id;
  signature.sequence = sequence;
  signature.index = index;
  signature.root = call.root;
  signature.flatShape = call.ragged;
  if (call.op == OpKind::SendRecv && !call.transfers.empty()) {
    signature.dtype = call.transfers[0].dtype;
    setShape(signature, call.transfers[0].shape);
  } else {
    setShape(signature, call.shape);
  }
  return signature;
}

std::vector<Stage> plan(const Group& group, const Call& call, const Signature& base) {
  const Planner planner(group, call, base);
  switch (call.op) {
    case OpKind::SendRecv:
      return {planner.transfers()};
    case OpKind::AllGather:
    case OpKind::Split:
      return {planner.gather(call.send, call.out, call.in)};
    case OpKind::ReduceScatter:
      return {planner.scatter(call.send, call.out, call.in)};
    case OpKind::AllReduce:
      return planAllReduce(planner, group, call);
    case OpKind::AllToAll:
      return {planner.toAll()};
    case OpKind::Broadcast:
      return {planner.broadcast()};
    case OpKind::Barrier:
      return {planner.gather(Counts(group.size(), 0), nullptr, nullptr)};
  }
  return {};
}

}  // namespace mosaic
