#include "shared_memory/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

namespace mosaic {

namespace {

constexpr uint64_t kSegmentMagic = 0x0002'636f'7361'6d6f;  // changes with the layout
// All ring buffers together have at most 64 MiB. With more than 32 ranks they have more, because each has the minimum
// size. Memory is used only by pairs that communicate, as pages are committed on first access. The maximum size of a
// ring buffer is one that stays in cache.
constexpr uint64_t kTotalChannelBytes = 64ull << 20, kMinChannelBytes = 64ull << 10, kMaxChannelBytes = 1ull << 20;

const char* const kLayoutMismatch =
    "connect: expected the shared-memory layout of this Mosaic version from the first rank of this host, received a "
    "different layout; install the same version of Mosaic for all ranks";

uint64_t pairCount(uint64_t size) { return size * (size - 1); }

uint64_t channelCapacity(uint64_t size) {
  const uint64_t channelBytes = kTotalChannelBytes / std::max<uint64_t>(pairCount(size), 1);
  return std::bit_floor(std::clamp(channelBytes, kMinChannelBytes, kMaxChannelBytes));
}

uint64_t indexOffset(uint64_t size) { return sizeof(SegmentHeader) + size * sizeof(RankPage); }

uint64_t dataOffset(uint64_t size) {
  const uint64_t end = indexOffset(size) + pairCount(size) * sizeof(ChannelIndex);
  return (end + 4095) / 4096 * 4096;
}

uint64_t segmentBytes(uint64_t size) { return dataOffset(size) + pairCount(size) * channelCapacity(size); }

std::runtime_error makeSystemError(const std::string& message) {
  return std::runtime_error(message + ": " + std::strerror(errno));
}

uint8_t* map(uint64_t bytes, int fd) {
  const int flags = MAP_SHARED | MAP_NORESERVE | (fd < 0 ? MAP_ANONYMOUS : 0);
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) throw makeSystemError("cannot map " + std::to_string(bytes) + " bytes of shared memory");
  return static_cast<uint8_t*>(base);
}

/// New pages are zero, which is the initial value of every atomic, so only the header needs to be written.
void writeHeader(uint8_t* base, uint32_t size) {
  auto* header = new (base) SegmentHeader{};
  header->magic = kSegmentMagic;
  header->size = size;
  header->capacity = channelCapacity(size);
  header->bytes = segmentBytes(size);
}

}  // namespace

std::shared_ptr<Segment> Segment::createAnonymous(uint32_t size) {
  const uint64_t bytes = segmentBytes(size);
  uint8_t* base = map(bytes, -1);
  writeHeader(base, size);
  return std::shared_ptr<Segment>(new Segment(base, bytes, -1));
}

std::shared_ptr<Segment> Segment::create(uint32_t size) {
  const uint64_t bytes = segmentBytes(size);
  const int fd = memfd_create("mosaic-collectives", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) throw makeSystemError("cannot create shared memory");
  uint8_t* base = nullptr;
  try {
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
      throw makeSystemError("cannot resize shared memory to " + std::to_string(bytes) + " bytes");
    }
    // With these seals, no rank can shrink the memory while another uses it.
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    base = map(bytes, fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  writeHeader(base, size);
  return std::shared_ptr<Segment>(new Segment(base, bytes, fd));
}

std::shared_ptr<Segment> Segment::open(const std::string& path, uint32_t size) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw makeSystemError("cannot open the shared memory of this host's first rank, " + path);
  struct stat info {};
  const uint64_t bytes = segmentBytes(size);
  uint8_t* base = nullptr;
  const bool isValid =
      fstat(fd, &info) == 0 && info.st_uid == geteuid() && static_cast<uint64_t>(info.st_size) == bytes;
  try {
    if (!isValid) throw std::runtime_error(kLayoutMismatch);
    base = map(bytes, fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  auto segment = std::shared_ptr<Segment>(new Segment(base, bytes, -1));
  if (segment->header().magic != kSegmentMagic || segment->size() != size) throw std::runtime_error(kLayoutMismatch);
  segment->header().mappedRankCount++;
  return segment;
}

Segment::~Segment() {
  munmap(base_, bytes_);
  closeFile();
}

void Segment::closeFile() {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

std::string Segment::path() const { return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_); }

Channel Segment::channel(uint32_t from, uint32_t to) const {
  const uint64_t size = header().size, capacity = header().capacity;
  const uint64_t pair = uint64_t{from} * (size - 1) + (to > from ? to - 1 : to);
  auto* index = reinterpret_cast<ChannelIndex*>(base_ + indexOffset(size)) + pair;
  return Channel(index, base_ + dataOffset(size) + pair * capacity, capacity);
}

}  // namespace mosaic
