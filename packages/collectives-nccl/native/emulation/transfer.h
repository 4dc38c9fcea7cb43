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
  static constexpr uint64_t kBytes = 32 << 10;
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) uint8_t data[kBytes];

  /// Moves what fits, and reports how much that was.
  uint64_t push(const uint8_t* from, uint64_t bytes);
  uint64_t pop(uint8_t* to, uint64_t bytes);
};

constexpr uint32_t kMaxSplits = 64;
constexpr uint32_t kMaxRanks = 64;

struct Header {
  std::atomic<uint32_t> attached, finalized;
  struct Split {
    std::atomic<uint32_t> arrived;
    int color[kMaxRanks], key[kMaxRanks];
  } splits[kMaxSplits];
};

class Region {
 public:
  /// Opens or makes the region of that name. Null if the system refuses.
  static std::shared_ptr<Region> open(const std::string& name, uint32_t ranks);
  ~Region();

  Header& header() const { return *static_cast<Header*>(memory_); }
  /// Point-to-point messages and whole collectives do not meet, as in NCCL.
  Channel& channel(uint32_t from, uint32_t to, bool collective) const;
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

enum class Kind : uint64_t { Message = 1, Gather, Broadcast };

/// One half of a message. Sender and receiver announce what they move: as in NCCL, those that disagree wait for ever.
struct Transfer {
  Kind kind;
  bool send;
  Lane lane;
  uint8_t* data;
  uint64_t bytes;
  uint64_t headerMoved = 0, moved = 0;
  uint64_t header[2] = {};
  bool isBroken = false;

  bool done() const { return headerMoved == sizeof header && moved == bytes; }
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

  /// Moves everything side by side, in order within a lane, until all is done or `stopped`; false if a connection has
  /// ended.
  bool run(const std::atomic<bool>& stopped);
};

}  // namespace emulated_nccl
