#include "control/agent_client.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "mosaic/clock.h"
#include "mosaic/thread.h"

namespace mosaic {

using namespace control;

namespace {

constexpr int kRetryIntervalMs = 10;
/// The client waits this much longer than the agent, because the agent's timeout report names the missing ranks.
constexpr int64_t kAgentReportGraceNs = 3'000'000'000;
constexpr auto kLeaveTimeout = std::chrono::milliseconds(500);
/// Reports of calls are dropped above this limit, so that a rank whose agent does not read does not run out of memory.
constexpr size_t kMaxUnsentCallBytes = 1 << 20;

uint32_t toMilliseconds(int64_t ns) { return static_cast<uint32_t>(std::clamp<int64_t>(ns / 1'000'000, 0, INT32_MAX)); }

}  // namespace

AgentClient::AgentClient(AgentOptions options) : options_(std::move(options)) {}

AgentClient::~AgentClient() {
  {
    const Lock lock(mutex_);
    isStopped_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  socket_.close();
}

// ── from the rank

void AgentClient::join() {
  Lock lock(mutex_);
  if (!thread_.joinable() && !isInterrupted_) {
    joinDeadlineNs_ = monotonicNs() + options_.timeoutNs;
    thread_ = startThread("mosaic-control", [this] { run(); });
  }
  stateChangedCondition_.wait(lock, [this] { return isInterrupted_ || state_ != State::Connecting; });
  if (isInterrupted_) throw Failure(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
  if (joinFailure_) throw Failure(*joinFailure_);
}

void AgentClient::interrupt() {
  {
    const Lock lock(mutex_);
    isInterrupted_ = true;
  }
  stateChangedCondition_.notify_all();
  wake();
}

void AgentClient::put(const std::string& key, const std::string& value) {
  throwIfValueTooLong(key, value);
  Put frame;
  frame.key = key;
  frame.value.bytes = value;
  send(encode(frame));
}

template <typename Condition>
std::optional<std::string> AgentClient::waitForValue(const std::string& key, int64_t timeoutNs, Condition isFinished) {
  Get frame;
  frame.key = key;
  Lock lock(mutex_);
  PendingGet& pendingGet = pendingGets_[key];
  pendingGet.callerCount++;
  lock.unlock();
  send(encode(frame));
  lock.lock();
  stateChangedCondition_.wait_for(lock, std::chrono::nanoseconds(timeoutNs), [&] {
    return isInterrupted_ || pendingGet.value || state_ == State::Ended || isFinished();
  });
  const std::optional<std::string> value = pendingGet.value;
  if (--pendingGet.callerCount == 0) pendingGets_.erase(key);
  return value;
}

std::string AgentClient::get(const std::string& key) {
  const auto value = waitForValue(key, options_.timeoutNs, [this] { return peerFailure_.has_value(); });
  const Lock lock(mutex_);
  if (isInterrupted_) throw Failure(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
  if (value) return *value;
  if (peerFailure_) throw Failure(*peerFailure_);
  if (joinFailure_) throw Failure(*joinFailure_);
  throw Failure(MOSAIC_FAILURE_TIMEOUT, "connect: timed out after " + formatSeconds(options_.timeoutNs) +
                                            ": no rank has set the key \"" + key + "\"");
}

std::optional<std::string> AgentClient::find(const std::string& key, int64_t timeoutNs) {
  return waitForValue(key, timeoutNs, [] { return false; });
}

void AgentClient::attach(ControlListener* listener) {
  const std::lock_guard lock(listenerMutex_);
  for (Event& event : queuedEvents_) event(*listener);
  queuedEvents_.clear();
  listener_ = listener;
}

void AgentClient::detach() {
  const std::lock_guard lock(listenerMutex_);
  listener_ = nullptr;
  isDetached_ = true;
}

void AgentClient::reportFailure(const MosaicFailure& cause) {
  Failed frame;
  frame.rank = options_.rank;
  frame.code = cause.code;
  frame.message = cause.message;
  send(encode(frame));
}

void AgentClient::reportCall(uint64_t group, uint64_t index, uint64_t history, const std::vector<uint32_t>& ranks) {
  CallMessage frame;
  frame.group = group;
  frame.ranks = RankRanges::of(ranks);
  frame.index = index;
  frame.history = history;
  frame.rank = options_.rank;
  {
    const Lock lock(mutex_);
    if (socket_.unsentBytes() > kMaxUnsentCallBytes) return;
  }
  send(encode(frame));
}

void AgentClient::split(uint64_t group, uint64_t index, const std::vector<uint32_t>& ranks, int64_t color) {
  Split frame;
  frame.group = group;
  frame.index = index;
  frame.ranks = RankRanges::of(ranks);
  frame.colors.push_back({options_.rank, color});
  send(encode(frame));
}

void AgentClient::requestPositions(uint64_t request, const std::vector<uint32_t>& ranks) {
  PositionsRequest frame;
  frame.request = request;
  frame.ranks = RankRanges::of(ranks);
  send(encode(frame));
}

void AgentClient::leave(const std::string& lastOperation) {
  Leave frame;
  frame.exits.push_back({RankRanges::of({options_.rank}), lastOperation});
  Lock lock(mutex_);
  if (state_ != State::Joined || isLeaving_) return;
  // Set before the frame is sent: the agent closes the connection when it has received the frame, and the thread may
  // observe that immediately.
  isLeaving_ = true;
  socket_.send(encode(frame));
  socket_.finish();
  wake();
  stateChangedCondition_.wait_for(lock, kLeaveTimeout, [this] { return state_ == State::Ended; });
}

void AgentClient::send(const std::string& frame) {
  const Lock lock(mutex_);
  // A rank has nothing to report before it has joined and after it has left.
  if (state_ != State::Joined) return;
  socket_.send(frame);
  // The thread writes the rest once the socket is writable.
  if (socket_.unsentBytes() > 0) wake();
}

// ── the thread

bool AgentClient::isFinished() {
  const Lock lock(mutex_);
  return isStopped_ || state_ == State::Ended || (isInterrupted_ && state_ == State::Connecting);
}

bool AgentClient::hasJoinTimedOut(int64_t graceNs) const { return monotonicNs() >= joinDeadlineNs_ + graceNs; }

void AgentClient::run() {
  try {
    while (!isFinished()) {
      if (connect()) serveConnection();
      if (!isFinished() && hasJoinTimedOut(0)) {
        rejectJoin(MOSAIC_FAILURE_TIMEOUT, "connect: rendezvous timed out after " + formatSeconds(options_.timeoutNs) +
                                               ": no agent listens at " + options_.path +
                                               "; start the ranks with mosaic-run, or check the output of the first "
                                               "rank of this host, which starts the agent if there is no launcher");
      }
      if (!isFinished()) pause(kRetryIntervalMs);
    }
  } catch (const Failure& failure) {
    rejectJoin(failure.code(), failure.what());
  } catch (const std::exception& error) {
    endConnection(std::string("invalid frame from the agent: ") + error.what());
  }
  const Lock lock(mutex_);
  socket_.close();
}

bool AgentClient::connect() {
  Join frame;
  frame.name = options_.world;
  frame.attempt = options_.attempt;
  frame.size = options_.size;
  frame.timeoutMs = toMilliseconds(options_.timeoutNs);
  frame.remainingMs = toMilliseconds(joinDeadlineNs_ - monotonicNs());
  frame.members.push_back({options_.rank, static_cast<int32_t>(getpid()), 0});
  Hello hello;
  hello.secret = options_.secret;
  const Lock lock(mutex_);
  if (!socket_.connect(options_.path)) return false;
  socket_.send(encode(hello) + encode(frame));
  return true;
}

void AgentClient::pause(int timeoutMs) {
  pollfd entry{wakeEvent_.fd(), POLLIN, 0};
  poll(&entry, 1, timeoutMs);
  wakeEvent_.reset();
}

/// Serves the connection until it ends. If it ends before the rank has joined, the rank may connect to another agent.
void AgentClient::serveConnection() {
  for (bool isOpen = true; isOpen && !isFinished();) {
    pollfd entries[] = {{wakeEvent_.fd(), POLLIN, 0}, {-1, POLLIN, 0}};
    bool isJoined = false;
    {
      const Lock lock(mutex_);
      isJoined = state_ == State::Joined;
      entries[1].fd = socket_.fd();
      if (socket_.unsentBytes() > 0) entries[1].events |= POLLOUT;
    }
    if (!isJoined && hasJoinTimedOut(kAgentReportGraceNs)) {
      return rejectJoin(MOSAIC_FAILURE_TIMEOUT, "connect: rendezvous timed out after " +
                                                    formatSeconds(options_.timeoutNs) + ": the agent at " +
                                                    options_.path + " does not respond");
    }
    const int64_t waitNs = joinDeadlineNs_ + kAgentReportGraceNs - monotonicNs() + 1'000'000;
    poll(entries, 2, isJoined ? -1 : static_cast<int>(toMilliseconds(waitNs)));
    if (entries[0].revents) wakeEvent_.reset();
    if (!entries[1].revents) continue;
    {
      const Lock lock(mutex_);
      socket_.flush();
      isOpen = socket_.receive();
    }
    for (auto content = socket_.next(); content.data; content = socket_.next()) handleFrame(content);
  }
  bool isJoined = false;
  {
    const Lock lock(mutex_);
    isJoined = state_ == State::Joined;
  }
  if (isJoined && !isFinished()) endConnection("the connection to the agent was closed");
}

/// Marks the control plane as lost. After `leave`, the rank waits for exactly that.
void AgentClient::endConnection(const std::string& reason) {
  bool hasLeft = false;
  {
    const Lock lock(mutex_);
    if (state_ == State::Ended) return;
    state_ = State::Ended;
    hasLeft = isLeaving_;
    if (!joinFailure_) {
      joinFailure_ =
          failureRecord(MOSAIC_FAILURE_PEER_LOST, "connect: lost the connection to the agent of this host: " + reason);
    }
  }
  stateChangedCondition_.notify_all();
  if (!hasLeft) deliver([reason](ControlListener& listener) { listener.onControlLost(reason); });
}

void AgentClient::rejectJoin(MosaicFailureCode code, const std::string& message) {
  {
    const Lock lock(mutex_);
    joinFailure_ = failureRecord(code, message);
  }
  endConnection(message);
}

void AgentClient::deliver(Event event) {
  const std::lock_guard lock(listenerMutex_);
  if (listener_) event(*listener_);
  else if (!isDetached_) queuedEvents_.push_back(std::move(event));
}

}  // namespace mosaic
