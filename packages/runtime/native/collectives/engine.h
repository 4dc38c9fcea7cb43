// One rank's collectives: a queue of operations in order, and a communication thread that carries them out. What all
// transports have in common is here: numbering, signatures, deadlines, positions, failures, splits, trace, closing. How
// a stage moves is in host_engine.h and stream_engine.h, one for each ordering of transport.h.
//
// An engine fails once: the first failure takes all later operations with it, and the control plane distributes the
// cause to the other ranks, which would otherwise wait for messages that never come.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "collectives/call_log.h"
#include "collectives/rank_counters.h"
#include "control/control_plane.h"
#include "mosaic/clock.h"
#include "mosaic/device_port.h"

namespace mosaic {

struct EngineOptions {
  uint32_t rank = 0, size = 1;
  /// How long a collective may take.
  int64_t timeoutNs = 300'000'000'000;
  /// When closing: how long to wait for ranks that do not move; negative: as long as the timeout allows.
  int64_t drainTimeoutNs = -1;
  /// How long the transport may take to connect the ranks once all are there.
  int64_t connectTimeoutNs = 300'000'000'000;
  /// Of the device's kernels, if their rounding depends on it: what every rank computes by itself must be the same.
  std::string instructionSet;
};

/// Where the device's work is ordered: a CPU stream, or a device with a port (mosaic/device_port.h) and its stream.
struct ComputeStream {
  MosaicStream* stream = nullptr;
  MosaicDevicePort* port = nullptr;
  void* handle = nullptr;
};

/// Frees a transport. One of another ABI is left: nothing is known of it.
struct TransportDeleter {
  void operator()(const MosaicTransport* transport) const;
};
using TransportPtr = std::unique_ptr<const MosaicTransport, TransportDeleter>;

class Engine : private ControlListener {
 public:
  /// Starts to connect on the communication thread, which calls `onConnected` once. Throws Failure where the transport
  /// has another ABI, or does not fit the device.
  static std::shared_ptr<Engine> open(TransportPtr transport, const ComputeStream& compute,
                                      std::unique_ptr<ControlPlane> control, const EngineOptions& options,
                                      CompletionCallback onConnected);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Returns the operation's number. Throws Failure once the engine has failed or is closed.
  uint64_t post(uint32_t group, const CollectiveCall& call, std::string label);
  /// The same of a split. `splitGroupNumber` has the part once `onCompleted` was called without a failure.
  uint64_t split(uint32_t group, int64_t color, std::string name, CompletionCallback onCompleted);
  /// Adds a call that every rank of the group makes, though it is no operation, to the history of the group.
  void record(uint32_t group, std::string description);
  /// The group of this number and, for one that came of a split, its number.
  std::shared_ptr<Group> getGroup(uint32_t number);
  uint32_t splitGroupNumber(uint64_t splitNumber);
  /// What the operations of a group moved that are done by now.
  Payload getPayload(uint32_t group);
  /// Later work on the device runs after the operation, and fails with it. Throws Failure where it cannot.
  virtual void wait(uint64_t number) = 0;
  /// The host of each rank, by number; all 0 where they share one. Valid once the engine has connected.
  const std::vector<Member>& members() const { return control_->members(); }
  /// All operations up to this number are over.
  uint64_t completedNumber() const { return lastCompletedNumber_; }

  /// The rank has finished a step, with that much device memory: what a monitor shows.
  void markStep(uint64_t reservedBytes, uint64_t peakBytes) { counters_->markStep(reservedBytes, peakBytes); }

  void startTrace();
  /// Calls back once all that was posted is over.
  void stopTrace(std::function<void(std::vector<TraceRecord>)> onTrace);

  /// Accepts nothing more, finishes what was posted, then calls `onClosed` on the communication thread: with a failure
  /// where it finds only then that this rank has called other things than another.
  void close(CompletionCallback onClosed);
  /// Fails whatever is under way, at once.
  void abort();
  /// Waits until the communication thread has ended, or that time has come. To be called by the thread that destroys
  /// the engine, after `close` or `abort`.
  void join(std::chrono::steady_clock::time_point deadline);

 protected:
  /// The control plane has why a process ended; the transport may notice its end sooner. How long it has to deliver
  /// the cause.
  static constexpr int64_t kFailureCauseGraceNs = 500'000'000;

  /// Why an operation cannot complete: for this rank, and for its peers to
  /// report; empty if it was reported already.
  struct Diagnosis {
    MosaicFailure localFailure;
    std::optional<MosaicFailure> peerFailure;
  };

  Engine(TransportPtr transport, std::unique_ptr<ControlPlane> control, const EngineOptions& options,
         CompletionCallback onConnected);
  /// To be called at the end of a subclass's constructor, and `stop` at the begin of its destructor.
  void start(const char* threadName);
  void stop();
  /// The host of each rank of the world, where it makes a difference to an ordering, once that has connected.
  void setHosts(std::vector<uint32_t> hosts);

  // ── what an ordering implements; on the communication thread unless they state otherwise
  /// Connects the transport; `bootstrap` is valid during the call. Throws Failure.
  virtual void connect(MosaicBootstrap& bootstrap) = 0;
  /// Carries out operations until `isFinished`.
  virtual void run() = 0;
  /// Any thread: `run`, `connect` and `rest` look at what has changed.
  virtual void wake() = 0;
  /// Sleeps at most so long, until `wake`.
  virtual void sleepFor(int64_t nanoseconds) = 0;
  /// Any thread, under no lock: an operation, ready once the compute posted so far is done.
  virtual std::shared_ptr<Operation> makeOperation(bool waitsForCompute) = 0;
  virtual void onPosted(const std::shared_ptr<Operation>&) {}
  virtual void onDropped(Operation&) {}
  /// Any thread, under the lock: the operation is done, though perhaps not concluded.
  virtual bool isDone(Operation&) { return false; }
  /// The failure of this rank's own device, if it failed before the operation.
  virtual std::optional<MosaicFailure> deviceFailure(Operation& op) = 0;
  /// What the transport itself observes of the ranks of an operation.
  virtual std::optional<Diagnosis> diagnoseTransport(Operation& op) = 0;
  /// What the transport has reported on this rank, also while the control plane has time to deliver the cause.
  virtual std::optional<Diagnosis> transportError(const Operation&) { return std::nullopt; }
  /// The engine has failed: ends `ops`, all that were posted and are not over. Not under the lock.
  virtual void onFailed(const MosaicFailure& failure, const std::vector<std::shared_ptr<Operation>>& ops) = 0;
  /// Makes the part of a split usable; its group exists. False: the engine has failed.
  virtual bool openSplitGroup(Operation&, const std::vector<int64_t>& /*colors*/) { return true; }
  virtual void closeTransport() = 0;
  /// Any thread, under the lock: nanoseconds for which compute has waited for collectives. Where that cannot be
  /// observed: for which an operation was under way whose operands were ready.
  virtual int64_t waitedNs() const;

  // ── for them
  const EngineOptions& options() const { return options_; }
  const std::shared_ptr<RankCounters>& counters() const { return counters_; }
  const MosaicTransport& table() const { return *transport_; }
  bool hasFailed() const { return hasFailed_; }
  bool isStopped() const { return isStopped_; }
  bool isFinished();
  std::optional<MosaicFailure> failureAt(uint64_t number);
  std::shared_ptr<Operation> front();
  std::vector<std::shared_ptr<Operation>> queuedOperations();
  std::shared_ptr<Operation> findOperation(uint64_t number);
  void beginOperation(Operation& op);
  /// Something moved: resets the drain timer, and the interval until positions are requested.
  void recordProgress();
  /// Why the operation cannot complete, if so. Requests positions where it has made no progress for a while.
  std::optional<Diagnosis> diagnose(Operation& op);
  /// The part of it that also holds for operations that have not begun: ranks that died or failed, and mismatches.
  std::optional<Diagnosis> peerFailure(const Operation& op);
  std::optional<Diagnosis> indirectFailure(const Operation& op) const;
  /// A rank exited without the calls that the operation needs of it. Where messages carry no signature.
  std::optional<Diagnosis> exitFailure(const Operation& op);
  /// Where another rank has inquired: reports what was not compared yet.
  void reportIfRequested();
  void fail(const Diagnosis& diagnosis);
  /// Takes an operation that is over off the queue, which it heads, and counts it.
  void finishOperation(const std::shared_ptr<Operation>& op, const std::optional<TraceRecord>& trace);
  /// Exchanges the colors of a split, and makes its group. False: the engine has failed.
  bool executeSplit(const std::shared_ptr<Operation>& op);
  /// Waits for a condition, failing as operations do. False: the engine has failed.
  bool waitUntil(Operation& op, const std::function<bool()>& condition);
  /// Whether the control plane has delivered anything since this was called last.
  bool consumeNewEvents() { return hasNewEvents_.exchange(false); }
  bool isTracing() const { return isTracing_; }
  Diagnosis localFailure(const Operation& op, MosaicFailureCode code, const std::string& text) const;
  /// `ring(sp), rank 3`
  std::string describeLocation(const Operation& op) const;
  MosaicFailure peerLostFailure(const Operation& op, const std::string& eventText) const;
  /// A peer closed in order although the operation needs it.
  Diagnosis peerExitFailure(const Operation& op, uint32_t rank);
  std::string describeProcess(uint32_t rank) const { return control_->describeProcess(rank); }
  /// Blocks for some seconds at most where the calls before the operation differ, and the control plane must name them.
  Diagnosis mismatchFailure(const Operation& op, const MosaicMessage& message);
  /// Throws Failure for an operation behind a split that other ranks of this host thread have not called yet: this call
  /// would wait for theirs, which come after it.
  void throwIfBehindSplit(uint64_t number);

 private:
  struct PositionRequest {
    uint64_t operationNumber = 0;
    int64_t sendTimeNs = 0, intervalNs = 0;
  };
  struct TraceRequest {
    uint64_t lastOperationNumber;
    std::function<void(std::vector<TraceRecord>)> onTrace;
  };

  uint64_t enqueue(std::shared_ptr<Operation> op, uint32_t group, const CollectiveCall& call);
  void main();
  void connectRanks();
  bool hasLostPeer();
  void throwIfInstructionSetsDiffer();
  void runUntilFinished();
  void leave(bool isConnected);
  void completeTraces();
  std::optional<Diagnosis> diagnoseClosing(const Operation& op);
  std::optional<Diagnosis> diagnoseDivergence(const Operation& op);
  std::optional<Diagnosis> diagnoseTimeout(Operation& op, int64_t now);
  void requestPositionsIfStalled(const Operation& op, int64_t now);
  /// Whether messages carry no signature, so that the control plane compares them.
  bool hasUnsignedMessages() const { return transport_->ordering == MOSAIC_ORDER_STREAM; }
  std::optional<Diagnosis> findDivergenceBefore(const Operation& op, uint32_t peer);
  std::optional<std::string> reportedMismatch() const;
  std::optional<std::string> findDivergenceFromExited(uint32_t peer);
  std::optional<std::string> compareCallsAtClose();
  void sendPendingReports();
  void sendReports(const std::vector<CallReport>& reports);
  std::vector<Position> positionsOf(const std::vector<uint32_t>& ranks);
  MosaicFailure timeoutFailure(const Operation& op);
  MosaicFailure connectFailure(const MosaicFailure& cause);
  Position currentPosition() const;
  /// Records an event, and wakes the communication thread.
  template <typename Record>
  void recordEvent(Record record) {
    {
      const std::lock_guard lock(mutex_);
      record();
      hasEvents_ = hasNewEvents_ = true;
    }
    wake();
  }

  // ControlListener, on any thread.
  void onPeerLost(uint32_t rank, const std::string& process) override;
  void onPeerFailed(uint32_t rank, const MosaicFailure& cause) override;
  void onPeerExited(uint32_t rank) override;
  void onMismatch(uint64_t group, const std::string& message) override;
  void onColors(uint64_t group, uint64_t index, std::vector<int64_t> colors) override;
  void onPositions(uint64_t request, std::vector<Position> positions) override;
  void onControlLost(const std::string& reason) override;
  Position position() override;
  std::pair<Position, Metrics> sample() override;
  std::vector<CallRecord> calls(uint64_t group) override;

 protected:
  /// What the control plane has delivered. Under the lock.
  struct Events {
    std::map<uint32_t, std::string> lostRanks;  // rank: its process
    std::map<uint32_t, MosaicFailure> failedRanks;
    int64_t firstFailureNs = 0;            // of the lost and failed ones
    std::map<uint32_t, int64_t> exitedRanks;  // rank: when
    std::map<uint64_t, std::string> mismatches;
    std::map<std::pair<uint64_t, uint64_t>, std::vector<int64_t>> colors;
    std::map<uint64_t, std::vector<Position>> positions;  // by request
    std::optional<std::string> controlLostReason;

    void addLostRank(uint32_t rank, const std::string& process) {
      lostRanks.try_emplace(rank, process);
      recordFailureTime();
    }
    void addFailedRank(uint32_t rank, const MosaicFailure& cause) {
      failedRanks.try_emplace(rank, cause);
      recordFailureTime();
    }
    void recordFailureTime() {
      if (firstFailureNs == 0) firstFailureNs = monotonicNs();
    }
  };
  std::mutex mutex_;  // guards what follows, up to the atomics
  Events events_;

 private:
  std::vector<std::shared_ptr<Group>> groups_;
  std::map<uint64_t, uint32_t> groupNumberBySplit_;  // number of the split: number of the group
  CallLog log_;
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t lastPostedNumber_ = 0;
  std::optional<MosaicFailure> failure_;
  uint64_t firstFailedNumber_ = 0;
  std::optional<Position> failedPosition_;
  std::string lastOperationName_;  // the last operation that completed
  int64_t runningNs_ = 0;  // of the operations that are over: see `waitedNs`
  CompletionCallback onClosed_;
  bool hasExited_ = false, hasFailedClosing_ = false;
  std::condition_variable exitedCondition_;
  std::vector<TraceRecord> trace_;
  std::vector<TraceRequest> traceRequests_;

  // Of the communication thread.
  PositionRequest positionRequest_;
  uint64_t lastRequestId_ = 0;
  int64_t lastProgressNs_ = 0;
  ExitCounts exitCounts_;

  std::atomic<uint64_t> lastCompletedNumber_{0};
  std::atomic<bool> hasFailed_{false}, isClosing_{false}, isStopped_{false}, isTracing_{false};
  std::atomic<bool> hasNewEvents_{false}, isReportRequested_{false};
  std::atomic<bool> hasEvents_{false};
  const EngineOptions options_;
  /// Work of the compute stream may outlive the engine.
  const std::shared_ptr<RankCounters> counters_ = std::make_shared<RankCounters>();
  const TransportPtr transport_;
  const std::unique_ptr<ControlPlane> control_;
  CompletionCallback onConnected_;
  std::thread thread_;
};

}  // namespace mosaic
