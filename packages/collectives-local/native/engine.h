// One rank's communication: a thread that runs posted operations in order, each when compute has made it ready.
//
// An engine fails once: the first operation that fails takes all later ones with it, and the other ranks, which would
// otherwise wait for messages that never come, learn the cause from this rank's page and fail with it.
#pragma once

#include <deque>
#include <thread>

#include "operation.h"
#include "peers.h"

namespace mosaic {

struct TraceRecord {
  OpKind op;
  std::string label;   // the caller's, else the group's name
  int64_t start, end;  // nanoseconds of CLOCK_MONOTONIC
  Bytes bytes;
};

struct EngineOptions {
  int64_t timeoutNs = 300'000'000'000;
  /// When closing: how long to wait for ranks that do not move; negative: as long as the timeout allows.
  int64_t drainNs = -1;
};

/// What the caller of a collective hands over.
struct Post {
  std::shared_ptr<Group> group;
  Call call;
  std::string label;
  MosaicStream* stream = nullptr;  // null: the operands are there already
  std::function<void(const MosaicFailure*)> settled;
};

class Engine {
 public:
  Engine(std::shared_ptr<Segment> segment, uint32_t rank, EngineOptions options);
  /// Aborts, and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return segment_->size(); }
  /// Returns the operation's number. Throws Failure once the engine has failed or is closed.
  uint64_t post(Post post);
  /// Later work on `stream` runs after the operation, and fails with it.
  void wait(uint64_t number, MosaicStream& stream);
  /// All operations up to this number are over.
  uint64_t completed() const { return segment_->page(rank_).completed.load(); }

  /// Accepts nothing more, finishes what was posted, says goodbye, then calls `left` on the communication thread.
  void close(std::function<void()> left);
  /// Fails whatever is under way, at once.
  void abort();

  void startTrace();
  std::vector<TraceRecord> stopTrace();

 private:
  void run();
  std::shared_ptr<Operation> next();
  std::optional<MosaicFailure> execute(Operation& op, Bytes& bytes);
  std::optional<MosaicFailure> finish(Operation& op, Exchange& exchange, const Stage& stage, int64_t start);
  std::optional<MosaicFailure> trouble(Operation& op, const Stage& stage, int64_t start);
  std::optional<MosaicFailure> peerTrouble(Operation& op, const Stage& stage);
  std::optional<MosaicFailure> lostPeer(const Operation& op, const Stage& stage);
  std::optional<MosaicFailure> cancellation(Operation& op);
  void begin(const Operation& op);
  void conclude(const std::shared_ptr<Operation>& op, const std::optional<MosaicFailure>& failure,
                const Bytes& bytes);
  void publish(const MosaicFailure& failure);
  void leave();
  ControlPage& page() const { return segment_->page(rank_); }

  const std::shared_ptr<Segment> segment_;
  const uint32_t rank_;
  const EngineOptions options_;
  Peers peers_;
  int64_t refreshedAt_ = 0;
  int64_t movedAt_ = 0;

  std::mutex mutex_;  // guards what follows, up to the thread
  std::deque<std::shared_ptr<Operation>> queue_;
  uint64_t posted_ = 0;
  std::optional<MosaicFailure> failure_;
  uint64_t failedFrom_ = 0;
  std::function<void()> left_;
  bool gone_ = false;
  std::vector<TraceRecord> trace_;

  std::atomic<bool> closing_{false};
  std::atomic<bool> stop_{false};
  std::atomic<bool> tracing_{false};
  std::thread thread_;
};

}  // namespace mosaic
