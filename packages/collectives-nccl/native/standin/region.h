// Memory that the ranks of one communicator share, in one process or many: a lane for each ordered pair of ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace standin {

/// A ring of bytes with one writer and one reader.
struct Lane {
  static constexpr uint64_t kBytes = 32 << 10;
  alignas(64) std::atomic<uint64_t> written;
  alignas(64) std::atomic<uint64_t> read;
  alignas(64) uint8_t data[kBytes];

  /// Moves what fits, and reports how much that was.
  uint64_t put(const uint8_t* from, uint64_t bytes);
  uint64_t take(uint8_t* to, uint64_t bytes);
};

constexpr uint32_t kSplits = 64;
constexpr uint32_t kMostRanks = 64;

struct Header {
  std::atomic<uint32_t> attached, finalized;
  struct Split {
    std::atomic<uint32_t> arrived;
    int color[kMostRanks], key[kMostRanks];
  } splits[kSplits];
};

class Region {
 public:
  /// Opens or makes the region of that name. Null if the system refuses.
  static std::shared_ptr<Region> open(const std::string& name, uint32_t ranks);
  ~Region();

  Header& header() const { return *static_cast<Header*>(memory_); }
  /// Point-to-point messages and whole collectives do not meet, as in NCCL.
  Lane& lane(uint32_t from, uint32_t to, bool collective) const;
  /// Nobody else is to come.
  void unlink() const;

 private:
  Region(std::string name, uint32_t ranks, void* memory, size_t bytes)
      : name_(std::move(name)), ranks_(ranks), memory_(memory), bytes_(bytes) {}
  std::string name_;
  uint32_t ranks_;
  void* memory_;
  size_t bytes_;
};

}  // namespace standin
