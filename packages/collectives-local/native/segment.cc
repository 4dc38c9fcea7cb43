#include "segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>

namespace mosaic {

namespace {

constexpr uint64_t kSegmentMagic = 0x0001'636f'7361'6d6f;  // changes with the layout
// Together about 64 MiB, more only from 34 ranks on, where each is the least that it may be: pages are touched only by
// pairs that talk to each other. Each no larger than what stays in cache.
constexpr uint64_t kAllChannels = 64ull << 20, kLeastChannel = 64ull << 10, kMostChannel = 1ull << 20;

const char* const kOtherVersion =
    "the shared memory of rank 0 has another layout; run the same version of Mosaic on all ranks";

uint64_t pairs(uint64_t size) { return size * (size - 1); }

uint64_t channelCapacity(uint64_t size) {
  const uint64_t share = kAllChannels / std::max<uint64_t>(pairs(size), 1);
  return std::bit_floor(std::clamp(share, kLeastChannel, kMostChannel));
}

uint64_t indexOffset(uint64_t size) { return sizeof(SegmentHeader) + size * sizeof(ControlPage); }

uint64_t dataOffset(uint64_t size) {
  const uint64_t end = indexOffset(size) + pairs(size) * sizeof(ChannelIndex);
  return (end + 4095) / 4096 * 4096;
}

uint64_t segmentBytes(uint64_t size) { return dataOffset(size) + pairs(size) * channelCapacity(size); }

uint8_t* map(uint64_t bytes, int fd) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    throw std::runtime_error("cannot map " + std::to_string(bytes) + " shared bytes: " + std::strerror(errno));
  }
  return static_cast<uint8_t*>(base);
}

/// Fresh pages are zero, which is what every atomic here begins with: only the header needs to be written.
void format(uint8_t* base, uint32_t size) {
  auto* header = new (base) SegmentHeader{};
  header->magic = kSegmentMagic;
  header->size = size;
  header->capacity = channelCapacity(size);
  header->bytes = segmentBytes(size);
}

}  // namespace

void SharedPosition::store(const Position& position) {
  uint64_t words[kWords];
  std::memcpy(words, &position, sizeof position);
  const uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1);
  for (size_t i = 0; i < kWords; i++) words_[i].store(words[i]);
  version_.store(version + 2);
}

Position SharedPosition::load() const {
  uint64_t words[kWords];
  // A rank that dies while it writes leaves an odd version behind: take what is there after a while.
  for (int attempt = 0; attempt < 1000; attempt++) {
    const uint64_t version = version_.load();
    for (size_t i = 0; i < kWords; i++) words[i] = words_[i].load();
    if (version % 2 == 0 && version_.load() == version) break;
    relax();
  }
  Position position;
  std::memcpy(&position, words, sizeof position);
  position.groupName[sizeof position.groupName - 1] = 0;
  return position;
}

std::shared_ptr<Segment> Segment::anonymous(uint32_t size) {
  const uint64_t bytes = segmentBytes(size);
  uint8_t* base = map(bytes, -1);
  format(base, size);
  auto segment = std::shared_ptr<Segment>(new Segment(base, bytes, -1));
  for (uint32_t rank = 0; rank < size; rank++) segment->page(rank).pid = getpid();
  return segment;
}

std::shared_ptr<Segment> Segment::create(uint32_t size) {
  const uint64_t bytes = segmentBytes(size);
  const int fd = memfd_create("mosaic-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw std::runtime_error(std::string("cannot create shared memory: ") + std::strerror(errno));
  uint8_t* base = nullptr;
  try {
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) throw std::runtime_error("cannot size shared memory");
    // Nobody can shrink it under another rank's feet.
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    base = map(bytes, fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  format(base, size);
  return std::shared_ptr<Segment>(new Segment(base, bytes, fd));
}

std::shared_ptr<Segment> Segment::open(int fd, uint32_t size) {
  struct stat info {};
  const uint64_t bytes = segmentBytes(size);
  if (fstat(fd, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes) {
    ::close(fd);
    throw std::runtime_error(kOtherVersion);
  }
  uint8_t* base = map(bytes, fd);
  auto segment = std::shared_ptr<Segment>(new Segment(base, bytes, fd));
  if (segment->header().magic != kSegmentMagic || segment->header().size != size) {
    throw std::runtime_error(kOtherVersion);
  }
  return segment;
}

Segment::~Segment() {
  munmap(base_, bytes_);
  closeFd();
}

void Segment::closeFd() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Channel Segment::channel(uint32_t from, uint32_t to) const {
  const uint64_t size = header().size, capacity = header().capacity;
  const uint64_t pair = uint64_t{from} * (size - 1) + (to > from ? to - 1 : to);
  auto* index = reinterpret_cast<ChannelIndex*>(base_ + indexOffset(size)) + pair;
  return Channel(index, base_ + dataOffset(size) + pair * capacity, capacity);
}

void Segment::ringAll(uint32_t self) const {
  for (uint32_t rank = 0; rank < size(); rank++) {
    if (rank != self) page(rank).doorbell.ring();
  }
}

}  // namespace mosaic
