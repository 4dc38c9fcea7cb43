#include "standin/region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace standin {

namespace {

constexpr size_t kHeaderBytes = (sizeof(Header) + 4095) / 4096 * 4096;

}  // namespace

uint64_t Lane::put(const uint8_t* from, uint64_t bytes) {
  const uint64_t at = written.load(std::memory_order_relaxed);
  const uint64_t n = std::min({bytes, kBytes - (at - read.load(std::memory_order_acquire)), kBytes - at % kBytes});
  std::memcpy(data + at % kBytes, from, n);
  written.store(at + n, std::memory_order_release);
  return n;
}

uint64_t Lane::take(uint8_t* to, uint64_t bytes) {
  const uint64_t at = read.load(std::memory_order_relaxed);
  const uint64_t n = std::min({bytes, written.load(std::memory_order_acquire) - at, kBytes - at % kBytes});
  std::memcpy(to, data + at % kBytes, n);
  read.store(at + n, std::memory_order_release);
  return n;
}

std::shared_ptr<Region> Region::open(const std::string& name, uint32_t ranks) {
  const size_t bytes = kHeaderBytes + 2 * sizeof(Lane) * ranks * ranks;
  const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return nullptr;
  const bool sized = ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  void* memory = sized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0) : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<Region>(new Region(name, ranks, memory, bytes));
}

Region::~Region() {
  // Whoever has not come by now will not: nothing stays behind of ranks that never all met.
  unlink();
  munmap(memory_, bytes_);
}

Lane& Region::lane(uint32_t from, uint32_t to, bool collective) const {
  auto* lanes = reinterpret_cast<Lane*>(static_cast<uint8_t*>(memory_) + kHeaderBytes);
  return lanes[((collective ? ranks_ : 0) + from) * ranks_ + to];
}

void Region::unlink() const { shm_unlink(name_.c_str()); }

}  // namespace standin
