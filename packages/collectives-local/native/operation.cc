#include "operation.h"

namespace mosaic {

namespace {

// Waking a sleeping thread takes some 20 microseconds; a short operation is over before that.
constexpr int kSpins = 200;

std::shared_ptr<Operation>& operationOf(void* arg) { return *static_cast<std::shared_ptr<Operation>*>(arg); }

void dropOperation(void* arg) { delete static_cast<std::shared_ptr<Operation>*>(arg); }

int runReady(void* arg, const MosaicFailure* upstream, MosaicFailure*) {
  Operation& op = *operationOf(arg);
  if (upstream) op.cancel(*upstream);
  op.ready.store(true);
  op.segment->page(op.rank).doorbell.ring();
  return 0;
}

int runWait(void* arg, const MosaicFailure* upstream, MosaicFailure* failure) {
  Operation& op = *operationOf(arg);
  // Even then its memory may be given away only after the communication thread has let go of it.
  if (upstream) op.cancel(*upstream);
  op.await();
  if (upstream || op.state.load() == static_cast<uint32_t>(OpState::Done)) return 0;
  *failure = op.failure;
  return 1;
}

int runFail(void* arg, const MosaicFailure* upstream, MosaicFailure* failure) {
  if (upstream) return 0;
  *failure = *static_cast<MosaicFailure*>(arg);
  return 1;
}

}  // namespace

void Operation::cancel(const MosaicFailure& cause) {
  const std::lock_guard lock(mutex_);
  if (cancelled_.load()) return;
  cause_ = cause;
  cancelled_.store(true);
  segment->page(rank).doorbell.ring();
}

std::optional<MosaicFailure> Operation::cancelled() {
  const std::lock_guard lock(mutex_);
  if (!cancelled_.load()) return std::nullopt;
  return cause_;
}

void Operation::settle(OpState outcome) {
  state.store(static_cast<uint32_t>(outcome));
  futexWake(state, false);
}

void Operation::await() {
  for (int i = 0; i < kSpins && pending(); i++) relax();
  while (pending()) futexWait(state, static_cast<uint32_t>(OpState::Pending), -1, false);
}

MosaicWork readyWork(std::shared_ptr<Operation> op) {
  return {"collective ready", runReady, dropOperation, new std::shared_ptr<Operation>(std::move(op))};
}

MosaicWork waitWork(std::shared_ptr<Operation> op) {
  return {"collective wait", runWait, dropOperation, new std::shared_ptr<Operation>(std::move(op))};
}

MosaicWork failWork(const MosaicFailure& failure) {
  const auto drop = [](void* arg) { delete static_cast<MosaicFailure*>(arg); };
  return {"collective failed", runFail, drop, new MosaicFailure(failure)};
}

}  // namespace mosaic
