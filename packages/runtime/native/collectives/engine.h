// One rank's collectives: a queue of operations in order, and a communication thread that executes them. This is the
// part that is common to all transports: numbering, signatures, deadlines, positions, failures, splits, trace, closing.
// The execution of stages is in host_engine.h and stream_engine.h, one for each ordering of transport.h.
//
// An engine fails once: all operations after the first failure fail with it, and the control plane distributes the
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
  /// Timeout of a collective.
  int64_t timeoutNs = 300'000'000'000;
  /// When closing: time since `close` or the last progress, whichever is later, after which operations are given up.
  /// Negative: until the timeout.
  int64_t drainTimeoutNs = -1;
  /// Time that the transport may take to connect the ranks once all have joined.
  int64_t connectTimeoutNs = 300'000'000'000;
  /// The instruction set of the device's kernels, if their rounding depends on it: must be the same on all ranks.
  /// Empty: not compared.
  std::string instructionSet;
};

/// The device's compute stream: a CPU stream, or a device with a port (mosaic/device_port.h) and its stream.
struct ComputeStream {
  MosaicStream* stream = nullptr;
  MosaicDevicePort* port = nullptr;
  void* handle = nullptr;
};

/// Frees a transport. A transport of another ABI version is not freed, because its layout is unknown.
struct TransportDeleter {
  void operator()(const MosaicTransport* transport) const;
};
using TransportPtr = std::unique_ptr<const MosaicTransport, TransportDeleter>;

class Engine : private ControlListener {
 public:
  /// Starts to connect on the communication thread, which calls `onConnected` once. Throws Failure if the transport has
  /// another ABI version or does not support the device.
  static std::shared_ptr<Engine> open(TransportPtr transport, const ComputeStream& compute,
                                      std::unique_ptr<ControlPlane> control, const EngineOptions& options,
                                      CompletionCallback onConnected);
  ~Engine() override;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Returns the operation's number. Throws Failure once the engine has failed or is closed.
  uint64_t post(uint32_t group, const CollectiveCall& call, std::string label);
  /// Posts a split. `splitGroupNumber` returns the new group once `onCompleted` was called without a failure.
  uint64_t split(uint32_t group, int64_t color, std::string name, CompletionCallback onCompleted);
  /// Adds a call that every rank of the group makes, but that is not an operation, to the history of the group.
  void record(uint32_t group, std::string description);
  /// Returns the group with this number.
  std::shared_ptr<Group> getGroup(uint32_t number);
  /// Returns the number of the group that a split has created.
  uint32_t splitGroupNumber(uint64_t splitNumber);
  /// Returns the bytes and messages of a group's operations that are done.
  Payload getPayload(uint32_t group);
  /// Makes later work on the device run after the operation, and fail if the operation fails. Throws Failure if that is
  /// not possible.
  virtual void wait(uint64_t number) = 0;
  /// The host number and process id of each rank. Valid once the engine has connected.
  const std::vector<Member>& members() const { return control_->members(); }
  /// Returns the number up to which all operations have completed or failed.
  uint64_t completedNumber() const { return lastCompletedNumber_; }
  /// Returns the engine's failure, if it has failed.
  std::optional<MosaicFailure> failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  /// Records that the rank has finished a step, and its device memory, for a monitor.
  void markStep(uint64_t reservedBytes, uint64_t peakBytes) { counters_->markStep(reservedBytes, peakBytes); }

  void startTrace();
  /// Calls `onTrace` once all operations that were posted before have completed.
  void stopTrace(std::function<void(std::vector<TraceRecord>)> onTrace);

  /// Accepts no more operations, finishes the posted ones, then calls `onClosed` on the communication thread. It passes
  /// a failure if closing reveals that this rank and another made different calls.
  void close(CompletionCallback onClosed);
  /// Fails all operations in progress immediately.
  void abort();
  /// Waits until the communication thread has ended or the deadline has passed. To be called by the thread that
  /// destroys the engine, after `close` or `abort`.
  void join(std::chrono::steady_clock::time_point deadline);

 protected:
  /// The transport may notice the end of a process before the control plane reports the cause: how long the engine
  /// waits for the cause.
  static constexpr int64_t kFailureCauseGraceNs = 500'000'000;

  /// Why an operation cannot complete: `localFailure` for this rank; `peerFailure` is sent to the peers, empty if they
  /// have a report already.
  struct Diagnosis {
    MosaicFailure localFailure;
    std::optional<MosaicFailure> peerFailure;
  };

  Engine(TransportPtr transport, std::unique_ptr<ControlPlane> control, const EngineOptions& options,
         CompletionCallback onConnected);
  /// `start` must be the last call in a subclass's constructor, `stop` the first in its destructor.
  void start(const char* threadName);
  void stop();
  /// Sets the host number of each world rank. To be called once connected, by orderings for which hosts make a
  /// difference.
  void setHosts(std::vector<uint32_t> hosts);

  // ── implemented by an ordering; called on the communication thread unless stated otherwise
  /// Connects the transport; `bootstrap` is valid during the call. Throws Failure.
  virtual void connect(MosaicBootstrap& bootstrap) = 0;
  /// Executes operations until `isFinished`.
  virtual void run() = 0;
  /// Makes `run`, `connect` and `sleepFor` check for changes. May be called from any thread.
  virtual void wake() = 0;
  /// Sleeps until `wake` is called or the time has passed.
  virtual void sleepFor(int64_t nanoseconds) = 0;
  /// Creates an operation, which is ready once the compute work enqueued so far is done. Called on any thread, without
  /// the lock.
  virtual std::shared_ptr<Operation> makeOperation(bool waitsForCompute) = 0;
  virtual void onPosted(const std::shared_ptr<Operation>&) {}
  virtual void onDropped(Operation&) {}
  /// Whether the operation is done, even if it is still in the queue. Called on any thread, under the lock.
  virtual bool isDone(Operation&) { return false; }
  /// Returns the failure of this rank's device, if it failed before the operation.
  virtual std::optional<MosaicFailure> deviceFailure(Operation& op) = 0;
  /// Returns a failure of the operation's ranks that the transport itself has observed.
  virtual std::optional<Diagnosis> diagnoseTransport(Operation& op) = 0;
  /// Returns an error of the transport on this rank, even while the engine still waits for the control plane's cause.
  virtual std::optional<Diagnosis> transportError(const Operation&) { return std::nullopt; }
  /// Ends `ops`, all posted operations that have not completed, after the engine has failed. Called without the lock.
  virtual void onFailed(const MosaicFailure& failure, const std::vector<std::shared_ptr<Operation>>& ops) = 0;
  /// Makes the communicator of a split's new group; the group itself exists already. Returns false if the engine has
  /// failed.
  virtual bool openSplitGroup(Operation&, const std::vector<int64_t>& /*colors*/) { return true; }
  virtual void closeTransport() = 0;
  /// Returns the nanoseconds for which compute has waited for collectives. If that cannot be observed, the time for
  /// which operations with ready operands were in progress. Called on any thread, under the lock.
  virtual int64_t waitedNs() const;

  // ── what the engine provides to an ordering
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
  /// Records that data was transferred: resets the drain timer, and the interval until positions are requested.
  void recordProgress();
  /// Returns why the operation cannot complete, if it cannot. Requests positions if it has made no progress for a
  /// while.
  std::optional<Diagnosis> diagnose(Operation& op);
  /// The part of `diagnose` that also applies to operations that have not begun: lost and failed ranks, and mismatches.
  std::optional<Diagnosis> peerFailure(const Operation& op);
  std::optional<Diagnosis> indirectFailure(const Operation& op) const;
  /// Non-empty if a rank exited without making the calls that the operation needs. For transports whose messages carry
  /// no signature.
  std::optional<Diagnosis> exitFailure(const Operation& op);
  /// If another rank has requested this rank's position, reports the calls that were not compared yet.
  void reportIfRequested();
  void fail(const Diagnosis& diagnosis);
  /// Removes a completed operation from the front of the queue and adds it to the counters.
  void finishOperation(const std::shared_ptr<Operation>& op, const std::optional<TraceRecord>& trace);
  /// Exchanges the colors of a split and makes its group. Returns false if the engine has failed.
  bool executeSplit(const std::shared_ptr<Operation>& op);
  /// Waits for a condition, and fails the engine for the same reasons as operations. Returns false if it has failed.
  bool waitUntil(Operation& op, const std::function<bool()>& condition);
  /// Whether the control plane has delivered anything since the last call.
  bool consumeNewEvents() { return hasNewEvents_.exchange(false); }
  bool isTracing() const { return isTracing_; }
  Diagnosis localFailure(const Operation& op, MosaicFailureCode code, const std::string& text) const;
  /// Returns a text such as `ring(sp), rank 3`.
  std::string describeLocation(const Operation& op) const;
  MosaicFailure peerLostFailure(const Operation& op, const std::string& eventText) const;
  /// Returns the failure for a peer that closed in order although the operation needs it.
  Diagnosis peerExitFailure(const Operation& op, uint32_t rank);
  std::string describeProcess(uint32_t rank) const { return control_->describeProcess(rank); }
  /// Returns the failure for a mismatched message. If the calls before the operation differ, blocks for at most a few
  /// seconds, until the control plane has named them.
  Diagnosis mismatchFailure(const Operation& op, const MosaicMessage& message);
  /// Throws Failure if the operation is behind a split that other ranks on the same host thread have not called yet:
  /// waiting here would deadlock.
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
  std::optional<Diagnosis> diagnoseSplit(const Operation& op);
  std::optional<Diagnosis> diagnoseTimeout(Operation& op, int64_t now);
  void requestPositionsIfStalled(const Operation& op, int64_t now);
  /// Whether messages have no signature, so that the control plane compares them.
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

  // Functions of ControlListener, called on any thread.
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
  /// Events that the control plane has delivered. Under the lock.
  struct Events {
    std::map<uint32_t, std::string> lostRanks;  // by rank: its process
    std::map<uint32_t, MosaicFailure> failedRanks;
    int64_t firstFailureNs = 0;            // time of the first lost or failed rank
    std::map<uint32_t, int64_t> exitedRanks;  // by rank: time of its exit
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
  std::map<uint64_t, uint32_t> groupNumberBySplit_;  // by number of the split
  CallLog log_;
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t lastPostedNumber_ = 0;
  std::optional<MosaicFailure> failure_;
  uint64_t firstFailedNumber_ = 0;
  std::optional<Position> failedPosition_;
  std::string lastOperationName_;  // the last operation that completed
  int64_t runningNs_ = 0;  // total time of the completed operations: see `waitedNs`
  CompletionCallback onClosed_;
  bool hasExited_ = false, hasFailedClosing_ = false;
  std::condition_variable exitedCondition_;
  std::vector<TraceRecord> trace_;
  std::vector<TraceRequest> traceRequests_;

  // Used by the communication thread only.
  PositionRequest positionRequest_;
  uint64_t lastRequestId_ = 0;
  int64_t lastProgressNs_ = 0;
  ExitCounts exitCounts_;

  std::atomic<uint64_t> lastCompletedNumber_{0};
  std::atomic<int64_t> closingSinceNs_{0};  // time of `close`
  std::atomic<bool> hasFailed_{false}, isClosing_{false}, isStopped_{false}, isTracing_{false};
  std::atomic<bool> hasNewEvents_{false}, isReportRequested_{false};
  std::atomic<bool> hasEvents_{false};
  const EngineOptions options_;
  /// Shared because work of the compute stream may outlive the engine.
  const std::shared_ptr<RankCounters> counters_ = std::make_shared<RankCounters>();
  const TransportPtr transport_;
  const std::unique_ptr<ControlPlane> control_;
  CompletionCallback onConnected_;
  std::thread thread_;
};

}  // namespace mosaic
