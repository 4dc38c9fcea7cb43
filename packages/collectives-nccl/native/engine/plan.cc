#include "engine/plan.h"

#include <algorithm>
#include <numeric>

namespace mosaic::nccl {

namespace {

// Up to here one step with n times the bytes is faster than two steps.
constexpr uint64_t kOneStepBytes = 8 << 10;

Counts offsets(const Counts& counts) {
  Counts starts(counts.size(), 0);
  std::partial_sum(counts.begin(), counts.end() - 1, starts.begin() + 1);
  return starts;
}

/// n shares that differ by at most one element.
Counts shares(uint64_t count, uint32_t n) {
  Counts result(n);
  for (uint32_t i = 0; i < n; i++) result[i] = count / n + (i < count % n ? 1 : 0);
  return result;
}

uint64_t addressOf(const void* data) { return reinterpret_cast<uintptr_t>(data); }

bool equal(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](uint64_t count) { return count == counts[0]; });
}

class Planner {
 public:
  Planner(const Group& group, const Call& call)
      : rank_(group.rank), size_(group.size()), call_(call), width_(bytesOf(call.dtype)), in_(addressOf(call.in)),
        out_(addressOf(call.out)) {}

  Plan plan() {
    switch (call_.op) {
      case OpKind::SendRecv: transfers(); break;
      case OpKind::AllGather: gather(call_.send, out_, in_); break;
      case OpKind::ReduceScatter: scatter(call_.send, out_, in_); break;
      case OpKind::AllReduce: allReduce(); break;
      case OpKind::AllToAll: toAll(); break;
      case OpKind::Broadcast: broadcast(); break;
      case OpKind::Barrier: barrier(); break;
      case OpKind::Split: break;
    }
    return std::move(plan_);
  }

 private:
  void gather(const Counts& counts, uint64_t out, uint64_t in) {
    Stage& stage = next();
    const Counts at = offsets(counts);
    const uint64_t own = counts[rank_] * width_;
    for (const uint32_t peer : others()) {
      send(stage, peer, in, own);
      receive(stage, peer, out + at[peer] * width_, counts[peer] * width_);
    }
    const uint64_t to = out + at[rank_] * width_;
    if (size_ > 1 && own > 0 && equal(counts)) {
      // Ring, tree or multicast, as NCCL sees fit.
      stage = {{}, {}, {}, Whole{Whole::Kind::Gather, in, out, own}, {}};
    } else if (to != in) {
      copy(stage, to, in, own);
    }
  }

  /// Rank j reduces the share counts[j] of every rank's input.
  void scatter(const Counts& counts, uint64_t out, uint64_t in) {
    Stage& stage = next();
    const Counts at = offsets(counts);
    for (const uint32_t peer : others()) send(stage, peer, in + at[peer] * width_, counts[peer] * width_);
    reduceInto(stage, out, in + at[rank_] * width_, counts[rank_]);
  }

  void allReduce() {
    const uint64_t count = sizeOf(call_.shape);
    if (count * width_ <= kOneStepBytes) {
      Stage& stage = next();
      for (const uint32_t peer : others()) send(stage, peer, out_, count * width_);
      return reduceInto(stage, out_, out_, count);
    }
    const Counts counts = shares(count, size_);
    const uint64_t own = out_ + offsets(counts)[rank_] * width_;
    scatter(counts, own, out_);
    gather(counts, out_, own);
  }

  void toAll() {
    Stage& stage = next();
    const Counts to = offsets(call_.send), from = offsets(call_.receive);
    copy(stage, out_ + from[rank_] * width_, in_ + to[rank_] * width_, call_.send[rank_] * width_);
    for (const uint32_t peer : others()) {
      send(stage, peer, in_ + to[peer] * width_, call_.send[peer] * width_);
      receive(stage, peer, out_ + from[peer] * width_, call_.receive[peer] * width_);
    }
  }

  void broadcast() {
    const uint64_t bytes = sizeOf(call_.shape) * width_;
    if (size_ == 1 || bytes == 0) return;
    next().whole = Whole{Whole::Kind::Broadcast, out_, out_, bytes, call_.root};
    if (rank_ == call_.root) {
      plan_.payload.sent += bytes * (size_ - 1);
      plan_.payload.messages += size_ - 1;
    } else {
      plan_.payload.received += bytes;
    }
  }

  /// A byte of each rank, which nobody looks at.
  void barrier() {
    if (size_ == 1) return;
    next().whole = Whole{Whole::Kind::Gather, rank_, 0, 1, 0, true};
    plan_.stagingBytes = size_;
  }

  void transfers() {
    Stage& stage = next();
    std::vector<const Transfer*> toSelf, fromSelf;
    for (const Transfer& transfer : call_.transfers) {
      const uint64_t bytes = sizeOf(transfer.shape) * bytesOf(transfer.dtype);
      if (transfer.peer == rank_) (transfer.send ? toSelf : fromSelf).push_back(&transfer);
      else if (transfer.send) send(stage, transfer.peer, addressOf(transfer.data), bytes);
      else receive(stage, transfer.peer, addressOf(transfer.data), bytes);
    }
    for (size_t i = 0; i < std::min(toSelf.size(), fromSelf.size()); i++) {
      const uint64_t bytes = sizeOf(toSelf[i]->shape) * bytesOf(toSelf[i]->dtype);
      copy(stage, addressOf(fromSelf[i]->data), addressOf(toSelf[i]->data), bytes);
    }
  }

  // ── parts of stages

  Stage& next() { return plan_.stages.emplace_back(); }

  /// The other ranks, beginning after this one, so that not all send to rank 0 first.
  std::vector<uint32_t> others() const {
    std::vector<uint32_t> peers;
    for (uint32_t i = 1; i < size_; i++) peers.push_back((rank_ + i) % size_);
    return peers;
  }

  static void copy(Stage& stage, uint64_t to, uint64_t from, uint64_t bytes) {
    if (bytes > 0) stage.copies.push_back({to, from, bytes});
  }

  /// Both sides know the size, so nothing need travel where it is 0.
  void send(Stage& stage, uint32_t peer, uint64_t at, uint64_t bytes) {
    plan_.payload.sent += bytes;
    plan_.payload.messages++;
    if (bytes > 0) stage.sends.push_back({peer, at, bytes});
  }

  void receive(Stage& stage, uint32_t peer, uint64_t at, uint64_t bytes, bool staged = false) {
    plan_.payload.received += bytes;
    if (bytes > 0) stage.receives.push_back({peer, at, bytes, staged});
  }

  void reduceInto(Stage& stage, uint64_t out, uint64_t own, uint64_t count) {
    const uint64_t bytes = count * width_;
    uint64_t at = 0;
    for (uint32_t peer = 0; peer < size_; peer++) {
      if (peer == rank_) continue;
      receive(stage, peer, at, bytes, true);
      at += bytes;
    }
    plan_.stagingBytes = std::max(plan_.stagingBytes, at);
    if (count == 0) return;
    stage.reduction = MosaicRankReduction{out,
                                          own,
                                          0,
                                          static_cast<int64_t>(count),
                                          static_cast<int32_t>(size_),
                                          static_cast<int32_t>(rank_),
                                          call_.dtype,
                                          call_.reduce};
  }

  const uint32_t rank_, size_;
  const Call& call_;
  const uint64_t width_, in_, out_;
  Plan plan_;
};

}  // namespace

Plan planOf(const Group& group, const Call& call) { return Planner(group, call).plan(); }

}  // namespace mosaic::nccl
