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
constexpr size_t kSmallLimit = size_t{1} << 20;     // above: the large pool
constexpr size_t kLargeSegment = size_t{32} << 20;
constexpr size_t kSmallAlignment = 64, kLargeAlignment = size_t{64} << 10;

size_t roundUp(size_t size, size_t grain) { return (size + grain - 1) / grain * grain; }

// Memory and swap in total. Linux would map more, too, and kill the process when it touches the pages.
size_t systemMemory() {
  struct sysinfo info;
  if (sysinfo(&info) != 0) return SIZE_MAX;
  return (size_t{info.totalram} + info.totalswap) * info.mem_unit;
}

std::byte* mapAligned(size_t size) {
  void* raw =
      mmap(nullptr, size + kHugePageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(raw);
  auto* base = reinterpret_cast<std::byte*>(roundUp(reinterpret_cast<uintptr_t>(start), kHugePageBytes));
  if (base > start) munmap(start, static_cast<size_t>(base - start));
  munmap(base + size, static_cast<size_t>(start + kHugePageBytes - base));
  return base;
}

/// Unpoisons memory before it is unmapped: the system may return the same addresses for a later mapping.
void unmap(std::byte* base, size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(base, size);
#endif
  munmap(base, size);
}

void deleteBlocks(Segment& segment) {
  for (Block* block = segment.first; block;) {
    Block* next = block->after;
    delete block;
    block = next;
  }
}

}  // namespace

Release::~Release() {
  for (const Range& range : ranges_) unmap(range.base, range.size);
}

Allocator::Allocator(size_t limit, const std::atomic<size_t>* otherUsedBytes)
    : limit_(limit), others_(otherUsedBytes) {}

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

Allocator::Pool& Allocator::poolOf(const Block* block) { return block->segment->isLarge ? large_ : small_; }

Block* Allocator::allocate(size_t bytes, Release& release) {
  if (bytes > size_t{1} << 48) return nullptr;
  const bool isLarge = bytes > kSmallLimit;
  const size_t size = roundUp(std::max<size_t>(bytes, 1), isLarge ? kLargeAlignment : kSmallAlignment);
  Pool& pool = isLarge ? large_ : small_;
  Block wanted{nullptr, size, false, nullptr, nullptr, nullptr};
  const auto fit = pool.lower_bound(&wanted);
  Block* block = fit != pool.end() ? *fit : nullptr;
  if (block) {
    pool.erase(fit);
  } else if (block = reserve(size, isLarge); !block) {
    trim(release);
    if (block = reserve(size, isLarge); !block) return nullptr;
  }
  block->used = true;
  split(block, size);
  stats_.allocated += block->size;
  stats_.peak = std::max(stats_.peak, stats_.allocated);
  return block;
}

// A new segment, as one block in no pool yet. Of the default size if memory allows, else of the requested size.
Block* Allocator::reserve(size_t bytes, bool isLarge) {
  const size_t minBytes = roundUp(bytes, kHugePageBytes);
  if (minBytes > systemMemory()) return nullptr;
  size_t size = isLarge ? std::max(minBytes, kLargeSegment) : minBytes;
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

bool Allocator::exceedsLimit(size_t more) const {
  return limit_ && stats_.reserved + (others_ ? others_->load() : 0) + more > limit_;
}

void Allocator::split(Block* block, size_t bytes) {
  const size_t remainder = block->size - bytes;
  if (remainder < (block->segment->isLarge ? kSmallLimit : kSmallAlignment)) return;
  Block* tail = new Block{block->data + bytes, remainder, false, block, block->after, block->segment};
  if (tail->after) tail->after->before = tail;
  block->after = tail;
  block->size = bytes;
  poolOf(tail).insert(tail);
}

void Allocator::free(Block* block) {
  block->used = false;
  stats_.allocated -= block->size;
  if (Block* right = block->after; right && !right->used) {
    poolOf(right).erase(right);
    coalesce(block);
  }
  if (Block* previous = block->before; previous && !previous->used) {
    poolOf(previous).erase(previous);
    coalesce(previous);
    block = previous;
  }
  poolOf(block).insert(block);
}

// Coalesces a block with its right neighbour.
void Allocator::coalesce(Block* previous) {
  Block* right = previous->after;
  previous->size += right->size;
  previous->after = right->after;
  if (previous->after) previous->after->before = previous;
  delete right;
}

void Allocator::trim(Release& release) {
  std::erase_if(segments_, [&](const std::unique_ptr<Segment>& segment) {
    Block* firstBlock = segment->first;
    if (firstBlock->used || firstBlock->after) return false;
    poolOf(firstBlock).erase(firstBlock);
    delete firstBlock;
    stats_.reserved -= segment->size;
    release.add(segment->base, segment->size);
    return true;
  });
}

}  // namespace mosaic
