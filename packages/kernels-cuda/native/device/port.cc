#include "device/port.h"

#include <algorithm>

#include "device/device.h"
#include "kernels/reduce.h"
#include "mosaic/clock.h"

namespace mosaic::cuda {

namespace {

/// Maximum age of a timeline's origin. Distances from it are float milliseconds, exact to a microsecond within 10 s.
constexpr int64_t kMaxOriginAgeNs = 10'000'000'000;

Port& portOf(MosaicDevicePort* port) { return *static_cast<Port*>(port); }
Device& deviceOf(MosaicDevicePort* port) { return portOf(port).device(); }
CUstream streamOf(void* handle) { return static_cast<CUstream>(handle); }
Port::PooledEvent* eventOf(void* event) { return static_cast<Port::PooledEvent*>(event); }

/// Runs `body` and stores its exception in `failure`. The device adds the details of a failed driver call.
template <class Body>
int captureFailure(MosaicDevicePort* port, MosaicFailure* failure, Body body) {
  return mosaic::captureFailure(failure, "communication", [&] {
    try {
      body();
    } catch (const CallError& error) {
      throw deviceOf(port).describeFailure(error);
    }
  });
}

void enter(MosaicDevicePort* port) { deviceOf(port).enter(); }

void fail(MosaicDevicePort* port, const MosaicFailure* failure) {
  deviceOf(port).fail(static_cast<MosaicFailureCode>(failure->code), failure->message);
}

int failureOf(MosaicDevicePort* port, MosaicFailure* out) {
  const MosaicFailure* failure = deviceOf(port).failure();
  if (failure) *out = *failure;
  return failure ? 1 : 0;
}

int createStream(MosaicDevicePort* port, void** stream, MosaicFailure* failure) {
  return captureFailure(port, failure, [&] {
    CUstream createdStream = nullptr;
    check(driver().streamCreate(&createdStream, STREAM_NON_BLOCKING), "creating a stream");
    *stream = createdStream;
  });
}

void destroyStream(MosaicDevicePort* port, void* stream) {
  portOf(port).onStreamDestroyed(streamOf(stream));
  driver().streamDestroy(streamOf(stream));
}

int recordEvent(MosaicDevicePort* port, void* stream, int isTimed, void** event, MosaicFailure* failure) {
  return captureFailure(port, failure, [&] { *event = portOf(port).record(streamOf(stream), isTimed != 0).release(); });
}

int waitEvent(MosaicDevicePort* port, void* stream, void* event, MosaicFailure* failure) {
  return captureFailure(port, failure, [&] {
    check(driver().streamWaitEvent(streamOf(stream), eventOf(event)->event.get(), 0), "waiting for an event");
  });
}

int queryEvent(MosaicDevicePort* port, void* event, MosaicFailure* failure) {
  const CUresult code = driver().eventQuery(eventOf(event)->event.get());
  if (code == CUDA_SUCCESS) return MOSAIC_EVENT_DONE;
  if (code == CUDA_ERROR_NOT_READY) return MOSAIC_EVENT_PENDING;
  captureFailure(port, failure, [&] { check(code, "communication"); });
  return MOSAIC_EVENT_FAILED;
}

int64_t timeOf(MosaicDevicePort*, void* event) {
  const Port::PooledEvent& pooledEvent = *eventOf(event);
  return pooledEvent.timeline->timeOf(pooledEvent.event);
}

void releaseEvent(MosaicDevicePort* port, void* event) {
  portOf(port).recycle(std::unique_ptr<Port::PooledEvent>(eventOf(event)));
}

int copy(MosaicDevicePort* port, uint64_t to, uint64_t from, size_t bytes, void* stream, MosaicFailure* failure) {
  return captureFailure(port, failure,
                        [&] { check(driver().memcpyDtoDAsync(to, from, bytes, streamOf(stream)), "copying"); });
}

int allocate(MosaicDevicePort* port, uint64_t* address, size_t bytes, void* stream, MosaicFailure* failure) {
  return captureFailure(port, failure, [&] {
    CUdeviceptr memory = 0;
    const CUresult code = deviceOf(port).memory().allocateScratch(&memory, bytes, streamOf(stream));
    if (code == CUDA_ERROR_OUT_OF_MEMORY) {
      throw Failure(MOSAIC_FAILURE_OUT_OF_MEMORY,
                    "out of memory for " + std::to_string(bytes) + " bytes of receive buffers");
    }
    check(code, "allocating memory");
    *address = memory;
  });
}

void release(MosaicDevicePort* port, uint64_t address, void* stream) {
  deviceOf(port).memory().release(address, streamOf(stream));
}

int reduce(MosaicDevicePort* port, const MosaicRankReduction* r, void* stream, MosaicFailure* failure) {
  Device& device = deviceOf(port);
  const auto operand = [&](uint64_t address) {
    Operand operand{};
    operand.data = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    operand.dtype = static_cast<DType>(r->dtype);
    return operand;
  };
  ReduceRanksParameters p{operand(r->out), operand(r->own), operand(r->others), r->count,
                          r->ranks,        r->rank,         static_cast<MosaicReduceOp>(r->op)};
  constexpr int64_t kThreads = 256;
  const int64_t blocks = std::min((r->count + kThreads - 1) / kThreads, int64_t{device.multiprocessors()} * 16);
  void* arguments[] = {&p};
  return captureFailure(port, failure, [&] {
    check(driver().launchKernel(device.reduceRanksKernel(), static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0,
                                streamOf(stream), arguments, nullptr),
          "reduceRanks");
  });
}

constexpr MosaicDevicePort kPortFunctions{MOSAIC_DEVICE_PORT_ABI, enter,       fail,      failureOf,  createStream,
                                          destroyStream,          recordEvent, waitEvent, queryEvent, timeOf,
                                          releaseEvent,           copy,        allocate,  release,    reduce};

}  // namespace

Port::Port(Device& device) : MosaicDevicePort(kPortFunctions), device_(device) {}

std::unique_ptr<Port::PooledEvent> Port::acquireEvent(bool isTimed) {
  {
    const std::lock_guard lock(mutex_);
    auto& freeEvents = freeEvents_[isTimed];
    if (!freeEvents.empty()) {
      auto pooledEvent = std::move(freeEvents.back());
      freeEvents.pop_back();
      return pooledEvent;
    }
  }
  const unsigned flags = isTimed ? 0 : EVENT_DISABLE_TIMING;
  return std::unique_ptr<PooledEvent>(new PooledEvent{Event(device_.context(), flags), nullptr, isTimed});
}

std::unique_ptr<Port::PooledEvent> Port::record(CUstream stream, bool isTimed) {
  auto pooledEvent = acquireEvent(isTimed);
  if (isTimed) pooledEvent->timeline = getTimeline(stream);
  check(driver().eventRecord(pooledEvent->event.get(), stream), "recording an event");
  return pooledEvent;
}

void Port::recycle(std::unique_ptr<PooledEvent> pooledEvent) {
  const std::lock_guard lock(mutex_);
  pooledEvent->timeline = nullptr;
  freeEvents_[pooledEvent->isTimed].push_back(std::move(pooledEvent));
}

void Port::onStreamDestroyed(CUstream stream) {
  const std::lock_guard lock(mutex_);
  origins_.erase(stream);
}

std::shared_ptr<const Timeline> Port::getTimeline(CUstream stream) {
  const std::lock_guard lock(mutex_);
  TimelineOrigin& origin = origins_[stream];
  const int64_t now = monotonicNs();
  if (!origin.timeline || now - origin.creationTimeNs > kMaxOriginAgeNs) {
    origin = {std::make_shared<const Timeline>(device_.context(), stream), now};
  }
  return origin.timeline;
}

}  // namespace mosaic::cuda
