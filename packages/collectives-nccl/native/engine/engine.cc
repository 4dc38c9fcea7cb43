#include "engine/engine.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "mosaic/clock.h"
#include "mosaic/thread.h"

namespace mosaic::nccl {

namespace {

// A sleeping thread takes tens of microseconds to wake, so look a little longer before sleeping.
constexpr int kSpins = 64;
constexpr int64_t kTickNs = 1'000'000, kIdleNs = 1'000'000'000;

}  // namespace

Engine::Engine(const EngineOptions& options, Told connected)
    : options_(options), connected_(std::move(connected)), device_(*options.device),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  auto world = std::make_shared<Member>();
  world->group.id = kWorld;
  world->group.name = "world";
  world->group.rank = options.rank;
  for (uint32_t rank = 0; rank < options.size; rank++) world->group.ranks.push_back(rank);
  members_.push_back(std::move(world));
  thread_ = quietThread("mosaic-nccl", [this] { run(); });
}

Engine::~Engine() {
  abort();
  thread_.join();
  ::close(wake_);
}

// ── from any thread

std::pair<uint32_t, Group> Engine::partOf(uint64_t number) {
  const std::lock_guard lock(mutex_);
  const uint32_t index = parts_.at(number);
  parts_.erase(number);
  return {index, members_.at(index)->group};
}

void Engine::wait(uint64_t number) {
  std::unique_lock lock(mutex_);
  const auto found = std::find_if(queue_.begin(), queue_.end(), [&](const auto& op) { return op->number == number; });
  if (found == queue_.end()) {
    if (failure_ && number >= failedFrom_) device_.fail(&device_, &*failure_);
    return;
  }
  const std::shared_ptr<Operation> op = *found;
  op->waited = true;
  launched_.wait(lock, [&] { return op->state >= Operation::State::Launched; });
  // Failed, or done meanwhile.
  if (op->state == Operation::State::Over) return;
  device_.enter(&device_);
  check(driver().streamWaitEvent(options_.compute, op->done, 0), "wait");
}

Payload Engine::payload(uint32_t group) {
  const std::lock_guard lock(mutex_);
  const Member& member = *members_.at(group);
  return {member.bytesSent, member.bytesReceived, member.messagesSent};
}

void Engine::startTrace() {
  device_.enter(&device_);
  traces_.start();
}

void Engine::stopTrace(std::function<void(std::vector<TraceRecord>)> told) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) traceRequests_.emplace_back(posted_, std::exchange(told, nullptr));
  }
  if (told) return told(traces_.stop());
  eventfd_write(wake_, 1);
}

void Engine::close(std::function<void()> left) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) onLeft_ = std::exchange(left, nullptr);
  }
  if (left) return left();
  closing_ = true;
  eventfd_write(wake_, 1);
}

void Engine::abort() {
  stop_ = true;
  eventfd_write(wake_, 1);
}

// ── the communication thread

void Engine::run() {
  device_.enter(&device_);
  try {
    connect();
  } catch (const Failure& failure) {
    fail({recordOf(failure.code(), failure.what()), recordOf(MOSAIC_FAILURE_PEER_LOST, failure.what())});
  }
  connecting_ = false;
  connected_(failed_ ? &*failure_ : nullptr);
  if (!failed_) work();
  leave();
}

void Engine::work() {
  movedAt_ = monotonicNs();
  for (int spins = 0; !over(); spins++) {
    listen();
    reap();
    answerTraces();
    if (failed_) {
      rest(kIdleNs);
      continue;
    }
    if (const auto found = trouble()) {
      fail(*found);
    } else if (const auto op = queued()) {
      launch(op);
      spins = 0;
    } else if (spins < kSpins) {
      sched_yield();
    } else if (!over()) {  // the last operation of a rank that closes may just have ended
      rest(head() ? kTickNs : kIdleNs);
    }
  }
}

bool Engine::over() {
  const std::lock_guard lock(mutex_);
  return (closing_ && queue_.empty()) || (stop_ && (failure_ || queue_.empty()));
}

std::shared_ptr<Operation> Engine::head() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() ? nullptr : queue_.front();
}

std::shared_ptr<Operation> Engine::queued() {
  const std::lock_guard lock(mutex_);
  const auto isQueued = [](const auto& op) { return op->state == Operation::State::Queued; };
  const auto found = std::find_if(queue_.begin(), queue_.end(), isQueued);
  return found == queue_.end() ? nullptr : *found;
}

void Engine::reap() {
  while (const auto op = head()) {
    if (op->state == Operation::State::Launched) {
      const CUresult code = driver().eventQuery(op->done);
      if (code == cuda::CUDA_ERROR_NOT_READY) return;
      try {
        check(code, nameOf(op->signature.op));
      } catch (const Failure& failure) {
        const std::string text = where(*op) + ": " + failure.what();
        return fail({recordOf(MOSAIC_FAILURE_DEVICE, text), recordOf(MOSAIC_FAILURE_PEER_LOST, text)});
      }
    } else if (op->state != Operation::State::Over) {
      return;
    }
    conclude(op);
  }
}

void Engine::conclude(const std::shared_ptr<Operation>& op) {
  if (op->begin) traces_.record(op->signature, op->plan.payload, op->begin, op->done);
  const std::lock_guard lock(mutex_);
  (op->begin ? times_ : marks_).give(op->done);
  times_.give(op->begin);
  marks_.give(op->ready);
  op->state = Operation::State::Over;
  queue_.pop_front();
  last_ = op->name();
  movedAt_ = monotonicNs();
  completed_ = op->number;
}

bool Engine::until(const std::function<bool()>& condition) {
  for (int spins = 0; !failed_; spins++) {
    if (condition()) return true;
    listen();
    reap();
    if (failed_) break;
    if (const auto found = trouble()) {
      fail(*found);
    } else if (spins < kSpins) {
      sched_yield();
    } else {
      rest(kTickNs / 10);
    }
  }
  return false;
}

/// Sleeps until something is posted, or said.
void Engine::rest(int64_t nanoseconds) {
  pollfd polled[] = {{wake_, POLLIN, 0}, {hub_.fd(), static_cast<short>(POLLIN | (hub_.full() ? POLLOUT : 0)), 0}};
  const timespec limit{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  ppoll(polled, 2, &limit, nullptr);
  eventfd_t rung;
  if (polled[0].revents) eventfd_read(wake_, &rung);
}

void Engine::answerTraces() {
  while (true) {
    std::function<void(std::vector<TraceRecord>)> told;
    {
      const std::lock_guard lock(mutex_);
      if (traceRequests_.empty()) return;
      if (!failure_ && !ended_ && !queue_.empty() && queue_.front()->number <= traceRequests_.front().first) return;
      told = std::move(traceRequests_.front().second);
      traceRequests_.erase(traceRequests_.begin());
    }
    told(traces_.stop());
  }
}

}  // namespace mosaic::nccl
