// The memory that the ranks of a host share: a page for each rank and a ring buffer for each ordered pair. The same
// layout is used for threads of one process and for processes of one host. It never has a name in a file system.
#pragma once

#include <memory>
#include <string>

#include "mosaic/futex.h"
#include "shared_memory/channel.h"

namespace mosaic {

constexpr uint32_t kMaxRanks = 1024;

/// One rank's page. Only that rank writes to it, except to the doorbell.
struct alignas(4096) RankPage {
  Doorbell doorbell;
  /// The rank closed in order: everything it sent is in the ring buffers, and no more will come.
  std::atomic<uint32_t> isClosed{0};
};

struct alignas(4096) SegmentHeader {
  uint64_t magic;
  uint32_t size;
  uint64_t capacity;  // bytes of a ring buffer
  uint64_t bytes;
  std::atomic<uint32_t> mappedRankCount;  // ranks that have mapped the segment, except the one that created it
};

class Segment {
 public:
  /// Creates a segment for threads of this process.
  static std::shared_ptr<Segment> createAnonymous(uint32_t size);
  /// Creates a segment for several processes: a sealed memfd, kept open, which other processes may `open` by `path`.
  static std::shared_ptr<Segment> create(uint32_t size);
  /// Maps a segment that another process of this user created.
  static std::shared_ptr<Segment> open(const std::string& path, uint32_t size);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint32_t size() const { return header().size; }
  /// Path of the memfd: `/proc/<pid>/fd/<number>`.
  std::string path() const;
  /// Whether all ranks have mapped the segment.
  bool isMappedByAll() const { return header().mappedRankCount + 1 == size(); }
  /// Closes the descriptor; the mapping stays valid.
  void closeFile();
  RankPage& page(uint32_t rank) const { return reinterpret_cast<RankPage*>(base_ + sizeof(SegmentHeader))[rank]; }
  Channel channel(uint32_t from, uint32_t to) const;

 private:
  Segment(uint8_t* base, uint64_t bytes, int fd) : base_(base), bytes_(bytes), fd_(fd) {}
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }

  uint8_t* base_;
  uint64_t bytes_;
  int fd_;
};

}  // namespace mosaic
