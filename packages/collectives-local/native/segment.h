// The memory that the ranks of a world share: a page of state per rank and a ring of bytes per ordered pair.
// The same layout serves threads of one process and processes of one host; nothing of it ever has a name on disk.
#pragma once

#include <mosaic/stream.h>

#include <memory>
#include <string>

#include "channel.h"
#include "futex.h"
#include "signature.h"

namespace mosaic {

constexpr uint32_t kMaxRanks = 1024;

enum class RankState : uint32_t { Absent, Present, Left };
enum class Activity : uint32_t { Idle, Running };

/// Where a rank is in its sequence of operations: the running one, or the last that ended.
struct Position {
  uint64_t group = 0;
  uint64_t sequence = 0;
  uint64_t index = 0;
  OpKind op = OpKind::Barrier;
  Activity activity = Activity::Idle;
  char groupName[24] = {};
};
static_assert(sizeof(Position) == 56);

/// A small value that one rank writes and all may read at any time (a sequence lock over atomic words).
class SharedPosition {
 public:
  void store(const Position& position);
  Position load() const;

 private:
  static constexpr size_t kWords = sizeof(Position) / 8;
  std::atomic<uint64_t> version_{0};
  std::atomic<uint64_t> words_[kWords] = {};
};

/// One rank's page. Only that rank writes to it, but for the doorbell.
struct alignas(4096) ControlPage {
  std::atomic<RankState> state{RankState::Absent};
  std::atomic<int32_t> pid{0};
  std::atomic<uint64_t> bornAt{0};  // start time of the process, for a pid may be used again
  Doorbell doorbell;
  alignas(64) std::atomic<uint64_t> posted{0};
  std::atomic<uint64_t> completed{0};
  SharedPosition position;
  /// Written once, `failed` last: why this rank can take part in nothing any more.
  std::atomic<uint32_t> failed{0};
  MosaicFailure failure{};
};
static_assert(sizeof(ControlPage) == 4096);

struct alignas(4096) SegmentHeader {
  uint64_t magic;
  uint32_t size;
  uint64_t capacity;
  uint64_t bytes;
};

class Segment {
 public:
  /// For the threads of this process.
  static std::shared_ptr<Segment> anonymous(uint32_t size);
  /// For processes: `fd` is a sealed memfd that others may `open`.
  static std::shared_ptr<Segment> create(uint32_t size);
  /// Maps what another process created. Takes `fd`.
  static std::shared_ptr<Segment> open(int fd, uint32_t size);
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  uint32_t size() const { return header().size; }
  int fd() const { return fd_; }
  /// All ranks have it: the mapping stays, the descriptor goes.
  void closeFd();
  SegmentHeader& header() const { return *reinterpret_cast<SegmentHeader*>(base_); }
  ControlPage& page(uint32_t rank) const { return reinterpret_cast<ControlPage*>(base_ + sizeof(SegmentHeader))[rank]; }
  Channel channel(uint32_t from, uint32_t to) const;
  /// Wakes every rank but `self`.
  void ringAll(uint32_t self) const;

 private:
  Segment(uint8_t* base, uint64_t bytes, int fd) : base_(base), bytes_(bytes), fd_(fd) {}
  uint8_t* base_;
  uint64_t bytes_;
  int fd_;
};

}  // namespace mosaic
