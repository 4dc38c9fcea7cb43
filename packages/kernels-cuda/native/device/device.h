// One GPU of this process: its context, compute stream, memory, and the kernels loaded into it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "device/failure.h"
#include "device/watcher.h"
#include "driver/driver.h"
#include "kernels/rows.h"

namespace mosaic::cuda {

struct MemoryStats {
  size_t allocated = 0, reserved = 0, peak = 0;
};

/// What ran: nanoseconds of CLOCK_MONOTONIC.
struct TraceEntry {
  const char* name;
  int64_t start, end;
};

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

/// How a kernel is started.
struct Grid {
  Dimensions blocks, threads;
  unsigned sharedBytes = 0;
};

class Device {
 public:
  /// Throws DriverError without a driver, Failure without such a GPU or without kernels for it.
  Device(int ordinal, size_t memoryLimit);
  ~Device();
  Device(const Device&) = delete;

  CUstream stream() const { return stream_; }
  Watcher& watcher() { return *watcher_; }
  /// 80 for 8.0.
  int capability() const { return capability_; }
  int multiprocessors() const { return multiprocessors_; }
  /// That a block may have, if it asks.
  unsigned mostSharedBytes() const { return static_cast<unsigned>(mostSharedBytes_); }
  const std::string& name() const { return name_; }

  /// Makes this device's context the calling thread's.
  void enter() const { driver().ctxSetCurrent(context_); }

  /// Starts a kernel with its one argument, a struct. Throws Failure; a failure sticks.
  template <class Parameters>
  void launch(const char* kernel, const Grid& grid, const Parameters& parameters) {
    launchBytes(kernel, grid, const_cast<Parameters*>(&parameters));
  }

  /// In stream order; null beyond the limit or what the GPU has. Zero bytes take one.
  CUdeviceptr allocate(size_t bytes);
  void free(CUdeviceptr address, size_t bytes);
  MemoryStats memory() const;
  void resetPeak() { peak_ = allocated_.load(); }
  void trim();
  size_t limit() const { return limit_; }

  /// Where kernels that are given indices leave the first bad one.
  BadIndex* badIndex() const { return badIndex_; }

  /// The first failure of this device, or null. Checks what the driver says, if it says anything.
  const MosaicFailure* failure() const { return failed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }
  void fail(MosaicFailureCode code, const std::string& message);

  void startTrace();
  /// To be called when all work so far is done.
  std::vector<TraceEntry> stopTrace();

 private:
  CUfunction functionOf(const char* kernel, unsigned sharedBytes);
  void launchBytes(const char* kernel, const Grid& grid, void* parameters);
  void load();

  struct Timed {
    const char* name;
    CUevent start, end;
  };

  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  CUmodule module_ = nullptr;
  CUmemoryPool pool_ = nullptr;
  std::string name_;
  int capability_ = 0, multiprocessors_ = 1, mostSharedBytes_ = 48 * 1024;
  size_t limit_;
  std::atomic<size_t> allocated_{0}, peak_{0};
  std::unordered_set<CUdeviceptr> live_;
  std::unordered_map<std::string, CUfunction> functions_;
  std::unique_ptr<Watcher> watcher_;
  BadIndex* badIndex_ = nullptr;
  std::mutex mutex_;
  std::atomic<bool> failed_{false};
  MosaicFailure failure_{};
  bool tracing_ = false;
  CUevent traceBegin_ = nullptr;
  int64_t traceBeginTime_ = 0;
  std::vector<Timed> timed_;
};

}  // namespace mosaic::cuda
