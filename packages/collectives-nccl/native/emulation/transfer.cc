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

bool Move::step() {
  bool any = false;
  constexpr uint64_t kHead = sizeof announcement;
  auto* head = reinterpret_cast<uint8_t*>(announcement);
  if (announced < kHead) {
    if (send) {
      announcement[0] = static_cast<uint64_t>(kind);
      announcement[1] = bytes;
    }
    const uint64_t left = kHead - announced;
    const uint64_t n = send ? lane->put(head + announced, left) : lane->take(head + announced, left);
    announced += n;
    any = n > 0;
    if (announced < kHead) return any;
  }
  if (announcement[0] != static_cast<uint64_t>(kind) || announcement[1] != bytes) return any;
  while (moved < bytes) {
    const uint64_t n = send ? lane->put(data + moved, bytes - moved) : lane->take(data + moved, bytes - moved);
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
    std::set<const Lane*> busy;  // an earlier message of the lane is not through
    for (Move& move : moves) {
      if (move.done() || !busy.insert(move.lane).second) continue;
      any = move.step() || any;
      if (move.done()) busy.erase(move.lane);
      all = all && move.done();
    }
    all = all && std::all_of(moves.begin(), moves.end(), [](const Move& move) { return move.done(); });
    if (all) return;
    idle = any ? 0 : idle + 1;
    if (idle > 0 && idle < 50) sched_yield();
    else if (idle >= 50) {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
}

}  // namespace emulated_nccl
