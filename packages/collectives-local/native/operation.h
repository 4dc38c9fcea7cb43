// A collective under way: posted by the host, made ready by the compute stream, run by the communication thread.
#pragma once

#include <mosaic/failure.h>

#include <functional>
#include <mutex>

#include "plan.h"

namespace mosaic {

enum class OpState : uint32_t { Pending, Done, Failed };

struct Operation {
  // Set when posted, constant thereafter.
  uint64_t number = 0;  // of all operations of this rank
  std::shared_ptr<Group> group;
  std::shared_ptr<Segment> segment;
  uint32_t rank = 0;  // world rank
  Signature signature;
  std::vector<Stage> stages;
  std::string label;
  /// Runs on the communication thread when the operation is over; null failure: it succeeded.
  std::function<void(const MosaicFailure*)> settled;

  /// All compute that the operands depend on is done.
  std::atomic<bool> ready{false};
  std::atomic<uint32_t> state{static_cast<uint32_t>(OpState::Pending)};
  MosaicFailure failure{};  // valid once state is Failed
  int64_t startedAt = 0;  // for the communication thread

  std::string name() const { return nameOf(signature.op, signature.sequence, group->name); }
  /// `ring(sp), rank 3`
  std::string where() const { return (label.empty() ? "" : label + ", ") + "rank " + std::to_string(rank); }
  bool pending() const { return state.load() == static_cast<uint32_t>(OpState::Pending); }

  /// The compute stream has failed: the operation must not take place. Any thread, any number of times.
  void cancel(const MosaicFailure& cause);
  /// The cause, if it was cancelled.
  std::optional<MosaicFailure> cancelled();
  bool isCancelled() const { return cancelled_.load(); }

  void settle(OpState outcome);
  /// Sleeps until the operation is over.
  void await();

 private:
  std::mutex mutex_;
  std::atomic<bool> cancelled_{false};
  MosaicFailure cause_{};
};

/// Work for the compute stream that marks the operation ready when all work before it is done.
MosaicWork readyWork(std::shared_ptr<Operation> op);
/// Work for the compute stream that keeps later work back until the operation is over, and fails with it.
MosaicWork waitWork(std::shared_ptr<Operation> op);
/// Work for the compute stream that fails it.
MosaicWork failWork(const MosaicFailure& failure);

}  // namespace mosaic
