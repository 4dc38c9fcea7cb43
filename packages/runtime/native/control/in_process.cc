#include "control/in_process.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "mosaic/clock.h"

namespace mosaic {

const char* const kSameCalls =
    "; all ranks of a group must call the same collectives in the same order, with the same shapes";

namespace {

constexpr size_t kKeptCalls = 64;

std::string seconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(ns) * 1e-9);
  return text;
}

}  // namespace

std::string mismatchMessage(uint32_t a, const std::vector<CallRecord>& callsOfA, uint32_t b,
                            const std::vector<CallRecord>& callsOfB) {
  if (a > b) return mismatchMessage(b, callsOfB, a, callsOfA);
  const auto text = [&](const std::string& ofA, const std::string& ofB) {
    return "rank " + std::to_string(a) + " is at " + ofA + ", rank " + std::to_string(b) + " at " + ofB + kSameCalls;
  };
  for (const CallRecord& call : callsOfA) {
    const auto isSame = [&](const CallRecord& other) { return other.index == call.index; };
    const auto same = std::find_if(callsOfB.begin(), callsOfB.end(), isSame);
    if (same != callsOfB.end() && same->history != call.history) return text(call.description, same->description);
  }
  return text("an earlier collective", "another one");
}

InProcessWorld::InProcessWorld(uint32_t size, int64_t timeoutNs)
    : size_(size), timeoutNs_(timeoutNs), members_(size, Member{0, static_cast<int32_t>(getpid())}), ranks_(size) {}

InProcessControl::InProcessControl(std::shared_ptr<InProcessWorld> world, uint32_t rank)
    : world_(std::move(world)), rank_(rank) {
  const Lock lock(world_->mutex_);
  if (world_->ranks_.at(rank).joined) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: rank " + std::to_string(rank) + " has joined already");
  }
  world_->ranks_[rank].joined = true;
}

InProcessControl::~InProcessControl() { detach(); }

/// Ranks of one process are opened by one thread: each waits for another only where it needs it, in `get`.
void InProcessControl::join() {}

void InProcessControl::interrupt() {
  const Lock lock(world_->mutex_);
  interrupted_ = true;
  world_->changed_.notify_all();
}

void InProcessControl::put(const std::string& key, const std::string& value) {
  const Lock lock(world_->mutex_);
  world_->values_[key] = value;
  world_->changed_.notify_all();
}

std::string InProcessControl::get(const std::string& key) {
  Lock lock(world_->mutex_);
  const auto there = [&] { return interrupted_ || world_->values_.contains(key); };
  const bool came = world_->changed_.wait_for(lock, std::chrono::nanoseconds(world_->timeoutNs_), there);
  if (interrupted_) throw Failure(MOSAIC_FAILURE_CLOSED, "connect: closed while the ranks connected");
  if (came) return world_->values_[key];
  throw Failure(MOSAIC_FAILURE_TIMEOUT, "connect: rendezvous timed out after " + seconds(world_->timeoutNs_) +
                                            ": not all ranks of this process were opened");
}

void InProcessControl::attach(ControlListener* listener) {
  const Lock lock(world_->mutex_);
  world_->ranks_[rank_].listener = listener;
  if (world_->failure_ && world_->failure_->first != rank_) {
    listener->onPeerFailed(world_->failure_->first, world_->failure_->second);
  }
  for (uint32_t peer = 0; peer < world_->size_; peer++) {
    if (world_->ranks_[peer].exited) listener->onPeerExited(peer);
  }
}

void InProcessControl::detach() {
  const Lock lock(world_->mutex_);
  world_->ranks_[rank_].listener = nullptr;
}

template <typename Deliver>
void InProcessControl::toOthers(Deliver deliver) {
  for (uint32_t peer = 0; peer < world_->size_; peer++) {
    ControlListener* listener = world_->ranks_[peer].listener;
    if (peer != rank_ && listener) deliver(*listener);
  }
}

void InProcessControl::reportFailure(const MosaicFailure& cause) {
  const Lock lock(world_->mutex_);
  if (world_->failure_) return;
  world_->failure_ = {rank_, cause};
  toOthers([&](ControlListener& listener) { listener.onPeerFailed(rank_, cause); });
}

void InProcessControl::reportCall(uint64_t group, uint64_t index, uint64_t history, const std::vector<uint32_t>&) {
  const Lock lock(world_->mutex_);
  auto& calls = world_->calls_[group];
  const auto [found, isFirst] = calls.try_emplace(index, InProcessWorld::Reported{history, rank_});
  if (!isFirst && found->second.history != history) reportMismatch(group, found->second.rank, rank_);
  // A history covers all calls before it, so the latest suffice.
  if (calls.size() > kKeptCalls) calls.erase(calls.begin());
}

void InProcessControl::reportMismatch(uint64_t group, uint32_t a, uint32_t b) {
  if (!world_->mismatched_.insert(group).second) return;
  const auto callsOf = [&](uint32_t rank) {
    ControlListener* listener = world_->ranks_[rank].listener;
    return listener ? listener->calls(group) : std::vector<CallRecord>();
  };
  const std::string message = mismatchMessage(a, callsOf(a), b, callsOf(b));
  for (const InProcessWorld::Rank& each : world_->ranks_) {
    if (each.listener) each.listener->onMismatch(group, message);
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
    if (peer.exited) {
      position.activity = Position::Activity::Exited;
      position.last = peer.last;
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

void InProcessControl::leave(const std::string& last) {
  const Lock lock(world_->mutex_);
  world_->ranks_[rank_].exited = true;
  world_->ranks_[rank_].last = last;
  toOthers([&](ControlListener& listener) { listener.onPeerExited(rank_); });
}

}  // namespace mosaic
