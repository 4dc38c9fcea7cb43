#include "memory/allocator.h"

#include <sys/mman.h>
#include <sys/sysinfo.h>

#include <algorithm>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace mosaic {

struct Segment {
  std::byte* base;
  size_t size;
  bool isLarge;
  Block* first;
};

namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr size_t kMaxSmallBytes = size_t{1} << 20;  // larger blocks use the large pool
constexpr size_t kLargeSegmentBytes = size_t{32} << 20;
constexpr size_t kSmallAlignment = 64, kLargeAlignment = size_t{64} << 10;

size_t roundUp(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// Returns the total of memory and swap. Linux would map more, and kill the process when it accesses the pages.
size_t systemMemory() {
  struct sysinfo info;
  if (sysinfo(&info) != 0) return SIZE_MAX;
  return (size_t{info.totalram} + info.totalswap) * info.mem_unit;
}

std::byte* mapAligned(size_t size) {
  void* mapping =
      mmap(nullptr, size + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(mapping);
  auto* base = reinterpret_cast<std::byte*>(roundUp(reinterpret_cast<uintptr_t>(start), kHugePageBytes));
  if (base > start) munmap(start, static_cast<size_t>(base - start));
  munmap(base + size, static_cast<size_t>(start + kHugePageBytes - base));
  return base;
}

/// Unpoisons memory before it is unmapped, because the system may reuse the addresses for a later mapping.
void unmap(std::byte* base, size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(base, size);
#endif
  munmap(base, size);
}

void deleteBlocks(Segment& segment) {
  for (Block* block = segment.first; block;) {
    Block* next = block->next;
    delete block;
    block = next;
  }
}

}  // namespace

Release::~Release() {
  for (const Range& range : ranges_) unmap(range.base, range.size);
}

Allocator::Allocator(size_t limit, const std::atomic<size_t>* otherUsedBytes)
    : limit_(limit), otherUsedBytes_(otherUsedBytes) {}

Allocator::~Allocator() {
  for (auto& segment : segments_) {
    deleteBlocks(*segment);
    unmap(segment->base, segment->size);
  }
}

void poisonEnd([[maybe_unused]] std::byte* data, [[maybe_unused]] size_t bytes, [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(data, bytes);
  __asan_poison_memory_region(data + bytes, size - bytes);
#endif
}

Allocator::Pool& Allocator::poolOf(const Block* block) { return block->segment->isLarge ? largeBlocks_ : smallBlocks_; }

Block* Allocator::allocate(size_t bytes, Release& release) {
  if (bytes > size_t{1} << 48) return nullptr;
  const bool isLarge = bytes > kMaxSmallBytes;
  const size_t size = roundUp(std::max<size_t>(bytes, 1), isLarge ? kLargeAlignment : kSmallAlignment);
  Pool& pool = isLarge ? largeBlocks_ : smallBlocks_;
  Block searchKey{nullptr, size, false, nullptr, nullptr, nullptr};
  const auto bestFit = pool.lower_bound(&searchKey);
  Block* block = bestFit != pool.end() ? *bestFit : nullptr;
  if (block) {
    pool.erase(bestFit);
  } else if (block = reserve(size, isLarge); !block) {
    trim(release);
    if (block = reserve(size, isLarge); !block) return nullptr;
  }
  block->isUsed = true;
  split(block, size);
  stats_.allocated += block->size;
  stats_.peak = std::max(stats_.peak, stats_.allocated);
  return block;
}

// Reserves a new segment, as one block that is in no pool yet. It has the default size if memory allows, else `bytes`.
Block* Allocator::reserve(size_t bytes, bool isLarge) {
  const size_t minBytes = roundUp(bytes, kHugePageBytes);
  if (minBytes > systemMemory()) return nullptr;
  size_t size = isLarge ? std::max(minBytes, kLargeSegmentBytes) : minBytes;
  if (exceedsLimit(size)) size = minBytes;
  if (exceedsLimit(size)) return nullptr;
  std::byte* base = mapAligned(size);
  if (!base) return nullptr;
  madvise(base, size, MADV_HUGEPAGE);
  auto segment = std::make_unique<Segment>(Segment{base, size, isLarge, nullptr});
  segment->first = new Block{base, size, false, nullptr, nullptr, segment.get()};
  stats_.reserved += size;
  segments_.push_back(std::move(segment));
  return segments_.back()->first;
}

bool Allocator::exceedsLimit(size_t bytes) const {
  return limit_ && stats_.reserved + (otherUsedBytes_ ? otherUsedBytes_->load() : 0) + bytes > limit_;
}

void Allocator::split(Block* block, size_t bytes) {
  const size_t remainder = block->size - bytes;
  if (remainder < (block->segment->isLarge ? kMaxSmallBytes : kSmallAlignment)) return;
  Block* tail = new Block{block->data + bytes, remainder, false, block, block->next, block->segment};
  if (tail->next) tail->next->previous = tail;
  block->next = tail;
  block->size = bytes;
  poolOf(tail).insert(tail);
}

void Allocator::free(Block* block) {
  block->isUsed = false;
  stats_.allocated -= block->size;
  if (Block* successor = block->next; successor && !successor->isUsed) {
    poolOf(successor).erase(successor);
    coalesce(block);
  }
  if (Block* previous = block->previous; previous && !previous->isUsed) {
    poolOf(previous).erase(previous);
    coalesce(previous);
    block = previous;
  }
  poolOf(block).insert(block);
}

// Coalesces a block with its right neighbor.
void Allocator::coalesce(Block* previous) {
  Block* successor = previous->next;
  previous->size += successor->size;
  previous->next = successor->next;
  if (previous->next) previous->next->previous = previous;
  delete successor;
}

void Allocator::trim(Release& release) {
  std::erase_if(segments_, [&](const std::unique_ptr<Segment>& segment) {
    Block* firstBlock = segment->first;
    if (firstBlock->isUsed || firstBlock->next) return false;
    poolOf(firstBlock).erase(firstBlock);
    delete firstBlock;
    stats_.reserved -= segment->size;
    release.add(segment->base, segment->size);
    return true;
  });
}

}  // namespace mosaic
