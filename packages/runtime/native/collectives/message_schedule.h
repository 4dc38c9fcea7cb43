// Which messages and sums a collective consists of. Algorithms are direct: each rank exchanges with every other, and
// adds in rank order, so that a reduction has the same bits on every transport. The sums of an all-reduce cross to a
// host once and are forwarded within it. Bytes received per rank, and sent where all are on one host; n ranks, S bytes
// of the whole:
//   allGather, reduceScatter, allToAll  S (n-1)/n     allReduce  2 S (n-1)/n, or S (n-1) when small
//   broadcast  S (n-1) at the root      barrier       0
//   groupCast, groupReduce: the rows that others require of this rank, or that it returns to them
#pragma once

#include <optional>
#include <vector>

#include "collectives/call.h"

namespace mosaic {

struct Copy {
  uint8_t* to;
  const uint8_t* from;
  uint64_t bytes;
};

/// A message to or from a rank of the group. A receive without data is an operand of the stage's reduction.
struct Message {
  uint32_t peer;  // rank in the group
  uint8_t* data;
  Signature signature;  // as sent, or as expected
};

/// out[i] = op over the group, in rank order, of element i: this rank's from `own`, the others' from the receives.
struct Reduction {
  uint8_t* out;
  const uint8_t* own;
  uint64_t count;
  /// `out` overlaps what is being sent.
  bool isAfterSends;
};

/// What a transport may do as one operation instead of messages: an equal all-gather, or a broadcast.
struct TransportCollective {
  MosaicStreamCollective kind;
  const uint8_t* in;
  uint8_t* out;
  uint64_t bytes;  // of one rank
  uint32_t root;
};

struct Stage {
  std::vector<Copy> copies;
  std::vector<Message> sends, receives;  // receives of a reduction are in rank order
  std::optional<Reduction> reduction;
  std::optional<TransportCollective> transportCollective;
};

struct MessageSchedule {
  std::vector<Stage> stages;
  Payload payload;
};

/// The stages of a call whose signature is `operationSignature`. Throws std::invalid_argument where sends of a rank to
/// itself do not match its receives from itself.
MessageSchedule buildSchedule(const Group& group, const CollectiveCall& call, const Signature& operationSignature);

}  // namespace mosaic
