// Memory of the works of one stream: taken by the thread that submits, given back by the one that runs.
#pragma once

#include <atomic>
#include <cstddef>
#include <new>

namespace mosaic {

/// Slots of one size, used again. With malloc each is freed by another thread than took it, which locks, and gives the
/// top of the heap back to the system, to be faulted in anew.
class TaskPool {
 public:
  /// Of a slot: the arguments of any kernel fit.
  static constexpr size_t kSlotBytes = 3072;

  TaskPool() = default;
  ~TaskPool() {
    deleteSlots(freeSlots_);
    deleteSlots(returnedSlots_.load());
  }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  /// Only from one thread. Throws std::bad_alloc.
  void* allocate() {
    if (!freeSlots_) freeSlots_ = returnedSlots_.exchange(nullptr, std::memory_order_acquire);
    if (!freeSlots_) return ::operator new(kSlotBytes);
    Slot* slot = freeSlots_;
    freeSlots_ = slot->next;
    keptSlotCount_.fetch_sub(1, std::memory_order_relaxed);
    return slot;
  }

  /// From any thread.
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
  // A long queue leaves no more than this behind.
  static constexpr int kMaxKeptSlots = 1024;

  static void deleteSlots(Slot* slot) {
    while (slot) {
      Slot* next = slot->next;
      ::operator delete(slot);
      slot = next;
    }
  }

  Slot* freeSlots_ = nullptr;  // of the thread that allocates
  alignas(64) std::atomic<Slot*> returnedSlots_{nullptr};
  std::atomic<int> keptSlotCount_{0};
};

}  // namespace mosaic
