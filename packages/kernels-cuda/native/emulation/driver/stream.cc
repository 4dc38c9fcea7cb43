// Entry points of the emulated driver for streams and events.
#include "mosaic/clock.h"
#include "state.h"
#include "stream.h"

namespace emulated {

CUresult ContextStatus::get() const {
  const std::lock_guard lock(mutex_);
  return code_;
}

void ContextStatus::fail(CUresult code) {
  const std::lock_guard lock(mutex_);
  if (code_ == 0) code_ = code;
}

// Never destroyed, because threads may outlive main.
ContextStatus& contextStatus() {
  static auto& status = *new ContextStatus;
  return status;
}

bool& isInCallback() {
  static thread_local bool isCallbackThread = false;
  return isCallbackThread;
}

Stream& streamOf(CUstream handle) {
  static auto& defaultStream = *new Stream;
  return handle ? *reinterpret_cast<Stream*>(handle) : defaultStream;
}

void EventRecord::complete() {
  const int64_t now = mosaic::monotonicNs();
  const std::lock_guard lock(mutex_);
  isComplete_ = true;
  timeNs_ = now;
  completedCondition_.notify_all();
}

void EventRecord::waitUntilComplete() {
  std::unique_lock lock(mutex_);
  completedCondition_.wait(lock, [&] { return isComplete_; });
}

bool EventRecord::isComplete() {
  const std::lock_guard lock(mutex_);
  return isComplete_;
}

int64_t EventRecord::timeNs() {
  const std::lock_guard lock(mutex_);
  return timeNs_;
}

Event::Event() { latestRecord_->complete(); }

std::shared_ptr<EventRecord> Event::record() {
  auto record = std::make_shared<EventRecord>();
  const std::lock_guard lock(mutex_);
  return latestRecord_ = std::move(record);
}

std::shared_ptr<EventRecord> Event::latestRecord() {
  const std::lock_guard lock(mutex_);
  return latestRecord_;
}

Stream::Stream() : thread_([this] { loop(); }) {}

Stream::~Stream() {
  {
    const std::lock_guard lock(mutex_);
    isClosed_ = true;
  }
  workCondition_.notify_one();
  thread_.join();
}

void Stream::enqueue(std::function<void()> work, bool runsAfterFailure) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(work), runsAfterFailure});
  }
  workCondition_.notify_one();
}

bool Stream::isIdle() {
  const std::lock_guard lock(mutex_);
  return queue_.empty() && !isBusy_;
}

void Stream::synchronize() {
  std::unique_lock lock(mutex_);
  drainedCondition_.wait(lock, [&] { return queue_.empty() && !isBusy_; });
}

void Stream::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    workCondition_.wait(lock, [&] { return isClosed_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Work work = std::move(queue_.front());
    queue_.pop_front();
    isBusy_ = true;
    lock.unlock();
    if (work.runsAfterFailure || contextStatus().get() == 0) work.run();
    work.run = nullptr;
    lock.lock();
    isBusy_ = false;
    if (queue_.empty()) drainedCondition_.notify_all();
  }
}

}  // namespace emulated

using namespace emulated;
using namespace mosaic::cuda;

namespace {

Event& eventOf(CUevent handle) { return *reinterpret_cast<Event*>(handle); }

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult code = checkReady()) return code;
  *stream = reinterpret_cast<CUstream>(new Stream);
  return liveResources().streams++, CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  delete reinterpret_cast<Stream*>(stream);
  return liveResources().streams--, contextStatus().get();
}

CUresult cuStreamQuery(CUstream stream) {
  if (const CUresult code = checkReady()) return code;
  return streamOf(stream).isIdle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (const CUresult code = checkReady()) return code;
  streamOf(stream).synchronize();
  return contextStatus().get();
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (const CUresult code = checkReady()) return code;
  streamOf(stream).enqueue([record = eventOf(event).latestRecord()] { record->waitUntilComplete(); }, true);
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (isInCallback()) return CUDA_ERROR_NOT_PERMITTED;
  const auto call = [function, data] {
    isInCallback() = true;
    function(data);
    isInCallback() = false;
  };
  // After a failure, a GPU may drop the callback. The emulation always runs it, so that waiting threads are notified
  // and tests end.
  streamOf(stream).enqueue(call, true);
  return contextStatus().get();
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  if (const CUresult code = checkReady()) return code;
  *event = reinterpret_cast<CUevent>(new Event);
  return liveResources().events++, CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (liveResources().contexts == 0)
    setStickyError(CUDA_ERROR_INVALID_CONTEXT, "an event is destroyed after its context");
  delete &eventOf(event);
  return liveResources().events--, contextStatus().get();
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (const CUresult code = checkReady()) return code;
  streamOf(stream).enqueue([record = eventOf(event).record()] { record->complete(); }, true);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  if (const CUresult code = checkReady()) return code;
  return eventOf(event).latestRecord()->isComplete() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  if (const CUresult code = checkReady()) return code;
  eventOf(event).latestRecord()->waitUntilComplete();
  return contextStatus().get();
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  const int64_t elapsedNs = eventOf(end).latestRecord()->timeNs() - eventOf(start).latestRecord()->timeNs();
  *milliseconds = static_cast<float>(elapsedNs) / 1e6f;
  return contextStatus().get();
}

}  // extern "C"
