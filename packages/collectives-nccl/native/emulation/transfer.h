// What moves data between two ranks of a communicator: memory that the ranks of a host share, a connection to another
// host. What its ranks agree on (how many have come, who splits how) is in shared memory always: hosts of tests are on
// one machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace emulated_nccl {

/// A ring of bytes with one writer and one reader.
struct Channel {
  static constexpr uint64_t kCapacityBytes = 32 << 10;
  alignas(64) std::atomic<uint64_t> writtenByteCount;
  alignas(64) std::atomic<uint64_t> readByteCount;
  alignas(64) uint8_t data[kCapacityBytes];

  /// Moves what fits, and reports how much that was.
  uint64_t push(const uint8_t* from, uint64_t bytes);
  uint64_t pop(uint8_t* to, uint64_t bytes);
};

constexpr uint32_t kMaxSplits = 64;
constexpr uint32_t kMaxRanks = 64;

struct RegionHeader {
  std::atomic<uint32_t> attachedRankCount, finalizedRankCount;
  struct Split {
    std::atomic<uint32_t> arrivedCount;
    int color[kMaxRanks], key[kMaxRanks];
  } splits[kMaxSplits];
};

class Region {
 public:
  /// Opens or makes the region of that name. Null if the system refuses.
  static std::shared_ptr<Region> open(const std::string& name, uint32_t ranks);
  ~Region();

  RegionHeader& header() const { return *static_cast<RegionHeader*>(memory_); }
  /// Point-to-point messages and whole collectives do not meet, as in NCCL.
  Channel& channel(uint32_t from, uint32_t to, bool isCollective) const;
  /// No other rank is expected.
  void unlink() const;

 private:
  Region(std::string name, uint32_t ranks, void* memory, size_t bytes)
      : name_(std::move(name)), ranks_(ranks), memory_(memory), bytes_(bytes) {}
  std::string name_;
  uint32_t ranks_;
  void* memory_;
  size_t bytes_;
};

/// One direction between two ranks: a channel within a host, else a connection.
struct Lane {
  Channel* channel = nullptr;
  int fd = -1;

  /// Move what can be moved now, and return how much that was; -1: the connection has ended.
  int64_t push(const uint8_t* from, uint64_t bytes) const;
  int64_t pop(uint8_t* to, uint64_t bytes) const;
};

// What a launch does when its turn comes on the stream.

enum class TransferKind : uint64_t { Message = 1, Gather, Broadcast };

/// One half of a message. Sender and receiver announce what they move: as in NCCL, those that disagree wait for ever.
struct Transfer {
  TransferKind kind;
  bool isSend;
  Lane lane;
  uint8_t* data;
  uint64_t bytes;
  uint64_t headerMovedBytes = 0, movedBytes = 0;
  uint64_t header[2] = {};
  bool isBroken = false;

  bool isDone() const { return headerMovedBytes == sizeof header && movedBytes == bytes; }
  /// Moves what can be moved now; whether that was anything.
  bool progress();
};

struct LocalCopy {
  uint8_t* to;
  const uint8_t* from;
  uint64_t bytes;
};

struct Work {
  std::vector<LocalCopy> copies;
  std::vector<Transfer> transfers;

  /// Moves everything side by side, in order within a lane, until all is done or `isStopped`; false if a connection has
  /// ended.
  bool run(const std::atomic<bool>& isStopped);
};

}  // namespace emulated_nccl
