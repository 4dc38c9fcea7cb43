// Scratch memory of one worker: taken in pieces, given back all at once, kept for the next task.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace mosaic {

/// A bump allocator over blocks that only grow to the largest demand seen, so that a loop of equal steps allocates
/// in its first step only. Memory is not cleared. Not thread-safe: one arena per worker.
class Arena {
 public:
  /// `held`, if given, counts the bytes that are held from the system, together with those of other arenas.
  explicit Arena(std::atomic<size_t>* held = nullptr) : held_(held) {}
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Room for `count` elements of a trivial type, aligned to 64 bytes. Throws std::bad_alloc.
  template <class T>
  T* take(int64_t count) {
    return static_cast<T*>(bytes(static_cast<size_t>(count) * sizeof(T)));
  }

  /// Gives back all that was taken. Pointers into the arena end here.
  void reset();

  /// Bytes held from the system.
  size_t capacity() const;

 private:
  struct Block {
    std::byte* data;
    size_t size;
  };
  void* bytes(size_t size);

  std::atomic<size_t>* held_;
  std::vector<Block> blocks_;
  size_t current_ = 0;  // index into blocks_
  size_t used_ = 0;     // of the current block
};

}  // namespace mosaic
