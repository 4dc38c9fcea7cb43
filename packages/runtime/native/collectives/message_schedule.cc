#include "collectives/message_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace mosaic {

namespace {

// Up to this size, one step with n times the bytes is faster than two steps.
constexpr uint64_t kMaxOneShotBytes = 8 << 10;

// A broadcast between hosts from this size on is divided among the ranks of a host, which forward the parts.
constexpr uint64_t kMinDividedBroadcastBytes = 64 << 10;

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

/// Determines which rank of a host receives a share from outside of the host and forwards it: the rank at the share's
/// position there, so that the ranks of a host divide the work.
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
  /// Returns the position of a rank on its host.
  size_t localRank(uint32_t rank) const { return localRanks_[rank]; }
  size_t maxRanksPerHost() const {
    size_t result = 0;
    for (const auto& [host, ranks] : ranksByHost_) result = std::max(result, ranks.size());
    return result;
  }
  uint32_t at(size_t position, uint32_t host) const {
    const std::vector<uint32_t>& ranks = hostRanks(host);
    return ranks[position % ranks.size()];
  }

 private:
  std::map<uint32_t, std::vector<uint32_t>> ranksByHost_;
  std::vector<size_t> localRanks_;  // by rank
};

/// Data that its owner sends to all other ranks.
struct Share {
  uint32_t owner;   // rank in the group
  size_t position;  // of its receiver on each host
  uint8_t* data;    // on this rank
  uint64_t count;   // in elements
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
      case OpKind::Barrier: allGatherDirectly(Counts(size_, 0), nullptr, nullptr); break;
      case OpKind::Split: break;
    }
    return std::move(schedule_);
  }

 private:
  void allGather(const Counts& counts, uint8_t* out, uint8_t* in) {
    if (!spansSharedHosts()) return allGatherDirectly(counts, out, in);
    const Counts offsets = exclusiveSum(counts);
    const HostReceivers receivers(hosts_);
    std::vector<Share> shares;
    for (uint32_t owner = 0; owner < size_; owner++) {
      uint8_t* data = owner == rank_ ? in : out + offsets[owner] * elementSize_;
      shares.push_back({owner, receivers.localRank(owner), data, counts[owner]});
    }
    sendToAllByHost(receivers, shares);
    copy(schedule_.stages[0], out + offsets[rank_] * elementSize_, in, counts[rank_] * elementSize_);
  }

  void allGatherDirectly(const Counts& counts, uint8_t* out, const uint8_t* in) {
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
    allGather(counts, x, ownShare);
  }

  /// Whether the group spans several hosts, with several ranks on at least one of them.
  bool spansSharedHosts() const {
    const std::set<uint32_t> distinctHosts(hosts_.begin(), hosts_.end());
    return distinctHosts.size() > 1 && distinctHosts.size() < size_;
  }

  /// Sends shares to all ranks in two stages. In the first, each owner sends its shares to one rank of every host. In
  /// the second, this rank forwards them to the other ranks of its host. An owner does so itself in the first stage.
  void sendToAllByHost(const HostReceivers& receivers, const std::vector<Share>& shares) {
    const auto senderTo = [&](uint32_t rank, const Share& share) {
      const uint32_t receiver = receivers.at(share.position, hosts_[rank]);
      return receiver == rank ? share.owner : receiver;
    };
    const std::vector<uint32_t> peers = peersInOrder();
    std::vector<uint32_t> localPeers;
    std::copy_if(peers.begin(), peers.end(), std::back_inserter(localPeers),
                 [&](uint32_t peer) { return hosts_[peer] == hosts_[rank_]; });
    for (const bool isForwarding : {false, true}) {
      Stage& stage = addStage();
      for (const Share& share : shares) {
        const bool isOwner = share.owner == rank_;
        if (isOwner == isForwarding) continue;
        if (!isOwner && receivers.at(share.position, hosts_[rank_]) != rank_) continue;
        for (const uint32_t peer : isOwner ? peers : localPeers) {
          if (peer != share.owner && senderTo(peer, share) == rank_) send(stage, peer, share.data, share.count);
        }
      }
      for (const Share& share : shares) {
        if (share.owner == rank_) continue;
        const uint32_t sender = senderTo(rank_, share);
        if ((sender == share.owner) != isForwarding) receive(stage, sender, share.data, share.count);
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
    const uint64_t count = elementCount(call_.shape);
    if (spansSharedHosts()) return broadcastByHost(count);
    Stage& stage = addStage();
    if (rank_ != call_.root) receive(stage, call_.root, call_.out, count);
    else
      for (const uint32_t peer : peersInOrder()) send(stage, peer, call_.out, count);
    if (size_ > 1 && count > 0) {
      stage.transportCollective =
          TransportCollective{MOSAIC_STREAM_BROADCAST, call_.out, call_.out, count * elementSize_, call_.root};
    }
  }

  /// Divides a large tensor into as many shares as a host has ranks, so that all of them forward.
  void broadcastByHost(uint64_t count) {
    const HostReceivers receivers(hosts_);
    const bool isLarge = count * elementSize_ >= kMinDividedBroadcastBytes;
    const Counts counts = balancedCounts(count, isLarge ? static_cast<uint32_t>(receivers.maxRanksPerHost()) : 1);
    const Counts offsets = exclusiveSum(counts);
    std::vector<Share> shares;
    for (size_t i = 0; i < counts.size(); i++) {
      uint8_t* data = call_.out + offsets[i] * elementSize_;
      shares.push_back({call_.root, receivers.localRank(call_.root) + i, data, counts[i]});
    }
    sendToAllByHost(receivers, shares);
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
