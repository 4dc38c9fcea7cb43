// A ring buffer of bytes from one rank to another: single producer, single consumer, wait-free.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

namespace mosaic {

/// Total bytes written and read so far, each on its own cache line. In shared memory.
struct ChannelIndex {
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "shared memory requires lock-free atomics");
  alignas(64) std::atomic<uint64_t> writtenByteCount{0};
  alignas(64) std::atomic<uint64_t> readByteCount{0};
};

class Channel {
 public:
  Channel(ChannelIndex* index, uint8_t* data, uint64_t capacity) : index_(index), data_(data), capacity_(capacity) {}

  uint64_t readableBytes() const { return index_->writtenByteCount.load() - index_->readByteCount.load(); }
  uint64_t writableBytes() const { return capacity_ - readableBytes(); }
  bool isHalfEmpty() const { return 2 * readableBytes() <= capacity_; }

  /// Writes as many of `bytes` as fit. Returns the number of bytes written.
  uint64_t write(const void* from, uint64_t bytes) {
    const uint64_t position = index_->writtenByteCount.load(std::memory_order_relaxed);
    const uint64_t count = std::min(bytes, writableBytes());
    const uint64_t firstBytes = std::min(count, capacity_ - position % capacity_);
    if (count == 0) return 0;
    std::memcpy(data_ + position % capacity_, from, firstBytes);
    std::memcpy(data_, static_cast<const uint8_t*>(from) + firstBytes, count - firstBytes);
    index_->writtenByteCount.store(position + count);
    return count;
  }

  /// Reads at most `bytes` of the readable bytes. Returns the number of bytes read.
  uint64_t read(void* to, uint64_t bytes) {
    const uint64_t position = index_->readByteCount.load(std::memory_order_relaxed);
    const uint64_t count = std::min(bytes, readableBytes());
    const uint64_t firstBytes = std::min(count, capacity_ - position % capacity_);
    if (count == 0) return 0;
    std::memcpy(to, data_ + position % capacity_, firstBytes);
    std::memcpy(static_cast<uint8_t*>(to) + firstBytes, data_, count - firstBytes);
    index_->readByteCount.store(position + count);
    return count;
  }

  /// Returns the next `bytes`, which must be readable. They are in place, or copied to `bounceBuffer` if they wrap
  /// around or are not aligned for a float (after a message with an odd number of 16-bit elements).
  const void* peekContiguous(uint64_t bytes, void* bounceBuffer) const {
    const uint64_t position = index_->readByteCount.load(std::memory_order_relaxed) % capacity_;
    if (position + bytes <= capacity_ && position % 4 == 0) return data_ + position;
    const uint64_t firstBytes = std::min(bytes, capacity_ - position);
    std::memcpy(bounceBuffer, data_ + position, firstBytes);
    std::memcpy(static_cast<uint8_t*>(bounceBuffer) + firstBytes, data_, bytes - firstBytes);
    return bounceBuffer;
  }

  void consume(uint64_t bytes) {
    index_->readByteCount.store(index_->readByteCount.load(std::memory_order_relaxed) + bytes);
  }

 private:
  ChannelIndex* index_;
  uint8_t* data_;
  uint64_t capacity_;
};

}  // namespace mosaic
