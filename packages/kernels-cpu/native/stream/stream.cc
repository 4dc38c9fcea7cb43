#include "stream/stream.h"

#include <cstring>
#include <new>
#include <string>
#include <thread>

#include "mosaic/clock.h"
#include "pool/pause.h"

namespace mosaic {

void fillFailureFromException(MosaicFailure& failure) {
  try {
    throw;
  } catch (const Failure& error) {
    failure = failureRecord(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    failure = failureRecord(MOSAIC_FAILURE_OUT_OF_MEMORY,
                            "out of memory for the scratch space of a kernel; use smaller tensors");
  } catch (const std::exception& error) {
    failure = failureRecord(MOSAIC_FAILURE_DEVICE, error.what());
  } catch (...) {
    failure = failureRecord(MOSAIC_FAILURE_DEVICE, "unknown native exception");
  }
}

namespace {

// Waking a parked thread costs 5 µs natively and up to 25 µs in a virtual machine; spin for about as long before
// parking.
constexpr int64_t kMaxSpinNs = 20'000;

// Number of streams that are spinning. A process may drive many devices on few cores, so one core is left to the host.
std::atomic<int> spinningStreamCount{0};

const MosaicFailure& closedFailure() {
  static const MosaicFailure failure =
      failureRecord(MOSAIC_FAILURE_CLOSED, "stream: expected an open device, received a disposed device; dispose the "
                                           "device after all work has completed");
  return failure;
}

void submitTo(MosaicStream* stream, const MosaicWork* work) { static_cast<Stream*>(stream)->append(*work); }

void runOnClosedStream(const MosaicWork& work) {
  MosaicFailure ignoredFailure{};
  work.run(work.arg, &closedFailure(), &ignoredFailure);
  if (work.drop) work.drop(work.arg);
}

}  // namespace

Stream::Stream() : MosaicStream{MOSAIC_STREAM_ABI, submitTo} {}

void Stream::append(const MosaicWork& work) {
  {
    std::unique_lock lock(mutex_);
    if (!isClosed_) {
      queue_.push_back(work);
      submittedCount_++;
      hasWork_.store(true, std::memory_order_release);
      const bool wasParked = std::exchange(isParked_, false);
      lock.unlock();
      if (wasParked) workCondition_.notify_one();
      return;
    }
  }
  runOnClosedStream(work);
}

void Stream::run() {
  std::vector<MosaicWork> batch;
  while (waitForBatch(batch)) {
    for (const MosaicWork& work : batch) execute(work);
    batch.clear();
  }
}

bool Stream::waitForBatch(std::vector<MosaicWork>& batch) {
  spinUntilWork();
  std::unique_lock lock(mutex_);
  while (queue_.empty() && !isClosed_) {
    isParked_ = true;
    workCondition_.wait(lock, [this] { return !isParked_; });
  }
  batch.swap(queue_);
  if (!isClosed_) hasWork_.store(false, std::memory_order_relaxed);
  return !batch.empty();
}

void Stream::spinUntilWork() {
  if (hasWork_.load(std::memory_order_acquire)) return;
  static const int coreCount = static_cast<int>(std::thread::hardware_concurrency());
  if (spinningStreamCount.fetch_add(1) < coreCount - 1) {
    const int64_t end = monotonicNs() + kMaxSpinNs;
    while (!hasWork_.load(std::memory_order_acquire) && monotonicNs() < end) {
      for (int i = 0; i < 16; i++) cpuRelax();
    }
  }
  spinningStreamCount.fetch_sub(1);
}

void Stream::execute(const MosaicWork& work) {
  if (isAbandoned_.load(std::memory_order_relaxed)) fail("", closedFailure());
  const bool isTraced = isTracing_ && work.name[0] != '\0';
  const int64_t start = isTraced ? monotonicNs() : 0;
  MosaicFailure failure;
  failure.code = MOSAIC_FAILURE_NONE;
  failure.message[0] = '\0';
  if (work.run(work.arg, this->failure(), &failure) != 0) fail(work.name, failure);
  if (isTraced) trace_.push_back({work.name, start, monotonicNs()});
  if (work.drop) work.drop(work.arg);
  doneCount_.fetch_add(1);
  if (waiterCount_.load() > 0) {
    std::lock_guard lock(mutex_);
    progressCondition_.notify_all();
  }
}

void Stream::fail(const char* name, const MosaicFailure& failure) {
  if (hasFailed_.load(std::memory_order_relaxed)) return;
  failure_ = failure;
  // Collectives report the place of a failure themselves; a kernel does not have the name it is called by.
  const bool needsName = failure.code == MOSAIC_FAILURE_DEVICE || failure.code == MOSAIC_FAILURE_OUT_OF_MEMORY;
  if (needsName && name[0] != '\0' && std::strncmp(failure.message, name, std::strlen(name)) != 0) {
    const std::string message = std::string(name) + ": " + failure.message;
    failure_ = failureRecord(static_cast<MosaicFailureCode>(failure.code), message);
  }
  failedPosition_ = doneCount_.load() + 1;
  hasFailed_.store(true, std::memory_order_release);
}

uint64_t Stream::position() {
  std::lock_guard lock(mutex_);
  return submittedCount_;
}

const MosaicFailure* Stream::waitFor(uint64_t position) {
  if (doneCount_.load() < position) {
    std::unique_lock lock(mutex_);
    waiterCount_.fetch_add(1);
    progressCondition_.wait(lock, [&] { return doneCount_.load() >= position; });
    waiterCount_.fetch_sub(1);
  }
  const MosaicFailure* failure = this->failure();
  return failure && failedPosition_ <= position ? failure : nullptr;
}

void Stream::close() {
  {
    std::lock_guard lock(mutex_);
    isClosed_ = true;
    isParked_ = false;
    hasWork_.store(true, std::memory_order_release);
  }
  workCondition_.notify_one();
}

void Stream::closeAndFailPending() {
  isAbandoned_.store(true);
  close();
}

}  // namespace mosaic
