// A caching allocator for one device. Memory is allocated and freed by the host, in program order.
//
// All work of a device runs in order on one stream, so freed memory can be reused at once: work that uses the new block
// runs after all work that used the old one. Only returning memory to the system must wait for the stream; `Release`
// defers that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

namespace mosaic {

struct MemoryStats {
  size_t allocated = 0, reserved = 0, peak = 0;
};

struct Segment;

/// A part of a segment, used or free. When it is freed it is coalesced with free neighbors.
struct Block {
  std::byte* data;
  size_t size;
  bool isUsed;
  Block *previous, *next;
  Segment* segment;
};

/// Address ranges that are returned to the system on destruction, which must happen after all work that uses them.
class Release {
 public:
  Release() = default;
  Release(Release&&) = default;
  Release& operator=(Release&&) = default;
  ~Release();
  bool isEmpty() const { return ranges_.empty(); }
  void add(std::byte* base, size_t size) { ranges_.push_back({base, size}); }

 private:
  struct Range {
    std::byte* base;
    size_t size;
  };
  std::vector<Range> ranges_;
};

/// With AddressSanitizer: makes all but the first `bytes` of `size` inaccessible. Without it, does nothing.
void poisonEnd(std::byte* data, size_t bytes, size_t size);

/// Whether `poisonEnd` has an effect. If so, every reuse of a block requires a call, because its accessible size
/// changes.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kGuardsBlockEnds = true;
#else
constexpr bool kGuardsBlockEnds = false;
#endif

/// A best-fit allocator over segments of at least 2 MiB (small blocks) or 32 MiB (blocks above 1 MiB). Segments are
/// aligned to 2 MiB and backed by huge pages if the system allows it. Blocks are aligned to 64 bytes. Not thread-safe:
/// only the host may use it.
class Allocator {
 public:
  /// `limit` bounds the bytes reserved from the system plus `otherUsedBytes`, if not null; 0 means no limit.
  explicit Allocator(size_t limit, const std::atomic<size_t>* otherUsedBytes = nullptr);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Returns null if the limit or the system does not allow the allocation, or the machine has less memory. Segments
  /// that are freed to make room are moved into `release`.
  Block* allocate(size_t bytes, Release& release);
  void free(Block* block);
  /// Moves all segments without used blocks into `release`.
  void trim(Release& release);

  const MemoryStats& stats() const { return stats_; }
  void resetPeak() { stats_.peak = stats_.allocated; }
  size_t limit() const { return limit_; }

 private:
  struct SizeOrder {
    bool operator()(const Block* a, const Block* b) const {
      return a->size != b->size ? a->size < b->size : a->data < b->data;
    }
  };
  using Pool = std::set<Block*, SizeOrder>;

  Pool& poolOf(const Block* block);
  Block* reserve(size_t bytes, bool isLarge);
  void split(Block* block, size_t bytes);
  void coalesce(Block* previous);

  bool exceedsLimit(size_t bytes) const;

  size_t limit_;
  const std::atomic<size_t>* otherUsedBytes_;
  MemoryStats stats_;
  std::vector<std::unique_ptr<Segment>> segments_;
  Pool smallBlocks_, largeBlocks_;
};

}  // namespace mosaic
