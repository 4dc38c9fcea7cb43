// One GPU of this process: its context, compute stream, memory, and the kernels loaded into it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "blas/blas.h"
#include "device/context.h"
#include "device/memory.h"
#include "device/module.h"
#include "device/port.h"
#include "device/trace.h"
#include "device/event_watcher.h"
#include "kernels/rows.h"
#include "mosaic/failure.h"

namespace mosaic::cuda {

// Which kernels were started lately: a GPU reports that one of them failed, not which.

class LaunchHistory {
 public:
  /// `kernel` has static lifetime.
  void record(const char* kernel);
  /// How many were started so far.
  uint64_t count() const;
  /// The first `count` are done, and well.
  void markCompleted(uint64_t count);
  /// "matmul", or "one of fill, matmul": what was started after that. "" if nothing was.
  std::string describePending() const;

 private:
  static constexpr uint64_t kCapacity = 16;
  mutable std::mutex mutex_;
  std::array<const char*, kCapacity> kernels_{};  // all under mutex_
  uint64_t startedCount_ = 0, completedCount_ = 0;
};

struct DeviceOptions {
  int ordinal = 0;
  size_t memoryLimit = 0;  // 0: what the GPU has
  bool allowsTf32 = false;       // whether products of float32 may round their factors to TF32
};

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

/// How a kernel is started.
struct Grid {
  Dimensions blocks, threads;
  unsigned sharedBytes = 0;
};

/// Belongs to one thread, which must have entered; functions documented so may be called by any.
class Device {
 public:
  /// Gets the device's failure, or null. Called on the watcher's thread; must not throw.
  using Callback = std::function<void(const MosaicFailure*)>;

  /// Throws DriverError without a driver, Failure without such a GPU or without kernels for it.
  explicit Device(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;

  /// Returns at once: what is enqueued still runs, its callbacks come, then everything is given back.
  static void close(std::unique_ptr<Device> device);

  const std::shared_ptr<const Context>& context() const { return context_; }
  void enter() const { context_->enter(); }
  CUstream stream() const { return stream_.get(); }
  int capability() const { return context_->capability(); }
  /// Whether it has attention kernels of its own, those for Hopper, and may use them.
  bool hasHopperKernels() const { return hasHopperKernels_; }
  int multiprocessors() const { return context_->multiprocessors(); }
  /// How far a grid may reach along y and along z.
  unsigned maxGridDim() const { return static_cast<unsigned>(context_->maxGridDim()); }
  /// That a block may have, with the opt-in attribute.
  unsigned maxSharedBytes() const { return static_cast<unsigned>(context_->maxSharedBytes()); }
  Memory& memory() { return *memory_; }
  PinnedCache& pinnedCache() { return pinnedCache_; }
  Blas& blas() { return *blas_; }
  /// For native code of other packages.
  MosaicDevicePort& port() { return port_; }
  /// A kernel that any thread may start on any stream.
  CUfunction reduceRanksKernel() const { return reduceRanksKernel_; }

  /// Starts a kernel with its one argument, a struct. Throws CallError.
  template <class Parameters>
  void launch(const char* kernel, const Grid& grid, const Parameters& parameters) {
    launchKernel(kernel, grid, const_cast<Parameters*>(&parameters));
  }

  /// Lets `enqueue` put work into the stream, which traces and errors shall call `name`, of static lifetime.
  template <class Enqueue>
  void run(const char* name, Enqueue enqueue) {
    history_.record(name);
    if (trace_) trace_->recordStart(name);
    enqueue();
    if (trace_) trace_->recordEnd();
  }

  /// Calls back once all work so far is done, or has failed. In the order of calls.
  void onComplete(Callback callback);
  /// Holds `memory` until all work so far is done.
  void retainUntilComplete(std::shared_ptr<void> memory);
  /// Gives unused memory back to the system, once all work so far is done.
  void trim();

  /// Where kernels that are given indices leave the first bad one.
  BadIndex* badIndex() const { return badIndex_; }

  /// The first failure of this device, or null. Any thread.
  const MosaicFailure* failure() const { return hasFailed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }
  /// Any thread.
  void fail(MosaicFailureCode code, const std::string& message);
  /// What to report of a call that failed: of a context that is lost, which kernels may have done it. Then the device
  /// fails. Any thread.
  Failure describeFailure(const CallError& error);

  /// Everything that is started from now on.
  void startTrace();
  /// Calls back with what ran since startTrace; with nothing if that was not called, or the device failed.
  void stopTrace(std::function<void(std::vector<TraceEntry>)> callback);

 private:
  /// A stream, to be destroyed after all that uses it.
  class Stream {
   public:
    Stream();
    ~Stream();
    CUstream get() const { return stream_; }

   private:
    CUstream stream_ = nullptr;
  };

  void launchKernel(const char* kernel, const Grid& grid, void* parameters);
  void markCompletedOrFail(CUresult code, const BadIndex& badIndex, uint64_t launches);
  void failWith(CUresult code);

  // In this order, for they need one another; the watcher's callbacks may need all.
  std::shared_ptr<const Context> context_;
  Stream stream_;
  Module module_;
  std::unique_ptr<Memory> memory_;
  PinnedCache pinnedCache_;
  std::unique_ptr<Blas> blas_;
  BadIndex* badIndex_ = nullptr;
  CUfunction reduceRanksKernel_ = nullptr;
  Port port_{*this};
  LaunchHistory history_;
  std::shared_ptr<Trace> trace_;
  std::string name_;
  bool hasHopperKernels_;
  std::mutex mutex_;
  std::atomic<bool> hasFailed_{false};
  MosaicFailure failure_{};  // written once, under mutex_
  std::unique_ptr<EventWatcher> eventWatcher_;
};

}  // namespace mosaic::cuda
