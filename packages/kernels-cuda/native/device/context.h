// A GPU's primary context, shared by all users of the GPU in a process.
#pragma once

#include <memory>
#include <string>

#include "driver/driver.h"

namespace mosaic::cuda {

/// Retained for as long as anything uses it: a fence may outlive the device that recorded it.
class Context {
 public:
  /// Throws DriverError without a driver, and Failure if the GPU does not exist or is too old.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;

  /// Makes it the calling thread's current context. Required on every thread before driver calls, because another
  /// library may have set a different one.
  void enter() const { driver().ctxSetCurrent(context_); }

  CUdevice device() const { return device_; }
  const std::string& name() const { return name_; }
  /// Compute capability: 80 for 8.0.
  int capability() const { return capability_; }
  int multiprocessors() const { return multiprocessors_; }
  /// Maximum grid size along y and z.
  int maxGridDim() const { return maxGridDim_; }
  /// Maximum shared memory per block in bytes, with the opt-in attribute.
  int maxSharedBytes() const { return maxSharedBytes_; }

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  int capability_ = 0, multiprocessors_ = 1, maxGridDim_ = 65535, maxSharedBytes_ = 48 * 1024;
};

/// A CUDA event.
class Event {
 public:
  /// Throws CallError.
  explicit Event(std::shared_ptr<const Context> context, unsigned flags = EVENT_DISABLE_TIMING);
  ~Event();
  Event(const Event&) = delete;
  CUevent get() const { return event_; }

 private:
  std::shared_ptr<const Context> context_;
  CUevent event_ = nullptr;
};

}  // namespace mosaic::cuda
