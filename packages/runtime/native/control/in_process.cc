#include "control/in_process.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "mosaic/clock.h"

namespace mosaic {

namespace {

constexpr size_t kMaxLoggedCalls = 64;

std::vector<Member> makeMembers(const std::vector<uint32_t>& hosts, uint32_t size) {
  std::vector<Member> members(size, Member{0, static_cast<int32_t>(getpid())});
  for (size_t rank = 0; rank < std::min(members.size(), hosts.size()); rank++) members[rank].host = hosts[rank];
  return members;
}

}  // namespace

InProcessWorld::InProcessWorld(uint32_t size, int64_t timeoutNs, const std::vector<uint32_t>& hosts)
    : size_(size), timeoutNs_(timeoutNs), members_(makeMembers(hosts, size)), ranks_(size) {}

InProcessControl::InProcessControl(std::shared_ptr<InProcessWorld> world, uint32_t rank)
    : world_(std::move(world)), rank_(rank) {
  const Lock lock(world_->mutex_);
  if (rank >= world_->size_) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: expected a rank below the world size " +
                                               std::to_string(world_->size_) + ", received " + rankName(rank));
  }
  if (world_->ranks_[rank].hasJoined) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: expected each rank once, received " + rankName(rank) +
                                               " a second time");
  }
  world_->ranks_[rank].hasJoined = true;
}

InProcessControl::~InProcessControl() {
  const Lock lock(world_->mutex_);
  detach();
  if (hasLeft_) return;
  InProcessWorld::Rank& self = world_->ranks_[rank_];
  // A rank that never joined may be opened again.
  self.hasJoined = self.isLost = hasJoined_;
  if (!hasJoined_) return;
  notifyPeers([&](ControlListener& listener) { listener.onPeerLost(rank_, describeProcess(rank_)); });
  world_->stateChangedCondition_.notify_all();
}

/// Ranks of one process are opened by one thread, so they do not wait here. A rank waits for others only in `get`.
void InProcessControl::join() {
  const Lock lock(world_->mutex_);
  if (isInterrupted_) throw Failure(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
  hasJoined_ = true;
}

void InProcessControl::interrupt() {
  const Lock lock(world_->mutex_);
  isInterrupted_ = true;
  world_->stateChangedCondition_.notify_all();
}

void InProcessControl::put(const std::string& key, const std::string& value) {
  throwIfValueTooLong(key, value);
  const Lock lock(world_->mutex_);
  world_->values_.try_emplace(key, value);
  world_->stateChangedCondition_.notify_all();
}

std::optional<MosaicFailure> InProcessControl::peerFailure() const {
  if (world_->failure_ && world_->failure_->first != rank_) return world_->failure_->second;
  for (uint32_t peer = 0; peer < world_->size_; peer++) {
    if (!world_->ranks_[peer].isLost) continue;
    return failureRecord(MOSAIC_FAILURE_PEER_LOST,
                         "connect: " + describeProcess(peer) + " exited while the ranks were connecting");
  }
  return std::nullopt;
}

std::string InProcessControl::get(const std::string& key) {
  Lock lock(world_->mutex_);
  const auto isFinished = [&] { return isInterrupted_ || world_->values_.contains(key) || peerFailure(); };
  world_->stateChangedCondition_.wait_for(lock, std::chrono::nanoseconds(world_->timeoutNs_), isFinished);
  if (isInterrupted_) throw Failure(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
  if (const auto entry = world_->values_.find(key); entry != world_->values_.end()) return entry->second;
  if (const auto failure = peerFailure()) throw Failure(*failure);
  throw Failure(MOSAIC_FAILURE_TIMEOUT, "connect: rendezvous timed out after " + formatSeconds(world_->timeoutNs_) +
                                            ": not all ranks of this process have connected");
}

/// Does not wait, because a value is available as soon as a rank has put it.
std::optional<std::string> InProcessControl::find(const std::string& key, int64_t) {
  const Lock lock(world_->mutex_);
  const auto entry = world_->values_.find(key);
  return entry == world_->values_.end() ? std::nullopt : std::optional(entry->second);
}

void InProcessControl::attach(ControlListener* listener) {
  const Lock lock(world_->mutex_);
  world_->ranks_[rank_].listener = listener;
  if (world_->failure_ && world_->failure_->first != rank_) {
    listener->onPeerFailed(world_->failure_->first, world_->failure_->second);
  }
  for (uint32_t peer = 0; peer < world_->size_; peer++) {
    if (world_->ranks_[peer].hasExited) listener->onPeerExited(peer);
    if (world_->ranks_[peer].isLost) listener->onPeerLost(peer, describeProcess(peer));
  }
}

void InProcessControl::detach() {
  const Lock lock(world_->mutex_);
  world_->ranks_[rank_].listener = nullptr;
}

template <typename Deliver>
void InProcessControl::notifyPeers(Deliver deliver) {
  for (uint32_t peer = 0; peer < world_->size_; peer++) {
    ControlListener* listener = world_->ranks_[peer].listener;
    if (peer != rank_ && listener) deliver(*listener);
  }
}

void InProcessControl::reportFailure(const MosaicFailure& cause) {
  const Lock lock(world_->mutex_);
  if (world_->failure_) return;
  world_->failure_ = {rank_, cause};
  world_->stateChangedCondition_.notify_all();
  notifyPeers([&](ControlListener& listener) { listener.onPeerFailed(rank_, cause); });
}

void InProcessControl::reportCall(uint64_t group, uint64_t index, uint64_t history, const std::vector<uint32_t>&) {
  const Lock lock(world_->mutex_);
  auto& calls = world_->calls_[group];
  const auto [entry, isFirst] = calls.try_emplace(index, InProcessWorld::ReportedCall{history, rank_});
  if (!isFirst && entry->second.history != history) reportMismatch(group, entry->second.rank, rank_);
  // A history includes all calls before it, so the latest are sufficient.
  if (calls.size() > kMaxLoggedCalls) calls.erase(calls.begin());
}

void InProcessControl::reportMismatch(uint64_t group, uint32_t a, uint32_t b) {
  if (!world_->mismatchedGroups_.insert(group).second) return;
  const auto getCalls = [&](uint32_t rank) {
    ControlListener* listener = world_->ranks_[rank].listener;
    return listener ? listener->calls(group) : std::vector<CallRecord>();
  };
  const std::string message = mismatchMessage(a, getCalls(a), b, getCalls(b));
  for (const InProcessWorld::Rank& peer : world_->ranks_) {
    if (peer.listener) peer.listener->onMismatch(group, message);
  }
}

void InProcessControl::split(uint64_t group, uint64_t index, const std::vector<uint32_t>& ranks, int64_t color) {
  const Lock lock(world_->mutex_);
  auto& split = world_->splits_[{group, index}];
  split.colors[rank_] = color;
  if (split.colors.size() < ranks.size()) return;
  std::vector<int64_t> colors;
  for (const uint32_t rank : ranks) colors.push_back(split.colors[rank]);
  for (const uint32_t rank : ranks) {
    if (ControlListener* listener = world_->ranks_[rank].listener) listener->onColors(group, index, colors);
  }
  world_->splits_.erase({group, index});
}

void InProcessControl::requestPositions(uint64_t request, const std::vector<uint32_t>& ranks) {
  const Lock lock(world_->mutex_);
  std::vector<Position> positions;
  for (const uint32_t rank : ranks) {
    const InProcessWorld::Rank& peer = world_->ranks_[rank];
    Position position;
    if (peer.isLost) {
      position.activity = Position::Activity::Failed;
    } else if (peer.hasExited) {
      position.activity = Position::Activity::Exited;
      position.last = peer.lastOperation;
    } else if (peer.listener) {
      position = peer.listener->position();
    } else {
      continue;
    }
    position.rank = rank;
    positions.push_back(std::move(position));
  }
  if (ControlListener* self = world_->ranks_[rank_].listener) self->onPositions(request, std::move(positions));
}

void InProcessControl::leave(const std::string& lastOperation) {
  const Lock lock(world_->mutex_);
  hasLeft_ = true;
  world_->ranks_[rank_].hasExited = true;
  world_->ranks_[rank_].lastOperation = lastOperation;
  notifyPeers([&](ControlListener& listener) { listener.onPeerExited(rank_); });
}

}  // namespace mosaic
