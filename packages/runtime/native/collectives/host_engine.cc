#include "collectives/host_engine.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "collectives/operation.h"
#include "mosaic/clock.h"
#include "mosaic/futex.h"
#include "mosaic/reduction.h"
#include "mosaic/transport.h"

namespace mosaic {

/// Executes one stage of a collective over a host-ordered transport. Holds its messages, which must not move while the
/// transport uses them, and its reduction, which it computes itself if the transport does not.
class StageExecution {
 public:
  /// Enqueues the messages. May throw std::bad_alloc before it enqueues the first.
  StageExecution(const MosaicHostTransport& transport, const Operation& op, const Stage& stage);
  StageExecution(const StageExecution&) = delete;
  StageExecution& operator=(const StageExecution&) = delete;

  /// Transfers the data that can be transferred now. Returns whether any was.
  bool progress();
  bool isDone() const { return areMessagesDone() && reduction_.reduced == reduction_.count; }
  /// Returns a message that cannot complete, or null.
  const MosaicMessage* failedMessage() const;

 private:
  bool areMessagesDone() const { return nextSend_ == sends_.size() && nextReceive_ == receives_.size(); }
  void prepareReduction(const Operation& op, const Reduction& reduction);
  void reduceOperands();

  const MosaicHostTransport& transport_;
  std::vector<MosaicMessage> sends_, receives_;
  size_t nextSend_ = 0, nextReceive_ = 0;  // all messages before are done
  MosaicReduction reduction_{};
  /// The transport enqueued the receives and computes the reduction.
  bool isReducedByTransport_ = false;
  /// The operands of the other ranks, contiguous in rank order. Set only while the engine reduces itself.
  std::unique_ptr<uint8_t[]> operands_;
};

StageExecution::StageExecution(const MosaicHostTransport& transport, const Operation& op, const Stage& stage)
    : transport_(transport), sends_(stage.sends.size()), receives_(stage.receives.size()) {
  const auto initMessage = [&](MosaicMessage& to, const Message& from) {
    to.data = from.data;
    to.peer = op.group->ranks[from.peer];
    to.signature = from.signature;
  };
  for (size_t i = 0; i < sends_.size(); i++) initMessage(sends_[i], stage.sends[i]);
  for (size_t i = 0; i < receives_.size(); i++) initMessage(receives_[i], stage.receives[i]);
  if (stage.reduction) prepareReduction(op, *stage.reduction);
  for (const Copy& copy : stage.copies) std::memmove(copy.to, copy.from, copy.bytes);
  for (MosaicMessage& message : sends_) transport_.send(transport_.self, &message);
  if (isReducedByTransport_) return;
  for (MosaicMessage& message : receives_) transport_.receive(transport_.self, &message);
}

void StageExecution::prepareReduction(const Operation& op, const Reduction& reduction) {
  reduction_ = {.out = reduction.out,
                .own = reduction.own,
                .count = reduction.count,
                .dtype = op.signature.dtype,
                .op = op.signature.reduce,
                .after_sends = static_cast<uint8_t>(reduction.isAfterSends),
                .ranks = op.group->size(),
                .position = op.group->rank,
                .messages = receives_.data(),
                .sends = sends_.data(),
                .sends_count = static_cast<uint32_t>(sends_.size()),
                .reduced = 0};
  isReducedByTransport_ = transport_.reduce && transport_.reduce(transport_.self, &reduction_) != 0;
  if (isReducedByTransport_) return;
  const uint64_t bytes = reduction.count * elementBytes(op.signature.dtype);
  operands_ = std::make_unique<uint8_t[]>(bytes * receives_.size() + 1);
  for (size_t i = 0; i < receives_.size(); i++) receives_[i].data = operands_.get() + i * bytes;
}

bool StageExecution::progress() {
  const bool hasProgressed = transport_.progress(transport_.self) != 0;
  while (nextSend_ < sends_.size() && sends_[nextSend_].state == MOSAIC_MESSAGE_DONE) nextSend_++;
  while (nextReceive_ < receives_.size() && receives_[nextReceive_].state == MOSAIC_MESSAGE_DONE) nextReceive_++;
  if (operands_ && areMessagesDone()) reduceOperands();
  return hasProgressed;
}

const MosaicMessage* StageExecution::failedMessage() const {
  for (const auto* messages : {&receives_, &sends_}) {
    for (const MosaicMessage& message : *messages) {
      if (message.state == MOSAIC_MESSAGE_MISMATCH || message.state == MOSAIC_MESSAGE_CLOSED) return &message;
    }
  }
  return nullptr;
}

/// Reduces the operands, all of which have arrived, if the transport does not.
void StageExecution::reduceOperands() {
  constexpr uint64_t kBlockElements = 4096;  // elements
  MosaicReduction& r = reduction_;
  const auto dtype = static_cast<DType>(r.dtype);
  const auto op = static_cast<ReduceOp>(r.op);
  const uint64_t elementSize = elementBytes(r.dtype);
  alignas(64) float acc[kBlockElements];
  while (r.reduced < r.count) {
    const uint64_t count = std::min(kBlockElements, r.count - r.reduced), offset = r.reduced * elementSize;
    for (uint32_t i = 0, next = 0; i < r.ranks; i++) {
      const uint8_t* operand = i == r.position ? r.own : receives_[next++].data;
      reduction::accumulate(acc, operand + offset, count, dtype, op, i == 0);
    }
    reduction::finish(r.out + offset, acc, count, dtype, op, r.ranks);
    r.reduced += count;
  }
  operands_.reset();
}

namespace {

constexpr int64_t kPollIntervalNs = 100'000'000, kIdleSleepNs = 1'000'000'000;
// Waking a thread takes tens of microseconds, so the thread polls for a short time before it sleeps. The time is
// limited because compute threads need the cores.
constexpr int64_t kMaxSpinNs = 20'000;
constexpr int kMaxSpins = 200;

enum class State : uint32_t { Pending, Done, Failed };

}  // namespace

struct HostEngine::HostOperation : Operation {
  explicit HostOperation(HostEngine& engine, bool isReady)
      : engine(&engine), counters(engine.counters()), isReady(isReady) {}

  /// Cancels the operation because the compute stream has failed. May be called from any thread, any number of times.
  void cancel(const MosaicFailure& upstream) {
    const std::lock_guard lock(mutex);
    if (isCancelled) return;
    cause = upstream;
    isCancelled = true;
    if (engine) engine->wake();
  }
  void finish(State outcome) {
    {
      const std::lock_guard lock(mutex);
      engine = nullptr;
    }
    state = static_cast<uint32_t>(outcome);
    futexWake(state, false);
  }
  bool isPending() const { return state == static_cast<uint32_t>(State::Pending); }
  /// Sleeps until the operation has completed or failed. Spins first, because waking a thread takes about 20
  /// microseconds and a short operation completes earlier.
  void waitUntilDone() {
    for (int i = 0; i < kMaxSpins && isPending(); i++) cpuRelax();
    if (!isPending()) return;
    counters->beginWait();
    while (isPending()) futexWait(state, static_cast<uint32_t>(State::Pending), -1, false);
    counters->endWait();
  }

  std::mutex mutex;
  HostEngine* engine;  // under the mutex; null once the operation has completed or failed
  const std::shared_ptr<RankCounters> counters;
  MosaicFailure cause{};
  std::atomic<bool> isCancelled{false};
  /// All compute work that the operands depend on is done.
  std::atomic<bool> isReady;
  std::atomic<uint32_t> state{static_cast<uint32_t>(State::Pending)};
  MosaicFailure failure{};  // valid once state is Failed
};

// ── work for the compute stream

namespace {

template <typename T>
MosaicWork makeWork(const char* name, int (*run)(void*, const MosaicFailure*, MosaicFailure*), T argument) {
  return {name, run, [](void* arg) { delete static_cast<T*>(arg); }, new T(std::move(argument))};
}

}  // namespace

void HostEngine::onPosted(const std::shared_ptr<Operation>& operation) {
  const auto op = std::static_pointer_cast<HostOperation>(operation);
  if (op->isReady) return wake();
  // Marks the operation ready when all work before it is done.
  const auto run = [](void* arg, const MosaicFailure* upstream, MosaicFailure*) {
    HostOperation& op = **static_cast<std::shared_ptr<HostOperation>*>(arg);
    if (upstream) op.cancel(*upstream);
    op.isReady = true;
    const std::lock_guard lock(op.mutex);
    if (op.engine) op.engine->wake();
    return 0;
  };
  const MosaicWork work = makeWork<std::shared_ptr<HostOperation>>("collective ready", run, op);
  stream_->submit(stream_, &work);
}

void HostEngine::wait(uint64_t number) {
  const auto op = std::static_pointer_cast<HostOperation>(findOperation(number));
  if (op) {
    // Delays later work until the operation has completed, and fails if the operation fails.
    const auto run = [](void* arg, const MosaicFailure* upstream, MosaicFailure* failure) {
      HostOperation& op = **static_cast<std::shared_ptr<HostOperation>*>(arg);
      // Waits even if cancelled, because memory may be reused only after the communication thread no longer uses it.
      if (upstream) op.cancel(*upstream);
      op.waitUntilDone();
      if (upstream || op.state == static_cast<uint32_t>(State::Done)) return 0;
      *failure = op.failure;
      return 1;
    };
    const MosaicWork work = makeWork<std::shared_ptr<HostOperation>>("collective wait", run, op);
    stream_->submit(stream_, &work);
  } else if (const auto failure = failureAt(number)) {
    const auto run = [](void* arg, const MosaicFailure* upstream, MosaicFailure* failure) {
      if (upstream) return 0;
      *failure = *static_cast<MosaicFailure*>(arg);
      return 1;
    };
    const MosaicWork work = makeWork<MosaicFailure>("collective failed", run, *failure);
    stream_->submit(stream_, &work);
  }
}

// ── the engine

HostEngine::HostEngine(TransportPtr transport, MosaicStream* stream, std::unique_ptr<ControlPlane> control,
                       const EngineOptions& options, CompletionCallback onConnected)
    : Engine(std::move(transport), std::move(control), options, std::move(onConnected)),
      transport_(*table().host),
      stream_(stream) {
  start("mosaic-comm");
}

HostEngine::~HostEngine() { stop(); }

void HostEngine::connect(MosaicBootstrap& bootstrap) {
  MosaicFailure failure{};
  if (transport_.connect(transport_.self, &bootstrap, &failure) != 0) throw Failure(failure);
  setHosts({bootstrap.hosts, bootstrap.hosts + bootstrap.size});
}

void HostEngine::closeTransport() { transport_.close(transport_.self); }
void HostEngine::wake() { transport_.interrupt(transport_.self); }
void HostEngine::sleepFor(int64_t nanoseconds) {
  sleep(nanoseconds, [this] { return isStopped() || consumeNewEvents(); });
}

/// Sleeps unless `ready()` is already true. `ready` is evaluated once more when any later `wake` is certain to be
/// noticed.
template <typename Ready>
void HostEngine::sleep(int64_t nanoseconds, Ready ready) {
  const auto callReady = [](void* arg) -> int { return (*static_cast<Ready*>(arg))(); };
  transport_.wait(transport_.self, nanoseconds, callReady, &ready);
}

std::shared_ptr<Operation> HostEngine::makeOperation(bool waitsForCompute) {
  return std::make_shared<HostOperation>(*this, !waitsForCompute);
}

void HostEngine::run() {
  while (const auto op = next()) {
    beginOperation(*op);
    execute(op);
  }
}

/// Waits until the next operation is ready and returns it, or null when finished.
std::shared_ptr<HostEngine::HostOperation> HostEngine::next() {
  std::shared_ptr<HostOperation> op;
  bool isAtEnd = false;
  const auto pollNext = [&] {
    op = std::static_pointer_cast<HostOperation>(front());
    if (op && !op->isReady && !isStopped()) op = nullptr;
    isAtEnd = isFinished();
    return op || isAtEnd;
  };
  // Sleeps are limited, because a wake-up is lost if the process that should send it ends.
  while (!pollNext()) {
    sleep(kIdleSleepNs, pollNext);
    reportIfRequested();
  }
  return isAtEnd ? nullptr : op;
}

void HostEngine::execute(const std::shared_ptr<HostOperation>& op) {
  if (const auto diagnosis = diagnose(*op)) return fail(*diagnosis);
  if (op->op() == OpKind::Split) {
    if (!executeSplit(op)) return;
  } else {
    for (const Stage& stage : op->schedule.stages) {
      StageExecution execution(transport_, *op, stage);
      if (!runStage(*op, execution)) return;
    }
  }
  std::optional<TraceRecord> trace;
  if (isTracing()) trace = op->traceRecord(op->startedAt, monotonicNs());
  finishOperation(op, trace);
  op->finish(State::Done);
  if (op->onCompleted) op->onCompleted(nullptr);
}

/// Runs one stage until it is done. Returns false if the engine has failed.
bool HostEngine::runStage(HostOperation& op, StageExecution& execution) {
  int64_t idleSinceNs = 0;
  while (!execution.isDone()) {
    bool hasProgressed = execution.progress();
    if (const MosaicMessage* message = execution.failedMessage()) {
      if (message->state == MOSAIC_MESSAGE_CLOSED) {
        fail(peerExitFailure(op, message->peer));
      } else {
        fail(mismatchFailure(op, *message));
      }
      return false;
    }
    const int64_t now = monotonicNs();
    if (hasProgressed) {
      recordProgress();
      idleSinceNs = 0;
      continue;
    }
    if (execution.isDone()) break;
    if (idleSinceNs == 0) idleSinceNs = now;
    if (now - idleSinceNs < kMaxSpinNs) {
      cpuRelax();
      continue;
    }
    reportIfRequested();
    if (const auto diagnosis = diagnose(op)) {
      fail(*diagnosis);
      return false;
    }
    const int64_t deadline = op.startedAt + options().timeoutNs;
    sleep(std::clamp<int64_t>(deadline - now, 0, kPollIntervalNs), [&] {
      hasProgressed = execution.progress();
      return hasProgressed || execution.failedMessage() || isStopped() || op.isCancelled || consumeNewEvents();
    });
    if (hasProgressed) recordProgress();
  }
  return true;
}

std::optional<MosaicFailure> HostEngine::deviceFailure(Operation& operation) {
  auto& op = static_cast<HostOperation&>(operation);
  if (!op.isCancelled) return std::nullopt;
  const std::lock_guard lock(op.mutex);
  return op.cause;
}

std::optional<Engine::Diagnosis> HostEngine::diagnoseTransport(Operation& op) {
  const int64_t now = monotonicNs();
  if (now - lastPeerCheckNs_ < kPollIntervalNs) return std::nullopt;
  lastPeerCheckNs_ = now;
  for (const uint32_t rank : op.group->ranks) {
    if (rank == options().rank || !transport_.lost(transport_.self, rank)) continue;
    const int64_t lossTimeNs = peerLossNsByRank_.try_emplace(rank, now).first->second;
    if (now - lossTimeNs < kFailureCauseGraceNs) continue;
    const MosaicFailure failure = peerLostFailure(op, describeProcess(rank) + " died");
    return Diagnosis{failure, failure};
  }
  return std::nullopt;
}

void HostEngine::onFailed(const MosaicFailure& failure, const std::vector<std::shared_ptr<Operation>>& ops) {
  transport_.cancel(transport_.self);
  for (const auto& operation : ops) {
    auto& op = static_cast<HostOperation&>(*operation);
    op.failure = failure;
    op.finish(State::Failed);
  }
}

}  // namespace mosaic
