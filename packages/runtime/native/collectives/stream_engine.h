// Collectives over a stream-ordered transport. The communication thread enqueues whole operations on a stream of the
// device, in order, and observes their completion by events. Only this thread calls the transport. It never blocks, so
// that it notices failures.
#pragma once

#include <condition_variable>

#include "collectives/engine.h"
#include "mosaic/event_fd.h"

namespace mosaic {

class StreamEngine final : public Engine {
 public:
  StreamEngine(TransportPtr transport, const ComputeStream& compute, std::unique_ptr<ControlPlane> control,
               const EngineOptions& options, CompletionCallback onConnected);
  ~StreamEngine() override;

  /// Blocks the host until the operation is enqueued. This takes microseconds. Behind a split, or if the transport
  /// connects at its first use, it takes until the other ranks have reached the same point, at most until the timeout.
  /// Throws Failure if this host thread also drives those ranks, because they could never reach it.
  void wait(uint64_t number) override;

 private:
  struct StreamOperation;
  class Memory;
  /// A failure that a communicator reported, and the time of the report.
  struct TransportError {
    MosaicFailure failure;
    int64_t reportTimeNs;
  };

  /// Waking a thread takes tens of microseconds, so it polls for a short time before it sleeps.
  static constexpr int kMaxSpins = 64;

  // ── stream_engine.cc
  void run() override;
  void wake() override;
  void sleepFor(int64_t nanoseconds) override;
  std::shared_ptr<Operation> makeOperation(bool waitsForCompute) override;
  void onPosted(const std::shared_ptr<Operation>&) override { wake(); }
  void onDropped(Operation& op) override;
  bool isDone(Operation& op) override;
  std::optional<MosaicFailure> deviceFailure(Operation& op) override;
  std::optional<Diagnosis> diagnoseTransport(Operation& op) override;
  std::optional<Diagnosis> transportError(const Operation& op) override;
  void onFailed(const MosaicFailure& failure, const std::vector<std::shared_ptr<Operation>>& ops) override;
  /// Retires completed operations, and fails the engine if an operation cannot complete. Returns false if it has
  /// failed.
  bool poll();
  void retireCompleted();
  std::shared_ptr<StreamOperation> next();
  void launch(const std::shared_ptr<StreamOperation>& op);
  void launchSplit(const std::shared_ptr<StreamOperation>& op);
  bool enqueue(StreamOperation& op);
  bool enqueueStage(const StreamOperation& op, const Stage& stage, uint64_t memory);
  bool enqueueMessages(MosaicCommunicator* communicator, const Stage& stage, uint64_t memory);
  void markFinished(StreamOperation& op);
  void* recordEventOnStream(void* stream, bool isTimed);
  /// Makes later work on the device, including reuse of memory, run after all work on the communication stream.
  void enqueueComputeWait();
  void release(StreamOperation& op);

  // ── stream_communicators.cc
  void connect(MosaicBootstrap& bootstrap) override;
  bool openSplitGroup(Operation& op, const std::vector<int64_t>& colors) override;
  void closeTransport() override;
  bool enqueueOn(MosaicCommunicator* communicator, const MosaicStreamStage& stage);
  bool isReady(MosaicCommunicator* communicator);
  /// Waits until a communicator is READY. Returns false if the engine has failed; while the ranks connect, throws
  /// Failure.
  bool waitUntilReady(MosaicCommunicator* communicator);
  template <typename Condition>
  bool pollUntil(Condition condition);
  void throwIfConnectFailed();
  bool warmUp(MosaicCommunicator* communicator, const Group& group);
  void flush();
  void abortCommunicators(const std::vector<MosaicCommunicator*>& communicators);

  const MosaicStreamTransport& transport_;
  const std::string name_;  // name of the transport
  MosaicDevicePort& port_;
  void* const compute_;
  const EventFd wakeEvent_;

  // Used by the communication thread only.
  std::vector<MosaicCommunicator*> communicators_;  // by number of the group
  std::optional<TransportError> transportError_;
  uint64_t lastLaunchedNumber_ = 0;  // the last operation that was launched
  bool isConnected_ = false;
  int64_t connectDeadlineNs_ = 0;

  std::mutex launchMutex_;  // guards the following members, and some members of each operation
  void* stream_ = nullptr;  // written by the communication thread only
  std::condition_variable launchedCondition_;
};

/// An operation that is waiting to be enqueued on the stream, is enqueued, or is finished.
struct StreamEngine::StreamOperation : Operation {
  enum class State { Queued, Launched, Finished };
  // Under `launchMutex_`.
  State state = State::Queued;
  bool isAwaited = false;  // compute waits for it
  void* doneEvent = nullptr;  // event at the end of the operation, once launched

  void* readyEvent = nullptr;  // event: the compute that the operands depend on; null: nothing
  void* beginEvent = nullptr;  // timed event, if a trace is recorded; used by the communication thread only
};

/// Device memory that is allocated and released in the order of the communication stream.
class StreamEngine::Memory {
 public:
  /// Allocates nothing for 0 bytes. Throws Failure.
  Memory(MosaicDevicePort& port, void* stream, uint64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  uint64_t address() const { return address_; }

 private:
  MosaicDevicePort& port_;
  void* const stream_;
  uint64_t address_ = 0;
};

/// Calls a function of a C table. Throws the failure that it filled in, if it did not return 0.
template <typename Function>
void throwIfFailed(Function call) {
  MosaicFailure failure{};
  if (call(&failure) != 0) throw Failure(failure);
}

}  // namespace mosaic
