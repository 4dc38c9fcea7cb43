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

constexpr size_t kRegionHeaderBytes = (sizeof(RegionHeader) + 4095) / 4096 * 4096;

}  // namespace

uint64_t Channel::push(const uint8_t* from, uint64_t bytes) {
  const uint64_t position = writtenByteCount.load(std::memory_order_relaxed);
  const uint64_t n = std::min({bytes, kCapacityBytes - (position - readByteCount.load(std::memory_order_acquire)),
                               kCapacityBytes - position % kCapacityBytes});
  std::memcpy(data + position % kCapacityBytes, from, n);
  writtenByteCount.store(position + n, std::memory_order_release);
  return n;
}

uint64_t Channel::pop(uint8_t* to, uint64_t bytes) {
  const uint64_t position = readByteCount.load(std::memory_order_relaxed);
  const uint64_t n = std::min({bytes, writtenByteCount.load(std::memory_order_acquire) - position,
                               kCapacityBytes - position % kCapacityBytes});
  std::memcpy(to, data + position % kCapacityBytes, n);
  readByteCount.store(position + n, std::memory_order_release);
  return n;
}

std::shared_ptr<Region> Region::open(const std::string& name, uint32_t ranks) {
  const size_t bytes = kRegionHeaderBytes + 2 * sizeof(Channel) * ranks * ranks;
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
  // A rank that has not joined by now never will, so the name is removed even if not all ranks have joined.
  unlink();
  munmap(memory_, bytes_);
}

Channel& Region::channel(uint32_t from, uint32_t to, bool isCollective) const {
  auto* channels = reinterpret_cast<Channel*>(static_cast<uint8_t*>(memory_) + kRegionHeaderBytes);
  return channels[((isCollective ? ranks_ : 0) + from) * ranks_ + to];
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
  bool hasMoved = false;
  constexpr uint64_t kMessageHeaderBytes = sizeof header;
  auto* headerData = reinterpret_cast<uint8_t*>(header);
  const auto moveBytes = [this](uint8_t* at, uint64_t remainingBytes) -> uint64_t {
    const int64_t n = isSend ? lane.push(at, remainingBytes) : lane.pop(at, remainingBytes);
    isBroken = n < 0;
    return isBroken ? 0 : static_cast<uint64_t>(n);
  };
  if (headerMovedBytes < kMessageHeaderBytes) {
    if (isSend) {
      header[0] = static_cast<uint64_t>(kind);
      header[1] = bytes;
    }
    const uint64_t n = moveBytes(headerData + headerMovedBytes, kMessageHeaderBytes - headerMovedBytes);
    headerMovedBytes += n;
    hasMoved = n > 0;
    if (headerMovedBytes < kMessageHeaderBytes) return hasMoved;
  }
  if (header[0] != static_cast<uint64_t>(kind) || header[1] != bytes) return hasMoved;
  while (movedBytes < bytes) {
    const uint64_t n = moveBytes(data + movedBytes, bytes - movedBytes);
    if (n == 0) break;
    movedBytes += n;
    hasMoved = true;
  }
  return hasMoved;
}

bool Work::run(const std::atomic<bool>& isStopped) {
  for (const LocalCopy& copy : copies) std::memmove(copy.to, copy.from, copy.bytes);
  for (int idleRounds = 0; !isStopped;) {
    bool hasProgress = false, isComplete = true;
    std::set<std::tuple<const Channel*, int, bool>> busyChannels;  // lanes whose earlier message is incomplete
    for (Transfer& transfer : transfers) {
      const std::tuple laneKey{static_cast<const Channel*>(transfer.lane.channel), transfer.lane.fd, transfer.isSend};
      if (transfer.isDone() || !busyChannels.insert(laneKey).second) continue;
      hasProgress = transfer.progress() || hasProgress;
      if (transfer.isBroken) return false;
      if (transfer.isDone()) busyChannels.erase(laneKey);
      isComplete = isComplete && transfer.isDone();
    }
    isComplete = isComplete && std::all_of(transfers.begin(), transfers.end(),
                                           [](const Transfer& transfer) { return transfer.isDone(); });
    if (isComplete) return true;
    idleRounds = hasProgress ? 0 : idleRounds + 1;
    if (idleRounds > 0 && idleRounds < 50) sched_yield();
    else if (idleRounds >= 50) {
      const timespec interval{0, 50'000};
      nanosleep(&interval, nullptr);
    }
  }
  return true;
}

}  // namespace emulated_nccl
