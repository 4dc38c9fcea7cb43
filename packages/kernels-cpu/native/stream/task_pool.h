// Memory of the works of one stream: allocated by the submitting thread, released by the stream's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

namespace mosaic {

/// A pool of reusable slots of one size. With malloc, each would be freed by another thread than the one that allocated
/// it, which takes locks, and returns the top of the heap to the system, so that it is faulted in again.
class TaskPool {
 public:
  /// Size of a slot; the arguments of any kernel fit.
  static constexpr size_t kSlotBytes = 3072;

  TaskPool() = default;
  ~TaskPool() {
    deleteSlots(freeSlots_);
    deleteSlots(returnedSlots_.load());
  }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Must be called from one thread only. Throws std::bad_alloc.
  void* allocate() {
    if (!freeSlots_) freeSlots_ = returnedSlots_.exchange(nullptr, std::memory_order_acquire);
    if (!freeSlots_) return ::operator new(kSlotBytes);
    Slot* slot = freeSlots_;
    freeSlots_ = slot->next;
    keptSlotCount_.fetch_sub(1, std::memory_order_relaxed);
    return slot;
  }

  /// May be called from any thread.
  void release(void* memory) {
    if (keptSlotCount_.fetch_add(1, std::memory_order_relaxed) >= kMaxKeptSlots) {
      keptSlotCount_.fetch_sub(1, std::memory_order_relaxed);
      return ::operator delete(memory);
    }
    Slot* slot = new (memory) Slot{returnedSlots_.load(std::memory_order_relaxed)};
    while (
        !returnedSlots_.compare_exchange_weak(slot->next, slot, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

 private:
  struct Slot {
    Slot* next;
  };
  // Limits the memory that remains allocated after a long queue.
  static constexpr int kMaxKeptSlots = 1024;

  static void deleteSlots(Slot* slot) {
    while (slot) {
      Slot* next = slot->next;
      ::operator delete(slot);
      slot = next;
    }
  }

  Slot* freeSlots_ = nullptr;  // used only by the thread that allocates
  alignas(64) std::atomic<Slot*> returnedSlots_{nullptr};
  std::atomic<int> keptSlotCount_{0};
};

}  // namespace mosaic
