// A CPU device: a stream with its thread, a pool of workers, and memory.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "kernels/kernel_table.h"
#include "memory/allocator.h"
#include "pool/pool.h"
#include "stream/stream.h"
#include "stream/task_pool.h"

namespace mosaic {

struct DeviceOptions {
  int threads;
  size_t memoryLimit;  // bytes, 0 for no limit
  Isa isa;
};

/// Shared by the host and the device's own thread; the last reference destroys it.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// Starts the stream's thread. Throws a Failure if the system cannot create enough threads.
  static std::shared_ptr<Device> open(const DeviceOptions& options);
  explicit Device(const DeviceOptions& options);

  /// Memory of submitted kernels' arguments; only the host allocates from it.
  TaskPool tasks;
  Stream stream;
  const Isa isa;
  const Kernels& kernels;

  /// Returns the workers. May be called only by work on the stream.
  Pool& pool() { return *pool_; }
  /// Returns the allocator. May be called only by the host, before `close`.
  Allocator& memory() { return *memory_; }
  /// Returns the bytes of kernels' scratch memory, which `memory` does not count.
  size_t scratchBytes() const { return scratchBytes_.load(); }

  /// With AddressSanitizer: work submitted from now on may access only the first `bytes` of the block.
  void poisonEndInOrder(const Block& block, size_t bytes);
  /// Returns `release` to the system once all work submitted so far is done.
  void releaseInOrder(Release&& release);

  /// Lets the submitted work finish, then ends the thread and frees all memory. Returns at once.
  void close();
  /// Blocks until the thread has exited; returns false if the deadline passes first.
  bool waitForExit(std::chrono::steady_clock::time_point deadline);

 private:
  void onThreadExit();

  std::atomic<size_t> scratchBytes_{0};  // scratch memory of kernels
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Allocator> memory_;
  std::mutex mutex_;
  std::condition_variable exitedCondition_;
  bool hasExited_ = false;
};

}  // namespace mosaic
