#include "collectives/engine.h"

#include <algorithm>
#include <utility>

#include "collectives/bootstrap.h"
#include "mosaic/clock.h"
#include "mosaic/thread.h"

namespace mosaic {

namespace {

constexpr uint64_t kWorldId = 1;

std::shared_ptr<Group> makeWorldGroup(uint32_t rank, uint32_t size) {
  auto group = std::make_shared<Group>();
  group->id = kWorldId;
  group->name = "world";
  group->rank = rank;
  for (uint32_t i = 0; i < size; i++) group->ranks.push_back(i);
  return group;
}

}  // namespace

Engine::Engine(TransportPtr transport, std::unique_ptr<ControlPlane> control, const EngineOptions& options,
               CompletionCallback onConnected)
    : log_(transport->ordering == MOSAIC_ORDER_HOST),
      options_(options),
      transport_(std::move(transport)),
      control_(std::move(control)),
      onConnected_(std::move(onConnected)) {
  groups_.push_back(makeWorldGroup(options.rank, options.size));
}

Engine::~Engine() = default;

void Engine::start(const char* threadName) {
  thread_ = startThread(threadName, [this] { main(); });
}

void Engine::stop() {
  abort();
  if (thread_.joinable()) thread_.join();
}

void Engine::setHosts(std::vector<uint32_t> hosts) {
  const std::lock_guard lock(mutex_);
  groups_[0]->hosts = std::move(hosts);
}

// ── from the host

uint64_t Engine::post(uint32_t group, const CollectiveCall& call, std::string label) {
  auto op = makeOperation(true);
  op->label = std::move(label);
  return enqueue(std::move(op), group, call);
}

uint64_t Engine::split(uint32_t group, int64_t color, std::string name, CompletionCallback onCompleted) {
  auto op = makeOperation(false);
  op->split = std::make_unique<SplitRequest>();
  op->split->color = color;
  op->split->name = std::move(name);
  op->onCompleted = std::move(onCompleted);
  CollectiveCall call;
  call.op = OpKind::Split;
  const uint64_t number = enqueue(op, group, call);
  // Sent as soon as the split is called, so that colors are exchanged while earlier operations are executed.
  control_->split(op->signature.group, op->signature.index, op->group->ranks, color);
  return number;
}

uint64_t Engine::enqueue(std::shared_ptr<Operation> op, uint32_t groupNumber, const CollectiveCall& call) {
  std::vector<CallReport> reports;
  uint64_t number = 0;
  try {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Failure(*failure_);
    if (isClosing_ || isStopped_) throw Failure(MOSAIC_FAILURE_CLOSED, "expected open groups, received closed groups");
    Group& group = *(op->group = groups_.at(groupNumber));
    op->groupNumber = groupNumber;
    op->signature = makeSignature(group, call);
    op->schedule = buildSchedule(group, call, op->signature);
    group.sequence++;
    if (op->signature.index > 0) {
      group.index++;
      group.history = extendHistory(op->signature);
    }
    reports = log_.append(*op);
    number = op->number = ++lastPostedNumber_;
    queue_.push_back(op);
  } catch (...) {
    onDropped(*op);
    throw;
  }
  sendReports(reports);
  onPosted(op);
  return number;
}

void Engine::record(uint32_t groupNumber, std::string description) {
  std::vector<CallReport> reports;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Failure(*failure_);
    if (isClosing_ || isStopped_) throw Failure(MOSAIC_FAILURE_CLOSED, "expected open groups, received closed groups");
    Group& group = *groups_.at(groupNumber);
    group.recordedCount++;
    group.history = extendHistory(group.history, description);
    reports = log_.append(group, std::move(description));
  }
  sendReports(reports);
}

std::shared_ptr<Group> Engine::getGroup(uint32_t number) {
  const std::lock_guard lock(mutex_);
  return groups_.at(number);
}

uint32_t Engine::splitGroupNumber(uint64_t splitNumber) {
  const std::lock_guard lock(mutex_);
  return groupNumberBySplit_.at(splitNumber);
}

Payload Engine::getPayload(uint32_t number) {
  const std::lock_guard lock(mutex_);
  const auto& group = groups_.at(number);
  Payload payload = group->payload;
  for (const auto& op : queue_) {
    if (!isDone(*op)) break;
    if (op->group == group) payload += op->schedule.payload;
  }
  return payload;
}

void Engine::startTrace() {
  const std::lock_guard lock(mutex_);
  trace_.clear();
  isTracing_ = true;
}

void Engine::stopTrace(std::function<void(std::vector<TraceRecord>)> onTrace) {
  {
    const std::lock_guard lock(mutex_);
    traceRequests_.push_back({lastPostedNumber_, std::move(onTrace)});
  }
  completeTraces();
}

void Engine::close(CompletionCallback onClosed) {
  {
    const std::lock_guard lock(mutex_);
    if (!hasExited_) onClosed_ = std::exchange(onClosed, nullptr);
  }
  if (onClosed) return onClosed(nullptr);
  closingSinceNs_ = monotonicNs();
  isClosing_ = true;
  wake();
}

void Engine::abort() {
  isStopped_ = true;
  control_->interrupt();
  wake();
}

void Engine::join(std::chrono::steady_clock::time_point deadline) {
  {
    std::unique_lock lock(mutex_);
    if (!exitedCondition_.wait_until(lock, deadline, [this] { return hasExited_; })) return;
  }
  if (thread_.joinable()) thread_.join();
}

// ── the communication thread

void Engine::main() {
  MosaicFailure failure{};
  const bool isConnected = captureFailure(&failure, "connect", [this] { connectRanks(); }) == 0;
  if (!isConnected) {
    failure = connectFailure(failure);
    // Reported because other ranks that are connecting wait for this one.
    const std::string closeMessage = "connect: " + rankName(options_.rank) + " closed while connecting";
    fail({failure,
          failure.code == MOSAIC_FAILURE_CLOSED ? failureRecord(MOSAIC_FAILURE_PEER_LOST, closeMessage) : failure});
  }
  std::exchange(onConnected_, nullptr)(isConnected ? nullptr : &failure);
  lastProgressNs_ = monotonicNs();
  if (isConnected) runUntilFinished();
  leave(isConnected);
}

void Engine::connectRanks() {
  control_->join();
  const size_t size = control_->members().size();
  if (size != options_.size) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: " + rankName(options_.rank) + ": expected a world of " +
                                               std::to_string(options_.size) + " ranks, received a world of " +
                                               std::to_string(size) + " ranks; pass the same size on all ranks");
  }
  control_->attach(this);
  throwIfInstructionSetsDiffer();
  Bootstrap bootstrap(*control_, options_, [this] { return isStopped_ || hasLostPeer(); });
  connect(bootstrap);
  if (isStopped_) throw Failure(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
}

/// Compares with the rank that came first only, so that the cost does not depend on the world size.
void Engine::throwIfInstructionSetsDiffer() {
  const std::string& ownInstructionSet = options_.instructionSet;
  if (ownInstructionSet.empty() || options_.size == 1) return;
  control_->put("instruction-set", ownInstructionSet + " on " + rankName(options_.rank));
  const std::string firstInstructionSet = control_->get("instruction-set");
  if (firstInstructionSet.substr(0, firstInstructionSet.find(' ')) == ownInstructionSet) return;
  throw Failure(MOSAIC_FAILURE_MISMATCH,
                "connect: " + rankName(options_.rank) + ": expected the same instruction set on all ranks, received " +
                    ownInstructionSet + " on this rank and " + firstInstructionSet +
                    "; set MOSAIC_ISA on all ranks to an instruction set that all hosts support");
}

/// Runs until finished. An exception fails the engine, which then accepts no operations until it is closed.
void Engine::runUntilFinished() {
  MosaicFailure failure{};
  while (captureFailure(&failure, rankName(options_.rank), [this] { run(); }) != 0) {
    if (hasFailed_) return;
    const auto op = front();
    const auto code = static_cast<MosaicFailureCode>(failure.code);
    fail(op ? localFailure(*op, code, failure.message)
            : Diagnosis{failure, failureRecord(MOSAIC_FAILURE_PEER_LOST, failure.message)});
  }
}

void Engine::leave(bool isConnected) {
  if (isConnected && !hasFailed_ && !isStopped_) {
    if (const auto text = compareCallsAtClose()) {
      const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, *text);
      fail({failure, failure});
    }
  }
  std::string lastOperation, counts;
  std::optional<MosaicFailure> closeFailure;
  {
    const std::lock_guard lock(mutex_);
    // Only mismatches found while closing are passed to `onClosed`; earlier ones are returned by `failure`.
    if (hasFailedClosing_ && failure_->code == MOSAIC_FAILURE_MISMATCH) closeFailure = failure_;
    lastOperation = lastOperationName_;
    counts = log_.serializeCounts();
  }
  // Done before the transport closes, which may take a while, because other ranks may be waiting for this one.
  if (hasUnsignedMessages()) ExitCounts::publish(*control_, options_.rank, counts);
  control_->leave(lastOperation);
  closeTransport();
  control_->detach();
  CompletionCallback onClosed;
  {
    const std::lock_guard lock(mutex_);
    hasExited_ = true;
    onClosed = std::exchange(onClosed_, nullptr);
  }
  exitedCondition_.notify_all();
  completeTraces();
  if (onClosed) onClosed(closeFailure ? &*closeFailure : nullptr);
}

/// Whether all operations that were posted before `close` are done, or the rank was aborted.
bool Engine::isFinished() {
  if (!isClosing_ && !isStopped_) return false;
  const std::lock_guard lock(mutex_);
  return queue_.empty() || (isStopped_ && failure_);
}

void Engine::beginOperation(Operation& op) {
  const std::lock_guard lock(mutex_);
  op.startedAt = lastProgressNs_ = monotonicNs();
}

void Engine::recordProgress() { lastProgressNs_ = monotonicNs(); }

void Engine::finishOperation(const std::shared_ptr<Operation>& op, const std::optional<TraceRecord>& trace) {
  bool hasTraceRequests = false;
  {
    const std::lock_guard lock(mutex_);
    queue_.pop_front();
    op->group->payload += op->schedule.payload;
    lastOperationName_ = op->name();
    if (op->startedAt != 0) runningNs_ += monotonicNs() - op->startedAt;
    if (trace && isTracing_) trace_.push_back(*trace);
    hasTraceRequests = !traceRequests_.empty();
    lastCompletedNumber_ = op->number;
  }
  lastProgressNs_ = monotonicNs();
  if (hasTraceRequests) completeTraces();
}

void Engine::completeTraces() {
  for (;;) {
    std::function<void(std::vector<TraceRecord>)> onTrace;
    std::vector<TraceRecord> trace;
    {
      const std::lock_guard lock(mutex_);
      if (traceRequests_.empty()) return;
      if (!failure_ && !hasExited_ && lastCompletedNumber_ < traceRequests_.front().lastOperationNumber) return;
      onTrace = std::move(traceRequests_.front().onTrace);
      traceRequests_.erase(traceRequests_.begin());
      isTracing_ = false;
      trace = std::exchange(trace_, {});
    }
    onTrace(std::move(trace));
  }
}

void Engine::fail(const Diagnosis& diagnosis) {
  std::vector<std::shared_ptr<Operation>> ops;
  {
    const std::lock_guard lock(mutex_);
    if (hasFailed_) return;
    failure_ = diagnosis.localFailure;
    firstFailedNumber_ = queue_.empty() ? lastPostedNumber_ + 1 : queue_.front()->number;
    // Other ranks may request the position of this rank at its failure.
    failedPosition_ = currentPosition();
    ops.assign(queue_.begin(), queue_.end());
    hasFailed_ = true;
    hasFailedClosing_ = isClosing_;
  }
  // The cause is reported first, because it must reach the other ranks before they observe that this rank has ended.
  if (diagnosis.peerFailure) control_->reportFailure(*diagnosis.peerFailure);
  onFailed(diagnosis.localFailure, ops);
  {
    const std::lock_guard lock(mutex_);
    queue_.clear();
    lastCompletedNumber_ = lastPostedNumber_;
  }
  for (const auto& op : ops) {
    if (op->onCompleted) op->onCompleted(&diagnosis.localFailure);
  }
  completeTraces();
}

bool Engine::waitUntil(Operation& op, const std::function<bool()>& condition) {
  constexpr int64_t kPollIntervalNs = 100'000'000;
  while (!hasFailed_) {
    if (condition()) return true;
    if (const auto diagnosis = diagnose(op)) fail(*diagnosis);
    else sleepFor(kPollIntervalNs);
  }
  return false;
}

bool Engine::executeSplit(const std::shared_ptr<Operation>& op) {
  const Group& parent = *op->group;
  const std::pair<uint64_t, uint64_t> key{parent.id, op->signature.index};
  std::vector<int64_t> colors;
  const auto hasColors = [&] {
    const std::lock_guard lock(mutex_);
    const auto entry = events_.colors.find(key);
    if (entry == events_.colors.end()) return false;
    colors = std::move(entry->second);
    events_.colors.erase(entry);
    op->split->hasColors = true;
    return true;
  };
  if (!waitUntil(*op, hasColors)) return false;
  if (colors.size() != parent.size()) {
    throw Failure(MOSAIC_FAILURE_DEVICE, "expected the colors of " + std::to_string(parent.size()) +
                                             " ranks from the control plane, received " +
                                             std::to_string(colors.size()));
  }
  auto splitGroup = op->split->splitGroup = std::make_shared<Group>();
  splitGroup->id = splitId(parent.id, op->signature.index, op->split->color);
  splitGroup->name = op->split->name;
  splitGroup->ancestors = parent.ancestors;
  splitGroup->ancestors.push_back(parent.id);
  for (uint32_t rank = 0; rank < parent.size(); rank++) {
    if (colors[rank] != op->split->color) continue;
    if (rank == parent.rank) splitGroup->rank = splitGroup->size();
    splitGroup->ranks.push_back(parent.ranks[rank]);
    if (!parent.hosts.empty()) splitGroup->hosts.push_back(parent.hosts[rank]);
  }
  if (!openSplitGroup(*op, colors)) return false;
  const std::lock_guard lock(mutex_);
  groupNumberBySplit_[op->number] = static_cast<uint32_t>(groups_.size());
  groups_.push_back(std::move(splitGroup));
  return true;
}

// ── the queue, for the orderings

std::optional<MosaicFailure> Engine::failureAt(uint64_t number) {
  const std::lock_guard lock(mutex_);
  return failure_ && number >= firstFailedNumber_ ? failure_ : std::nullopt;
}

std::shared_ptr<Operation> Engine::front() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() ? nullptr : queue_.front();
}

std::vector<std::shared_ptr<Operation>> Engine::queuedOperations() {
  const std::lock_guard lock(mutex_);
  return {queue_.begin(), queue_.end()};
}

std::shared_ptr<Operation> Engine::findOperation(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (queue_.empty() || number < queue_.front()->number || number > queue_.back()->number) return nullptr;
  return queue_[number - queue_.front()->number];
}

void Engine::throwIfBehindSplit(uint64_t number) {
  if (!control_->isSingleThreaded()) return;
  const std::lock_guard lock(mutex_);
  for (const auto& op : queue_) {
    if (op->number > number) return;
    const auto isCalledByAll = [&] {
      return op->split->hasColors || events_.colors.contains({op->group->id, op->signature.index});
    };
    if (!op->split || isCalledByAll()) continue;
    throw Failure(MOSAIC_FAILURE_NONE, describeLocation(*op) + ": wait: cannot enqueue an operation after " +
                                           op->name() + " before all ranks of this thread have called the split; " +
                                           "await the split on all ranks first");
  }
}

// ── what the control plane delivers

void Engine::onPeerLost(uint32_t rank, const std::string& process) {
  recordEvent([&] { events_.addLostRank(rank, process); });
}

void Engine::onPeerFailed(uint32_t rank, const MosaicFailure& cause) {
  recordEvent([&] { events_.addFailedRank(rank, cause); });
}

void Engine::onPeerExited(uint32_t rank) {
  recordEvent([&] { events_.exitedRanks.try_emplace(rank, monotonicNs()); });
}

void Engine::onMismatch(uint64_t group, const std::string& message) {
  recordEvent([&] { events_.mismatches.emplace(log_.groupOf(group), log_.messagePrefix(group, message) + message); });
}

void Engine::onColors(uint64_t group, uint64_t index, std::vector<int64_t> colors) {
  recordEvent([&] { events_.colors[{group, index}] = std::move(colors); });
}

void Engine::onPositions(uint64_t request, std::vector<Position> positions) {
  recordEvent([&] { events_.positions[request] = std::move(positions); });
}

void Engine::onControlLost(const std::string& reason) {
  recordEvent([&] { events_.controlLostReason = reason; });
}

Position Engine::position() {
  isReportRequested_ = true;
  wake();
  const std::lock_guard lock(mutex_);
  return failedPosition_ ? *failedPosition_ : currentPosition();
}

std::pair<Position, Metrics> Engine::sample() {
  Metrics metrics = counters_->sample();
  const std::lock_guard lock(mutex_);
  metrics.waitedNs = static_cast<uint64_t>(waitedNs());
  for (const auto& group : groups_) {
    metrics.bytesSent += group->payload.bytesSent;
    metrics.bytesReceived += group->payload.bytesReceived;
  }
  return {failedPosition_ ? *failedPosition_ : currentPosition(), metrics};
}

int64_t Engine::waitedNs() const {
  const bool isRunning = !queue_.empty() && queue_.front()->startedAt != 0;
  return runningNs_ + (isRunning ? monotonicNs() - queue_.front()->startedAt : 0);
}

Position Engine::currentPosition() const {
  Position position;
  position.rank = options_.rank;
  position.last = lastOperationName_;
  position.activity = Position::Activity::Idle;
  if (queue_.empty()) return position;
  const Operation& op = *queue_.front();
  position.activity = op.startedAt == 0 ? Position::Activity::Computing : Position::Activity::Running;
  position.group = op.signature.group;
  position.sequence = op.signature.sequence;
  position.index = op.signature.index;
  position.operation = op.name();
  position.description = describeOperation(op.signature, op.group->name);
  return position;
}

std::vector<CallRecord> Engine::calls(uint64_t sequence) {
  const std::lock_guard lock(mutex_);
  return log_.calls(sequence);
}

}  // namespace mosaic
