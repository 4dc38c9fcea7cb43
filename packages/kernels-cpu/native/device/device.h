// One CPU device: a stream with its thread, a pool of workers, and memory.
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
  size_t memoryLimit;  // bytes, 0 for none
  Isa isa;
};

/// Referenced by the host and by its own thread; the last release destroys it.
class Device : public std::enable_shared_from_this<Device> {
 public:
  /// Starts the stream's thread. Throws a Failure if there are not as many threads to be had.
  static std::shared_ptr<Device> open(const DeviceOptions& options);
  explicit Device(const DeviceOptions& options);

  /// Of kernels that are submitted; only the host allocates.
  TaskPool tasks;
  Stream stream;
  const Isa isa;
  const Kernels& kernels;

  /// The workers; only from works on the stream.
  Pool& pool() { return *pool_; }
  /// Only from the host, and not after `close`.
  Allocator& memory() { return *memory_; }
  /// Bytes that kernels hold to work in, beside `memory`.
  size_t scratchBytes() const { return scratchBytes_.load(); }

  /// With AddressSanitizer: work from now on may touch only `bytes` of the block.
  void poisonEndInOrder(const Block& block, size_t bytes);
  /// Gives `release` back to the system once all work so far is done.
  void releaseInOrder(Release&& release);

  /// Lets the work so far run, then ends the thread and frees all memory. Returns at once.
  void close();
  /// Blocks until the thread has ended; false if that was not before the deadline.
  bool waitForExit(std::chrono::steady_clock::time_point deadline);

 private:
  void onThreadExit();

  std::atomic<size_t> scratchBytes_{0};  // bytes that kernels hold to work in
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Allocator> memory_;
  std::mutex mutex_;
  std::condition_variable exitedCondition_;
  bool hasExited_ = false;
};

}  // namespace mosaic
