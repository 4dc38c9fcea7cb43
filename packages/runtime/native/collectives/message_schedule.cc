#include "collectives/message_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace mosaic {

namespace {

// Up to this size, one step with n times the bytes is faster than two steps.
constexpr uint64_t kMaxOneShotBytes = 8 << 10;

using Counts = std::vector<uint64_t>;

Counts exclusiveSum(const Counts& counts) {
  Counts offsets(counts.size(), 0);
  for (size_t i = 1; i < counts.size(); i++) offsets[i] = offsets[i - 1] + counts[i - 1];
  return offsets;
}

/// Returns n shares of `count` that differ by at most one element.
Counts balancedCounts(uint64_t count, uint32_t n) {
  Counts result(n);
  for (uint32_t i = 0; i < n; i++) result[i] = count / n + (i < count % n ? 1 : 0);
  return result;
}

bool areCountsEqual(const Counts& counts) {
  return std::all_of(counts.begin(), counts.end(), [&](uint64_t count) { return count == counts[0]; });
}

/// Determines which rank of a host receives the data of a rank on another host: the rank with the same local position
/// as the owner has on its own host, so that the ranks of a host share the work.
class HostReceivers {
 public:
  explicit HostReceivers(const std::vector<uint32_t>& hosts) {
    for (uint32_t rank = 0; rank < hosts.size(); rank++) {
      std::vector<uint32_t>& ranks = ranksByHost_[hosts[rank]];
      localRanks_.push_back(ranks.size());
      ranks.push_back(rank);
    }
  }
  const std::vector<uint32_t>& hostRanks(uint32_t host) const { return ranksByHost_.at(host); }
  uint32_t of(uint32_t owner, uint32_t host) const {
    const std::vector<uint32_t>& ranks = hostRanks(host);
    return ranks[localRanks_[owner] % ranks.size()];
  }

 private:
  std::map<uint32_t, std::vector<uint32_t>> ranksByHost_;
  std::vector<size_t> localRanks_;  // by rank
};

class ScheduleBuilder {
 public:
  ScheduleBuilder(const Group& group, const CollectiveCall& call, const Signature& operationSignature)
      : rank_(group.rank),
        size_(group.size()),
        hosts_(group.hosts),
        call_(call),
        operationSignature_(operationSignature),
        elementSize_(elementBytes(call.dtype)) {}

  MessageSchedule build() {
    switch (call_.op) {
      case OpKind::SendRecv: sendRecv(); break;
      case OpKind::AllGather: allGather(call_.sendCounts, call_.out, call_.in); break;
      case OpKind::ReduceScatter: reduceScatter(call_.sendCounts, call_.out, call_.in); break;
      case OpKind::AllReduce: allReduce(); break;
      case OpKind::AllToAll: allToAll(); break;
      case OpKind::Broadcast: broadcast(); break;
      case OpKind::GroupCast:
      case OpKind::GroupReduce: groupExchange(); break;
      case OpKind::Barrier: allGather(Counts(size_, 0), nullptr, nullptr); break;
      case OpKind::Split: break;
    }
    return std::move(schedule_);
  }

 private:
  void allGather(const Counts& counts, uint8_t* out, const uint8_t* in) {
    Stage& stage = addStage();
    const Counts offsets = exclusiveSum(counts);
    const uint64_t ownBytes = counts[rank_] * elementSize_;
    copy(stage, out + offsets[rank_] * elementSize_, in, ownBytes);
    for (const uint32_t peer : peersInOrder()) {
      send(stage, peer, const_cast<uint8_t*>(in), counts[rank_]);
      receive(stage, peer, out + offsets[peer] * elementSize_, counts[peer]);
    }
    if (size_ > 1 && ownBytes > 0 && areCountsEqual(counts)) {
      stage.transportCollective = TransportCollective{MOSAIC_STREAM_ALL_GATHER, in, out, ownBytes, 0};
    }
  }

  /// Rank j reduces the share of counts[j] elements of every rank's input.
  void reduceScatter(const Counts& counts, uint8_t* out, uint8_t* in) {
    Stage& stage = addStage();
    const Counts offsets = exclusiveSum(counts);
    for (const uint32_t peer : peersInOrder()) send(stage, peer, in + offsets[peer] * elementSize_, counts[peer]);
    reduceInto(stage, {out, in + offsets[rank_] * elementSize_, counts[rank_], false});
  }

  void allReduce() {
    const uint64_t count = elementCount(call_.shape);
    uint8_t* x = call_.out;
    if (count * elementSize_ <= kMaxOneShotBytes) {
      Stage& stage = addStage();
      for (const uint32_t peer : peersInOrder()) send(stage, peer, x, count);
      return reduceInto(stage, {x, x, count, true});
    }
    const Counts counts = balancedCounts(count, size_);
    uint8_t* ownShare = x + exclusiveSum(counts)[rank_] * elementSize_;
    reduceScatter(counts, ownShare, x);
    if (spansSharedHosts()) allGatherByHost(counts, x);
    else allGather(counts, x, ownShare);
  }

  /// Whether the group spans several hosts, with several ranks on at least one of them.
  bool spansSharedHosts() const {
    const std::set<uint32_t> distinctHosts(hosts_.begin(), hosts_.end());
    return distinctHosts.size() > 1 && distinctHosts.size() < size_;
  }

  /// Gathers the shares of x, of which each rank has its own, in two stages. Each share is sent to each other host
  /// once, to a rank that forwards it to the other ranks there.
  void allGatherByHost(const Counts& counts, uint8_t* x) {
    const Counts offsets = exclusiveSum(counts);
    const HostReceivers receivers(hosts_);
    const auto dataOf = [&](uint32_t owner) { return x + offsets[owner] * elementSize_; };
    const auto sendsDirectly = [&](uint32_t from, uint32_t to) {
      return hosts_[from] == hosts_[to] || receivers.of(from, hosts_[to]) == to;
    };
    Stage& directStage = addStage();
    for (const uint32_t peer : peersInOrder()) {
      if (sendsDirectly(rank_, peer)) send(directStage, peer, dataOf(rank_), counts[rank_]);
      if (sendsDirectly(peer, rank_)) receive(directStage, peer, dataOf(peer), counts[peer]);
    }
    Stage& forwardStage = addStage();
    const uint32_t host = hosts_[rank_];
    for (uint32_t owner = 0; owner < size_; owner++) {
      if (hosts_[owner] == host) continue;
      const uint32_t receiver = receivers.of(owner, host);
      if (receiver != rank_) receive(forwardStage, receiver, dataOf(owner), counts[owner]);
      for (const uint32_t peer : receivers.hostRanks(host)) {
        if (receiver == rank_ && peer != rank_) send(forwardStage, peer, dataOf(owner), counts[owner]);
      }
    }
  }

  void allToAll() {
    Stage& stage = addStage();
    const Counts sendOffsets = exclusiveSum(call_.sendCounts), receiveOffsets = exclusiveSum(call_.receiveCounts);
    copy(stage, call_.out + receiveOffsets[rank_] * elementSize_, call_.in + sendOffsets[rank_] * elementSize_,
         call_.sendCounts[rank_] * elementSize_);
    for (const uint32_t peer : peersInOrder()) {
      send(stage, peer, call_.in + sendOffsets[peer] * elementSize_, call_.sendCounts[peer]);
      receive(stage, peer, call_.out + receiveOffsets[peer] * elementSize_, call_.receiveCounts[peer]);
    }
  }

  void broadcast() {
    Stage& stage = addStage();
    const uint64_t count = elementCount(call_.shape);
    if (rank_ != call_.root) receive(stage, call_.root, call_.out, count);
    else
      for (const uint32_t peer : peersInOrder()) send(stage, peer, call_.out, count);
    if (size_ > 1 && count > 0) {
      stage.transportCollective =
          TransportCollective{MOSAIC_STREAM_BROADCAST, call_.out, call_.out, count * elementSize_, call_.root};
    }
  }

  void sendRecv() {
    Stage& stage = addStage();
    std::vector<const Transfer*> selfSends, selfReceives;
    for (const Transfer& transfer : call_.transfers) {
      if (transfer.peer == rank_)
        (transfer.isSend ? selfSends : selfReceives).push_back(&transfer);
      else appendTransfer(stage, transfer);
    }
    if (selfSends.size() != selfReceives.size()) {
      throw std::invalid_argument("expected " + std::to_string(selfSends.size()) +
                                  " receives from self, as many as sends to self, received " +
                                  std::to_string(selfReceives.size()));
    }
    for (size_t i = 0; i < selfSends.size(); i++) {
      if (selfSends[i]->dtype != selfReceives[i]->dtype || selfSends[i]->shape != selfReceives[i]->shape) {
        throw std::invalid_argument("shape or dtype mismatch between a send to self and the receive from self");
      }
      copy(stage, selfReceives[i]->data, selfSends[i]->data,
           elementCount(selfSends[i]->shape) * elementBytes(selfSends[i]->dtype));
    }
  }

  /// Rows are already packed. For each tensor there is one message to every rank that requires some of its rows.
  void groupExchange() {
    Stage& stage = addStage();
    for (const Transfer& transfer : call_.transfers) {
      if (transfer.peer == rank_) {
        throw std::invalid_argument(
            "expected a transfer between different ranks, received a transfer from a rank to itself");
      }
      Message message{transfer.peer, transfer.data, operationSignature_};
      message.signature.dtype = transfer.dtype;
      message.signature.bytes = elementCount(transfer.shape) * elementBytes(transfer.dtype);
      if (transfer.isSend) addSend(stage, std::move(message));
      else addReceive(stage, std::move(message));
    }
  }

  // ── parts of stages

  Stage& addStage() { return schedule_.stages.emplace_back(); }

  /// Returns the other ranks, starting after this one, so that not all ranks send to rank 0 first.
  std::vector<uint32_t> peersInOrder() const {
    std::vector<uint32_t> peers;
    for (uint32_t i = 1; i < size_; i++) peers.push_back((rank_ + i) % size_);
    return peers;
  }

  static void copy(Stage& stage, uint8_t* to, const uint8_t* from, uint64_t bytes) {
    if (bytes > 0 && to != from) stage.copies.push_back({to, from, bytes});
  }

  Message makeMessage(uint32_t peer, uint8_t* data, uint64_t count) const {
    Message message{peer, data, operationSignature_};
    message.signature.bytes = count * elementSize_;
    return message;
  }

  void send(Stage& stage, uint32_t peer, uint8_t* data, uint64_t count) {
    addSend(stage, makeMessage(peer, data, count));
  }

  void receive(Stage& stage, uint32_t peer, uint8_t* data, uint64_t count) {
    addReceive(stage, makeMessage(peer, data, count));
  }

  void appendTransfer(Stage& stage, const Transfer& transfer) {
    Message message{transfer.peer, transfer.data, operationSignature_};
    message.signature.dtype = transfer.dtype;
    message.signature.bytes = elementCount(transfer.shape) * elementBytes(transfer.dtype);
    setShape(message.signature, transfer.shape);
    if (transfer.isSend) addSend(stage, std::move(message));
    else addReceive(stage, std::move(message));
  }

  void addSend(Stage& stage, Message message) {
    schedule_.payload.bytesSent += message.signature.bytes;
    schedule_.payload.messagesSent++;
    stage.sends.push_back(std::move(message));
  }

  void addReceive(Stage& stage, Message message) {
    schedule_.payload.bytesReceived += message.signature.bytes;
    stage.receives.push_back(std::move(message));
  }

  void reduceInto(Stage& stage, const Reduction& reduction) {
    for (uint32_t peer = 0; peer < size_; peer++) {
      if (peer != rank_) receive(stage, peer, nullptr, reduction.count);
    }
    // Omit an empty reduction: the stage could end before the transport has processed it.
    if (reduction.count > 0) stage.reduction = reduction;
  }

  const uint32_t rank_, size_;
  const std::vector<uint32_t>& hosts_;
  const CollectiveCall& call_;
  const Signature& operationSignature_;
  const uint64_t elementSize_;
  MessageSchedule schedule_;
};

}  // namespace

MessageSchedule buildSchedule(const Group& group, const CollectiveCall& call, const Signature& operationSignature) {
  return ScheduleBuilder(group, call, operationSignature).build();
}

}  // namespace mosaic
