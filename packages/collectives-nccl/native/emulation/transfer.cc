#include "emulation/transfer.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <set>
#include <tuple>

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
  const bool isResized = ftruncate(fd, static_cast<off_t>(bytes)) == 0;
  void* memory =
      isResized ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0) : MAP_FAILED;
  close(fd);
  if (memory == MAP_FAILED) return nullptr;
  return std::shared_ptr<Region>(new Region(name, ranks, memory, bytes));
}

Region::~Region() {
  // A rank that has not joined by now will not: nothing stays behind of ranks that never all met.
  unlink();
  munmap(memory_, bytes_);
}

Channel& Region::channel(uint32_t from, uint32_t to, bool collective) const {
  auto* channels = reinterpret_cast<Channel*>(static_cast<uint8_t*>(memory_) + kHeaderBytes);
  return channels[((collective ? ranks_ : 0) + from) * ranks_ + to];
}

void Region::unlink() const { shm_unlink(name_.c_str()); }

int64_t Lane::push(const uint8_t* from, uint64_t bytes) const {
  if (channel) return static_cast<int64_t>(channel->push(from, bytes));
  const ssize_t n = send(fd, from, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n >= 0 ? n : errno == EAGAIN ? 0 : -1;
}

int64_t Lane::pop(uint8_t* to, uint64_t bytes) const {
  if (channel) return static_cast<int64_t>(channel->pop(to, bytes));
  const ssize_t n = recv(fd, to, bytes, MSG_DONTWAIT);
  return n > 0 ? n : n < 0 && errno == EAGAIN ? 0 : -1;
}

bool Transfer::progress() {
  bool any = false;
  constexpr uint64_t kHeaderSize = sizeof header;
  auto* head = reinterpret_cast<uint8_t*>(header);
  const auto step = [this](uint8_t* at, uint64_t left) -> uint64_t {
    const int64_t n = send ? lane.push(at, left) : lane.pop(at, left);
    isBroken = n < 0;
    return isBroken ? 0 : static_cast<uint64_t>(n);
  };
  if (headerMoved < kHeaderSize) {
    if (send) {
      header[0] = static_cast<uint64_t>(kind);
      header[1] = bytes;
    }
    const uint64_t n = step(head + headerMoved, kHeaderSize - headerMoved);
    headerMoved += n;
    any = n > 0;
    if (headerMoved < kHeaderSize) return any;
  }
  if (header[0] != static_cast<uint64_t>(kind) || header[1] != bytes) return any;
  while (moved < bytes) {
    const uint64_t n = step(data + moved, bytes - moved);
    if (n == 0) break;
    moved += n;
    any = true;
  }
  return any;
}

bool Work::run(const std::atomic<bool>& stopped) {
  for (const LocalCopy& copy : copies) std::memmove(copy.to, copy.from, copy.bytes);
  for (int idle = 0; !stopped;) {
    bool any = false, all = true;
    std::set<std::tuple<const Channel*, int, bool>> busyChannels;  // an earlier message of the lane is not through
    for (Transfer& move : transfers) {
      const std::tuple lane{static_cast<const Channel*>(move.lane.channel), move.lane.fd, move.send};
      if (move.done() || !busyChannels.insert(lane).second) continue;
      any = move.progress() || any;
      if (move.isBroken) return false;
      if (move.done()) busyChannels.erase(lane);
      all = all && move.done();
    }
    all = all && std::all_of(transfers.begin(), transfers.end(), [](const Transfer& move) { return move.done(); });
    if (all) return true;
    idle = any ? 0 : idle + 1;
    if (idle > 0 && idle < 50) sched_yield();
    else if (idle >= 50) {
      const timespec interval{0, 50'000};
      nanosleep(&interval, nullptr);
    }
  }
  return true;
}

}  // namespace emulated_nccl
