// What a launch does when its turn comes on the stream.
#pragma once

#include <vector>

#include "standin/region.h"

namespace standin {

enum class Kind : uint64_t { Message = 1, Gather, Broadcast };

/// One half of a message. Sender and receiver announce what they move: as in NCCL, those that disagree wait for ever.
struct Move {
  Kind kind;
  bool send;
  Lane* lane;
  uint8_t* data;
  uint64_t bytes;
  uint64_t announced = 0, moved = 0;
  uint64_t announcement[2] = {};

  bool done() const { return announced == sizeof announcement && moved == bytes; }
  /// Moves what can be moved now; whether that was anything.
  bool step();
};

struct LocalCopy {
  uint8_t* to;
  const uint8_t* from;
  uint64_t bytes;
};

struct Work {
  std::vector<LocalCopy> copies;
  std::vector<Move> moves;

  /// Moves everything side by side, in order within a lane, until all is done or `stopped`.
  void run(const std::atomic<bool>& stopped);
};

}  // namespace standin
