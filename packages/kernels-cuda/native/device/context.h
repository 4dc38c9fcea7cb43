// A GPU's primary context: what all of a process that uses the GPU shares.
#pragma once

#include <memory>
#include <string>

#include "driver/driver.h"

namespace mosaic::cuda {

/// Held for as long as anything of it is: a fence may outlive the device that recorded it.
class Context {
 public:
  /// Throws DriverError without a driver, Failure without such a GPU, or if it is too old.
  explicit Context(int ordinal);
  ~Context();
  Context(const Context&) = delete;

  /// Makes it the calling thread's: every thread that calls the driver must, and another library may have set its own.
  void enter() const { driver().ctxSetCurrent(context_); }

  CUdevice device() const { return device_; }
  const std::string& name() const { return name_; }
  /// 80 for 8.0.
  int capability() const { return capability_; }
  int multiprocessors() const { return multiprocessors_; }
  /// How far a grid may reach along y and along z.
  int maxGridDim() const { return maxGridDim_; }
  /// Of shared memory that a block may have, with the opt-in attribute.
  int maxSharedBytes() const { return maxSharedBytes_; }

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  int capability_ = 0, multiprocessors_ = 1, maxGridDim_ = 65535, maxSharedBytes_ = 48 * 1024;
};

/// A mark in a stream.
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
