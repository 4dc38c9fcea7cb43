// What the device does for native code of other packages: the ABI of the runtime's mosaic/device_port.h.
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

  /// An event, recorded again and again.
  struct PooledEvent {
    Event event;
    std::shared_ptr<const Timeline> timeline;  // of a timed one
    bool isTimed;
  };
  /// Any thread. Throws CallError.
  std::unique_ptr<PooledEvent> record(CUstream stream, bool isTimed);
  void recycle(std::unique_ptr<PooledEvent> pooledEvent);
  /// Its events are not recorded any more.
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
  std::vector<std::unique_ptr<PooledEvent>> freeEvents_[2];  // by whether they are timed; under mutex_
  std::map<CUstream, TimelineOrigin> origins_;             // under mutex_
};

}  // namespace mosaic::cuda
