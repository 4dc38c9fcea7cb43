// Handles the agent's frames to a rank, and sends the rank's replies.
#include <algorithm>
#include <tuple>
#include <utility>

#include "control/agent_client.h"

namespace mosaic {

using namespace control;

namespace {

/// Codes and activities come from peers and agents, so unknown ones are mapped to DEVICE and Unknown.
MosaicFailureCode toFailureCode(int32_t code) {
  const bool isKnown = code > MOSAIC_FAILURE_NONE && code <= MOSAIC_FAILURE_OUT_OF_MEMORY;
  return isKnown ? static_cast<MosaicFailureCode>(code) : MOSAIC_FAILURE_DEVICE;
}

Position::Activity toActivity(uint8_t activity) {
  return static_cast<Position::Activity>(std::min(activity, static_cast<uint8_t>(Position::Activity::Unknown)));
}

/// Decodes the ranks of a frame, which may be spread over many lists. The number of ranks in a frame is limited to the
/// world size, so that a frame cannot exhaust memory.
class RankRangeDecoder {
 public:
  explicit RankRangeDecoder(uint32_t size) : size_(size), remainingRanks_(size) {}

  std::vector<uint32_t> decode(const RankRanges& ranks) {
    for (const RankRange& range : ranks.ranges) {
      if (uint64_t{range.first} + range.count > size_) {
        throw ProtocolError("expected ranks below " + std::to_string(size_) + ", received " +
                            std::to_string(range.count) + " ranks starting at rank " + std::to_string(range.first));
      }
      if (range.count > remainingRanks_) {
        throw ProtocolError("expected each rank once, received more ranks than the world size");
      }
      remainingRanks_ -= range.count;
    }
    return ranks.ranks();
  }

 private:
  const uint32_t size_;
  uint32_t remainingRanks_;
};

}  // namespace

void AgentClient::handleFrame(const AgentSocket::FrameContent& content) {
  const auto read = [&]<typename Frame>(Frame*) { return decode<Frame>(content.data + 1, content.size - 1); };
#define MOSAIC_READ(Frame) read(static_cast<Frame*>(nullptr))
  switch (static_cast<uint8_t>(content.data[0])) {
    case MemberTable::kType:
      return onMemberTable(MOSAIC_READ(MemberTable));
    case Refused::kType: {
      const auto frame = MOSAIC_READ(Refused);
      return rejectJoin(toFailureCode(frame.code), "connect: " + frame.message);
    }
    case Closed::kType: return endConnection(MOSAIC_READ(Closed).reason);
    case ValueMessage::kType:
      return onValue(MOSAIC_READ(ValueMessage));
    case Exited::kType:
      for (const uint32_t rank : RankRangeDecoder(options_.size).decode(MOSAIC_READ(Exited).ranks)) {
        if (rank != options_.rank) deliver([rank](ControlListener& listener) { listener.onPeerExited(rank); });
      }
      return;
    case Lost::kType:
      return onLost(MOSAIC_READ(Lost));
    case Failed::kType:
      return onFailed(MOSAIC_READ(Failed));
    case Mismatch::kType: {
      const auto frame = MOSAIC_READ(Mismatch);
      return deliver([frame](ControlListener& listener) { listener.onMismatch(frame.group, frame.message); });
    }
    case Colors::kType: {
      auto frame = MOSAIC_READ(Colors);
      const size_t numRanks = RankRangeDecoder(options_.size).decode(frame.ranks).size();
      if (numRanks != frame.colors.size()) {
        throw ProtocolError("expected " + std::to_string(numRanks) + " colors, one per rank, received " +
                            std::to_string(frame.colors.size()));
      }
      return deliver([frame = std::move(frame)](ControlListener& listener) mutable {
        listener.onColors(frame.group, frame.index, std::move(frame.colors));
      });
    }
    case Positions::kType: {
      std::vector<Position> positions;
      const auto frame = MOSAIC_READ(Positions);
      RankRangeDecoder ranks(options_.size);
      for (const RankPosition& position : frame.positions) {
        for (const uint32_t rank : ranks.decode(position.ranks)) {
          positions.push_back({rank, toActivity(position.activity), position.group, position.sequence, position.index,
                               position.operation, position.description, position.last});
        }
      }
      std::sort(positions.begin(), positions.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
      return deliver([request = frame.request, positions = std::move(positions)](ControlListener& listener) mutable {
        listener.onPositions(request, std::move(positions));
      });
    }
    case PositionsQuery::kType:
      return replyPosition(MOSAIC_READ(PositionsQuery));
    case CallLogQuery::kType:
      return replyCallLog(MOSAIC_READ(CallLogQuery));
    default:
      throw ProtocolError("expected a frame type sent by agents, received type " +
                          std::to_string(static_cast<uint8_t>(content.data[0])));
  }
#undef MOSAIC_READ
}

void AgentClient::onMemberTable(MemberTable frame) {
  if (frame.members.size() != options_.size) {
    throw ProtocolError("expected a member table of " + std::to_string(options_.size) + " ranks, received " +
                        std::to_string(frame.members.size()));
  }
  {
    const Lock lock(mutex_);
    if (state_ != State::Connecting) throw ProtocolError("expected one member table, received a second member table");
    for (const MemberEntry& member : frame.members) {
      if (member.host >= frame.hosts.size()) {
        throw ProtocolError("expected a host index below " + std::to_string(frame.hosts.size()) + ", received " +
                            std::to_string(member.host));
      }
      members_.push_back({member.host, member.pid});
    }
    hosts_ = std::move(frame.hosts);
    state_ = State::Joined;
  }
  stateChangedCondition_.notify_all();
}

void AgentClient::onValue(ValueMessage frame) {
  {
    const Lock lock(mutex_);
    const auto entry = pendingGets_.find(frame.key);
    if (entry != pendingGets_.end()) entry->second.value = std::move(frame.value.bytes);
  }
  stateChangedCondition_.notify_all();
}

void AgentClient::onLost(const Lost& frame) {
  RankRangeDecoder ranks(options_.size);
  for (const Loss& loss : frame.losses) {
    for (const uint32_t rank : ranks.decode(loss.ranks)) {
      if (rank == options_.rank) continue;
      const std::string process = describeProcess(rank, loss.reason);
      {
        const Lock lock(mutex_);
        const std::string text = "connect: " + process + " exited while the ranks were connecting";
        if (!peerFailure_) peerFailure_ = failureRecord(MOSAIC_FAILURE_PEER_LOST, text);
      }
      deliver([rank, process](ControlListener& listener) { listener.onPeerLost(rank, process); });
    }
  }
  stateChangedCondition_.notify_all();
}

void AgentClient::onFailed(const Failed& frame) {
  if (frame.rank >= options_.size) {
    throw ProtocolError("expected a rank below " + std::to_string(options_.size) + ", received " +
                        std::to_string(frame.rank));
  }
  if (frame.rank == options_.rank) return;
  const MosaicFailure cause = failureRecord(toFailureCode(frame.code), frame.message);
  {
    const Lock lock(mutex_);
    if (!peerFailure_) peerFailure_ = cause;
  }
  stateChangedCondition_.notify_all();
  deliver([rank = frame.rank, cause](ControlListener& listener) { listener.onPeerFailed(rank, cause); });
}

void AgentClient::replyPosition(const PositionsQuery& query) {
  PositionsReply reply;
  reply.query = query.query;
  {
    const std::lock_guard lock(listenerMutex_);
    if (!isDetached_) {
      Position position;
      position.activity = Position::Activity::Idle;
      std::vector<RankMetrics> metrics;
      if (listener_ && query.metrics != 0) {
        Metrics sampledMetrics;
        std::tie(position, sampledMetrics) = listener_->sample();
        const auto& [time, steps, step, sinceStep, waitedNs, sent, received, reserved, peak, resident] = sampledMetrics;
        metrics.push_back({time, steps, step, sinceStep, waitedNs, sent, received, reserved, peak, resident});
      } else if (listener_) {
        position = listener_->position();
      }
      reply.positions.push_back({RankRanges::of({options_.rank}), static_cast<uint8_t>(position.activity),
                                 position.group, position.sequence, position.index, position.operation,
                                 position.description, position.last, std::move(metrics)});
    }
  }
  send(encode(reply));
}

void AgentClient::replyCallLog(const CallLogQuery& query) {
  CallLogReply reply;
  reply.query = query.query;
  reply.rank = options_.rank;
  {
    const std::lock_guard lock(listenerMutex_);
    if (listener_) {
      for (const CallRecord& call : listener_->calls(query.group)) {
        reply.calls.push_back({call.index, call.history, call.description});
      }
    }
  }
  send(encode(reply));
}

}  // namespace mosaic
