// A caching allocator for one device: memory is taken and given back on the host, in program order.
//
// Everything on a device runs in order on one stream, so what the host has given back may be handed out again at once:
// work that uses the new owner's bytes runs after all work that used the old owner's. Only giving memory back to the
// system must wait for the stream; `Release` carries that.
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

/// A piece of a segment, in use or free. Its neighbours are what it may be joined with when it is freed.
struct Block {
  std::byte* data;
  size_t size;
  bool isUsed;
  Block *previous, *next;
  Segment* segment;
};

/// Address ranges that go back to the system when this is destroyed, once no work can use them any more.
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

/// With AddressSanitizer: from now on only the first `bytes` of `size` may be touched. Else it does nothing.
void poisonEnd(std::byte* data, size_t bytes, size_t size);

/// Whether `poisonEnd` does something. Then no block may be reused without a call: its end would be that of before.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kGuardsBlockEnds = true;
#else
constexpr bool kGuardsBlockEnds = false;
#endif

/// Best fit over segments of at least 2 MiB (small blocks) or 32 MiB (blocks above 1 MiB), aligned to 2 MiB and backed
/// by huge pages where the system grants them. Blocks are aligned to 64 bytes. Not thread-safe: it belongs to the host.
class Allocator {
 public:
  /// `limit` bounds what is reserved from the system, in bytes, and `otherUsedBytes`, if given; 0 means no bound.
  explicit Allocator(size_t limit, const std::atomic<size_t>* otherUsedBytes = nullptr);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  /// Null when the limit or the system forbids, or has not so much memory at all. `release` receives segments that had
  /// to go to make room.
  Block* allocate(size_t bytes, Release& release);
  void free(Block* block);
  /// Moves all segments without a block in use into `release`.
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
