#include "pool/arena.h"

#include <algorithm>
#include <new>

namespace mosaic {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kSmallestBlock = size_t{1} << 20;

}  // namespace

Arena::~Arena() {
  if (held_) held_->fetch_sub(capacity());
  for (const Block& block : blocks_) ::operator delete(block.data, std::align_val_t{kAlign});
}

void Arena::reset() {
  current_ = 0;
  used_ = 0;
}

size_t Arena::capacity() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += block.size;
  return total;
}

void* Arena::bytes(size_t size) {
  size = (size + kAlign - 1) / kAlign * kAlign;
  while (current_ < blocks_.size() && used_ + size > blocks_[current_].size) {
    ++current_;
    used_ = 0;
  }
  if (current_ == blocks_.size()) {
    const size_t blockSize = std::max({size, kSmallestBlock, capacity()});  // doubling: few blocks, little waste
    blocks_.reserve(blocks_.size() + 1);
    blocks_.push_back({static_cast<std::byte*>(::operator new(blockSize, std::align_val_t{kAlign})), blockSize});
    if (held_) held_->fetch_add(blockSize);
  }
  void* taken = blocks_[current_].data + used_;
  used_ += size;
  return taken;
}

}  // namespace mosaic
