// What a collective does: copies, messages, what NCCL does as one, and sums.
// Bytes sent per rank, n ranks, S bytes of the whole:
//   allGather, reduceScatter, allToAll  S (n-1)/n     allReduce  2 S (n-1)/n, or S (n-1) when small
//   broadcast  S (n-1) at the root      barrier       0
// NCCL's own reductions add in an order of their own; ours is that of the ranks, so operands are exchanged, and summed
// here.
#pragma once

#include <optional>

#include "call.h"

namespace mosaic::nccl {

struct Copy {
  uint64_t to, from, bytes;
};

/// Addresses of staged messages count from the beginning of the staging memory.
struct Message {
  uint32_t peer;
  uint64_t at, bytes;
  bool staged = false;
};

/// What NCCL does as one.
struct Whole {
  enum class Kind { Gather, Broadcast } kind;
  uint64_t in, out, bytes;  // bytes of one rank
  uint32_t root = 0;
  bool staged = false;
};

struct Stage {
  std::vector<Copy> copies;
  std::vector<Message> sends, receives;
  std::optional<Whole> whole;
  /// Its `others` are staged.
  std::optional<MosaicRankReduction> reduction;
};

struct Payload {
  uint64_t sent = 0, received = 0, messages = 0;
};

struct Plan {
  std::vector<Stage> stages;
  uint64_t stagingBytes = 0;
  Payload payload;
};

Plan planOf(const Group& group, const Call& call);

}  // namespace mosaic::nccl
