// One GPU in this process: its context, compute stream, memory, and loaded kernels.
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

// The most recent kernel launches. A GPU reports that a kernel failed, but not which.

class LaunchHistory {
 public:
  /// `kernel` has static lifetime.
  void record(const char* kernel);
  /// Returns the number of launches so far.
  uint64_t count() const;
  /// Marks the first `count` launches as completed without error.
  void markCompleted(uint64_t count);
  /// Describes the launches that are not completed: "matmul", or "one of fill, matmul"; "" if there are none.
  std::string describePending() const;

 private:
  static constexpr uint64_t kCapacity = 16;
  mutable std::mutex mutex_;
  std::array<const char*, kCapacity> kernels_{};  // all fields are under mutex_
  uint64_t startedCount_ = 0, completedCount_ = 0;
};

struct DeviceOptions {
  int ordinal = 0;
  size_t memoryLimit = 0;  // 0: the GPU's memory
  bool allowsTf32 = false;       // whether products of float32 may round their factors to TF32
};

struct Dimensions {
  unsigned x = 1, y = 1, z = 1;
};

/// The launch configuration of a kernel.
struct Grid {
  Dimensions blocks, threads;
  unsigned sharedBytes = 0;
};

/// Used by one thread, on which it must have been entered, except for functions that any thread may call.
class Device {
 public:
  /// Receives the device's failure, or null. Called on the watcher's thread; must not throw.
  using Callback = std::function<void(const MosaicFailure*)>;

  /// Throws DriverError without a driver, and Failure if the GPU does not exist or has no kernels.
  explicit Device(const DeviceOptions& options);
  ~Device();
  Device(const Device&) = delete;

  /// Returns at once. Enqueued work still runs and its callbacks are called; then all resources are released.
  static void close(std::unique_ptr<Device> device);

  const std::shared_ptr<const Context>& context() const { return context_; }
  void enter() const { context_->enter(); }
  CUstream stream() const { return stream_.get(); }
  int capability() const { return context_->capability(); }
  /// Whether the device has Hopper's attention kernels and may use them.
  bool hasHopperKernels() const { return hasHopperKernels_; }
  int multiprocessors() const { return context_->multiprocessors(); }
  /// Maximum grid size along y and z.
  unsigned maxGridDim() const { return static_cast<unsigned>(context_->maxGridDim()); }
  /// Maximum shared memory per block in bytes, with the opt-in attribute.
  unsigned maxSharedBytes() const { return static_cast<unsigned>(context_->maxSharedBytes()); }
  Memory& memory() { return *memory_; }
  PinnedCache& pinnedCache() { return pinnedCache_; }
  Blas& blas() { return *blas_; }
  /// The ABI for native code of other packages.
  MosaicDevicePort& port() { return port_; }
  /// The rank reduction kernel, which any thread may launch on any stream.
  CUfunction reduceRanksKernel() const { return reduceRanksKernel_; }

  /// Launches a kernel with a struct as its one argument. Throws CallError.
  template <class Parameters>
  void launch(const char* kernel, const Grid& grid, const Parameters& parameters) {
    launchKernel(kernel, grid, const_cast<Parameters*>(&parameters));
  }

  /// Calls `enqueue` to submit work to the stream. Traces and errors report it as `name`, of static lifetime.
  template <class Enqueue>
  void run(const char* name, Enqueue enqueue) {
    history_.record(name);
    if (trace_) trace_->recordStart(name);
    enqueue();
    if (trace_) trace_->recordEnd();
  }

  /// Calls back once all work enqueued so far is done or has failed. Callbacks run in the order of calls.
  void onComplete(Callback callback);
  /// Keeps `memory` alive until all work enqueued so far is done.
  void retainUntilComplete(std::shared_ptr<void> memory);
  /// Returns unused memory to the system, once all work enqueued so far is done.
  void trim();

  /// The first invalid index, recorded by kernels that take indices.
  BadIndex* badIndex() const { return badIndex_; }

  /// Returns the first failure of this device, or null. May be called from any thread.
  const MosaicFailure* failure() const { return hasFailed_.load(std::memory_order_acquire) ? &failure_ : nullptr; }
  /// May be called from any thread.
  void fail(MosaicFailureCode code, const std::string& message);
  /// Returns the failure to report for a failed call. If the context is lost, the device fails, and the failure names
  /// the kernels that may have caused it. May be called from any thread.
  Failure describeFailure(const CallError& error);

  /// Traces everything that is enqueued from now on.
  void startTrace();
  /// Calls back with the entries since startTrace; empty if that was not called, or if the device failed.
  void stopTrace(std::function<void(std::vector<TraceEntry>)> callback);

 private:
  /// A stream that is destroyed after everything that uses it.
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

  // Declared in order of dependency; the watcher's callbacks may use any of them.
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
