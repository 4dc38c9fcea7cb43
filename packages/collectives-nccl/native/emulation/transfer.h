// Transfers data between two ranks of a communicator, over memory that the ranks of a host share, or over a connection
// to another host. The common state of a communicator (number of attached ranks, splits) is always in shared memory,
// because the hosts of tests are on one machine.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace emulated_nccl {

/// A ring buffer of bytes with one writer and one reader.
struct Channel {
  static constexpr uint64_t kCapacityBytes = 32 << 10;
  alignas(64) std::atomic<uint64_t> writtenByteCount;
  alignas(64) std::atomic<uint64_t> readByteCount;
  alignas(64) uint8_t data[kCapacityBytes];

  /// Transfer as many bytes as fit. Return the number of bytes.
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
  /// Opens or creates the region with this name. Returns null on a system error.
  static std::shared_ptr<Region> open(const std::string& name, uint32_t ranks);
  ~Region();

  RegionHeader& header() const { return *static_cast<RegionHeader*>(memory_); }
  /// Returns the channel for point-to-point messages or that for collectives, which are separate, as in NCCL.
  Channel& channel(uint32_t from, uint32_t to, bool isCollective) const;
  /// Removes the name of the region, because no other rank is expected.
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

  /// Transfer the bytes that can be transferred now. Return their number, or -1 if the connection has ended.
  int64_t push(const uint8_t* from, uint64_t bytes) const;
  int64_t pop(uint8_t* to, uint64_t bytes) const;
};

// The work of a launch, which runs in stream order.

enum class TransferKind : uint64_t { Message = 1, Gather, Broadcast };

/// The send or the receive of a message. Each message has a header. If sender and receiver disagree, they never
/// complete, as in NCCL.
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
  /// Transfers the data that can be transferred now. Returns whether any was.
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

  /// Runs all transfers concurrently, but in order within a lane, until all are done or `isStopped`. Returns false if a
  /// connection has ended.
  bool run(const std::atomic<bool>& isStopped);
};

}  // namespace emulated_nccl
