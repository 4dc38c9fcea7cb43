// A ring buffer of bytes from one rank to another: single producer, single consumer, and neither ever waits for the
// other here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace mosaic {

/// Bytes written and read since the beginning, each on its own cache line. Lies in shared memory.
struct ChannelIndex {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared memory requires lock-free atomics");
  alignas(64) std::atomic<uint64_t> written{0};
  alignas(64) std::atomic<uint64_t> read{0};
};

class Channel {
 public:
  Channel(ChannelIndex* index, uint8_t* data, uint64_t capacity) : index_(index), data_(data), capacity_(capacity) {}

  uint64_t readable() const { return index_->written.load() - index_->read.load(); }
  uint64_t writable() const { return capacity_ - readable(); }
  bool isHalfEmpty() const { return 2 * readable() <= capacity_; }

  /// Copies in as much of `bytes` as fits; returns how much.
  uint64_t write(const void* from, uint64_t bytes) {
    const uint64_t at = index_->written.load(std::memory_order_relaxed);
    const uint64_t count = std::min(bytes, writable());
    const uint64_t first = std::min(count, capacity_ - at % capacity_);
    if (count == 0) return 0;
    std::memcpy(data_ + at % capacity_, from, first);
    std::memcpy(data_, static_cast<const uint8_t*>(from) + first, count - first);
    index_->written.store(at + count);
    return count;
  }

  /// Copies out at most `bytes` of what is there; returns how much.
  uint64_t read(void* to, uint64_t bytes) {
    const uint64_t at = index_->read.load(std::memory_order_relaxed);
    const uint64_t count = std::min(bytes, readable());
    const uint64_t first = std::min(count, capacity_ - at % capacity_);
    if (count == 0) return 0;
    std::memcpy(to, data_ + at % capacity_, first);
    std::memcpy(static_cast<uint8_t*>(to) + first, data_, count - first);
    index_->read.store(at + count);
    return count;
  }

  /// The next `bytes`, which must be readable: in place, or copied to `bounce` where they wrap around or are not
  /// aligned for a float (after a message of an odd number of 16-bit elements).
  const void* contiguous(uint64_t bytes, void* bounce) const {
    const uint64_t at = index_->read.load(std::memory_order_relaxed) % capacity_;
    if (at + bytes <= capacity_ && at % 4 == 0) return data_ + at;
    const uint64_t first = std::min(bytes, capacity_ - at);
    std::memcpy(bounce, data_ + at, first);
    std::memcpy(static_cast<uint8_t*>(bounce) + first, data_, bytes - first);
    return bounce;
  }

  void consume(uint64_t bytes) { index_->read.store(index_->read.load(std::memory_order_relaxed) + bytes); }

 private:
  ChannelIndex* index_;
  uint8_t* data_;
  uint64_t capacity_;
};

}  // namespace mosaic
