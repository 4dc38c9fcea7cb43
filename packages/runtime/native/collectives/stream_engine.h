// Collectives over a stream-ordered transport: the communication thread enqueues whole operations on a stream of the
// device, in order, and observes their completion by events. It alone calls the transport, and never blocks, so that it
// notices whatever goes wrong.
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

  /// Blocks the host until the operation is enqueued: microseconds, but behind a split, or where the transport connects
  /// when it is first used, until the other ranks have come to it, too; at most until the timeout. Throws Failure where
  /// this host thread drives those ranks, so that they could not.
  void wait(uint64_t number) override;

 private:
  struct StreamOperation;
  class Memory;
  /// What a communicator reported, and when.
  struct TransportError {
    MosaicFailure failure;
    int64_t reportTimeNs;
  };

  /// A sleeping thread takes tens of microseconds to wake, so it looks a little longer before it sleeps.
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
  /// Concludes what is done, and fails if an operation cannot complete. False: the engine has failed.
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
  /// Later work on the device, reuse of memory included, runs after what the communication stream still holds.
  void enqueueComputeWait();
  void release(StreamOperation& op);

  // ── stream_communicators.cc
  void connect(MosaicBootstrap& bootstrap) override;
  bool openSplitGroup(Operation& op, const std::vector<int64_t>& colors) override;
  void closeTransport() override;
  bool enqueueOn(MosaicCommunicator* communicator, const MosaicStreamStage& stage);
  bool isReady(MosaicCommunicator* communicator);
  /// Waits until a communicator is READY. False: the engine has failed; while the ranks connect, throws Failure.
  bool waitUntilReady(MosaicCommunicator* communicator);
  template <typename Condition>
  bool pollUntil(Condition condition);
  void throwIfConnectFailed();
  bool warmUp(MosaicCommunicator* communicator, const Group& group);
  void flush();
  void abortCommunicators(const std::vector<MosaicCommunicator*>& communicators);

  const MosaicStreamTransport& transport_;
  const std::string name_;  // the transport's
  MosaicDevicePort& port_;
  void* const compute_;
  const EventFd wakeEvent_;

  // Of the communication thread.
  std::vector<MosaicCommunicator*> communicators_;  // by number of the group
  std::optional<TransportError> transportError_;
  uint64_t lastLaunchedNumber_ = 0;  // the last operation that was launched
  bool isConnected_ = false;
  int64_t connectDeadlineNs_ = 0;

  std::mutex launchMutex_;  // guards what follows, and some of each operation
  void* stream_ = nullptr;  // written by the communication thread only
  std::condition_variable launchedCondition_;
};

/// An operation on its way to the stream, on it, or over.
struct StreamEngine::StreamOperation : Operation {
  enum class State { Queued, Launched, Finished };
  // Under `launchMutex_`.
  State state = State::Queued;
  bool isAwaited = false;  // compute waits for it
  void* doneEvent = nullptr;  // event, once launched

  void* readyEvent = nullptr;  // event: the compute that the operands depend on; null: nothing
  void* beginEvent = nullptr;  // timed event, where a trace is recorded; of the communication thread
};

/// Memory of the device in the order of the communication stream.
class StreamEngine::Memory {
 public:
  /// None of 0 bytes. Throws Failure.
  Memory(MosaicDevicePort& port, void* stream, uint64_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  uint64_t address() const { return address_; }

 private:
  MosaicDevicePort& port_;
  void* const stream_;
  uint64_t address_ = 0;
};

/// Throws the failure that a function of a C table filled in, if it did not return 0.
template <typename Function>
void throwIfFailed(Function call) {
  MosaicFailure failure{};
  if (call(&failure) != 0) throw Failure(failure);
}

}  // namespace mosaic
