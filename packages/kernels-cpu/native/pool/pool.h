// The threads of one CPU device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace mosaic {

// Scratch memory of one worker: allocated in pieces, freed all at once, and reused by the next task.

/// A bump allocator over blocks that grow to the largest demand so far, so that a loop of equal steps allocates in its
/// first step only. Memory is not cleared. Not thread-safe: one arena per worker.
class Arena {
 public:
  /// `reservedBytes`, if not null, counts the bytes held from the system, together with those of other arenas.
  explicit Arena(std::atomic<size_t>* reservedBytes = nullptr) : reservedBytes_(reservedBytes) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Allocates `count` elements of a trivial type, aligned to 64 bytes. Throws std::bad_alloc.
  template <class T>
  T* allocate(int64_t count) {
    return static_cast<T*>(allocateBytes(static_cast<size_t>(count) * sizeof(T)));
  }

  /// Frees all allocations. Pointers into the arena become invalid.
  void reset();

  /// Returns the bytes held from the system.
  size_t capacity() const;

 private:
  struct Block {
    std::byte* data;
    size_t size;
  };
  void* allocateBytes(size_t size);

  std::atomic<size_t>* reservedBytes_;
  std::vector<Block> blocks_;
  size_t currentBlockIndex_ = 0;  // index into blocks_
  size_t usedBytes_ = 0;     // in the current block
};

/// Runs loops of independent tasks on a fixed set of threads. The caller of `parallelFor` (the device's stream thread)
/// is worker 0 and always participates; with one thread there are no other workers. Idle workers spin for 50 µs, about
/// twice the cost of waking a parked thread, then sleep. A worker that wakes late is not awaited; the others process
/// its share.
///
/// Workers do not change the floating-point environment. Denormals are not flushed, so that results do not depend on
/// which thread computed them.
class Pool {
 public:
  /// `threads` ≥ 1 includes the caller. `scratch`, if not null, counts the bytes that arenas hold. Throws
  /// std::system_error if the system cannot create enough threads.
  explicit Pool(int threads, std::atomic<size_t>* scratch = nullptr);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(task, worker) once for each task in [0, tasks), claimed in increasing order, and returns when all are
  /// done. worker is in [0, threads()). Not reentrant. If calls throw, the first exception is rethrown after the loop
  /// has drained; tasks that have not started by then are skipped.
  template <class Fn>
  void parallelFor(int64_t tasks, Fn&& fn) {
    auto call = [](void* context, int64_t task, int worker) {
      (*static_cast<std::remove_reference_t<Fn>*>(context))(task, worker);
    };
    run(tasks, call, const_cast<void*>(static_cast<const void*>(std::addressof(fn))));
  }

  /// Returns the scratch memory of a worker; a task uses it with its own worker number.
  Arena& arena(int worker) { return *arenas_[static_cast<size_t>(worker)]; }
  /// Returns the scratch memory of the caller, for data that its tasks share.
  Arena& sharedArena() { return *arenas_.back(); }

 private:
  using TaskFunction = void (*)(void* context, int64_t task, int worker);

  void stop();
  void run(int64_t tasks, TaskFunction call, void* context);
  void runTasks(int worker);
  void workerMain(int worker);
  bool tryEnterLoop(uint64_t observedState);
  void leaveLoop();

  // The running loop; written only while no worker is inside.
  TaskFunction function_ = nullptr;
  void* context_ = nullptr;
  int64_t tasks_ = 0;
  std::exception_ptr error_;
  std::mutex errorMutex_;

  alignas(64) std::atomic<int64_t> nextTask_{0};  // next task to claim
  alignas(64) std::atomic<uint64_t> state_{0};  // loop number · 2³² + open bit · 2³¹ + workers inside
  alignas(64) std::atomic<uint32_t> wakeups_{0};   // changes with every loop; parked workers wait for that
  std::atomic<bool> isStopped_{false};

  std::vector<std::unique_ptr<Arena>> arenas_;
  std::vector<std::thread> workers_;
};

}  // namespace mosaic
