// The device's functions for native code of other packages: the ABI of the runtime's mosaic/device_port.h.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "device/trace.h"
#include "mosaic/device_port.h"

namespace mosaic::cuda {

class Device;

class Port : public MosaicDevicePort {
 public:
  explicit Port(Device& device);
  Device& device() const { return device_; }

  /// A reusable event.
  struct PooledEvent {
    Event event;
    std::shared_ptr<const Timeline> timeline;  // set if the event is timed
    bool isTimed;
  };
  /// May be called from any thread. Throws CallError.
  std::unique_ptr<PooledEvent> record(CUstream stream, bool isTimed);
  void recycle(std::unique_ptr<PooledEvent> pooledEvent);
  /// Called after the stream's last event is recorded.
  void onStreamDestroyed(CUstream stream);

 private:
  struct TimelineOrigin {
    std::shared_ptr<const Timeline> timeline;
    int64_t creationTimeNs;
  };
  std::unique_ptr<PooledEvent> acquireEvent(bool isTimed);
  std::shared_ptr<const Timeline> getTimeline(CUstream stream);

  Device& device_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<PooledEvent>> freeEvents_[2];  // indexed by whether they are timed; under mutex_
  std::map<CUstream, TimelineOrigin> origins_;             // under mutex_
};

}  // namespace mosaic::cuda
