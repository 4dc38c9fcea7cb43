#include "emulation/transfer.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <set>

namespace emulated_nccl {

namespace {

constexpr size_t kHeaderBytes = (sizeof(Header) + 4095) / 4096 * 4096;

}  // namespace

uint64_t Channel::push(const uint8_t* from, uint64_t bytes) {
  const uint64_t at = written.load(std::memory_order_relaxed);
  const uint64_t n = std::min({bytes, kBytes - (at - read.load(std::memory_order_acquire)), kBytes - at % kBytes});
  std::memcpy(data + at % kBytes, from, n);
  written.store(at + n, std::memory_order_release);
  return n;
}

uint64_t Channel::pop(uint8_t* to, uint64_t bytes) {
  const uint64_t at = read.load(std::memory_order_relaxed);
  const uint64_t n = std::min({bytes, written.load(std::memory_order_acquire) - at, kBytes - at % kBytes});
  std::memcpy(to, data + at % kBytes, n);
  read.store(at + n, std::memory_order_release);
  return n;
}

std::shared_ptr<Region> Region::open(const std::string& name, uint32_t ranks) {
  const size_t bytes = kHeaderBytes + 2 * sizeof(Channel) * ranks * ranks;
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

Channel& Region::channel(uint32_t from, uint32_t to, bool collective) const {
  auto* channels = reinterpret_cast<Channel*>(static_cast<uint8_t*>(memory_) + kHeaderBytes);
  return channels[((collective ? ranks_ : 0) + from) * ranks_ + to];
}

void Region::unlink() const { shm_unlink(name_.c_str()); }

bool Transfer::progress() {
  bool any = false;
  constexpr uint64_t kHeaderSize = sizeof header;
  auto* head = reinterpret_cast<uint8_t*>(header);
  if (headerMoved < kHeaderSize) {
    if (send) {
      header[0] = static_cast<uint64_t>(kind);
      header[1] = bytes;
    }
    const uint64_t left = kHeaderSize - headerMoved;
    const uint64_t n = send ? channel->push(head + headerMoved, left) : channel->pop(head + headerMoved, left);
    headerMoved += n;
    any = n > 0;
    if (headerMoved < kHeaderSize) return any;
  }
  if (header[0] != static_cast<uint64_t>(kind) || header[1] != bytes) return any;
  while (moved < bytes) {
    const uint64_t n = send ? channel->push(data + moved, bytes - moved) : channel->pop(data + moved, bytes - moved);
    if (n == 0) break;
    moved += n;
    any = true;
  }
  return any;
}

void Work::run(const std::atomic<bool>& stopped) {
  for (const LocalCopy& copy : copies) std::memmove(copy.to, copy.from, copy.bytes);
  for (int idle = 0; !stopped;) {
    bool any = false, all = true;
    std::set<const Channel*> busy;  // an earlier message of the lane is not through
    for (Transfer& move : transfers) {
      if (move.done() || !busy.insert(move.channel).second) continue;
      any = move.progress() || any;
      if (move.done()) busy.erase(move.channel);
      all = all && move.done();
    }
    all = all && std::all_of(transfers.begin(), transfers.end(), [](const Transfer& move) { return move.done(); });
    if (all) return;
    idle = any ? 0 : idle + 1;
    if (idle > 0 && idle < 50) sched_yield();
    else if (idle >= 50) {
      const timespec interval{0, 50'000};
      nanosleep(&interval, nullptr);
    }
  }
}

}  // namespace emulated_nccl
