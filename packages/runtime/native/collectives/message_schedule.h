// The messages and reductions that a collective consists of. Algorithms are direct: each rank exchanges with every
// other, and reduces in rank order, so that a reduction has the same bits on every transport. If a group spans several
// hosts, some with several ranks, then allGather, broadcast and the second part of allReduce send each share to each
// other host once, to a rank that forwards it to the other ranks there (`sendToAllByHost`). Operands of reductions are
// sent to every rank that adds them, because a sum within a host would change the bits. Bytes received per rank, which
// equal the bytes sent if all ranks are on one host, for n ranks and S bytes of the whole:
//   allGather, reduceScatter, allToAll  S (n-1)/n     allReduce  2 S (n-1)/n, or S (n-1) when small
//   broadcast  S (n-1) at the root      barrier       0
//   groupCast, groupReduce: the rows that other ranks require of this rank, or that it returns to them
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
  Signature signature;  // the one to send, or the expected one
};

/// Computes out[i] = op over the element i of all ranks, in rank order. This rank's operand is in `own`, those of the
/// other ranks are in the receives.
struct Reduction {
  uint8_t* out;
  const uint8_t* own;
  uint64_t count;
  /// `out` overlaps data being sent.
  bool isAfterSends;
};

/// An operation that a transport may execute as a whole instead of messages: an all-gather of equal shares, or a
/// broadcast.
struct TransportCollective {
  MosaicStreamCollective kind;
  const uint8_t* in;
  uint8_t* out;
  uint64_t bytes;  // per rank
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

/// Returns the stages of a call whose signature is `operationSignature`. Throws std::invalid_argument if sends of a
/// rank to itself do not match its receives from itself.
MessageSchedule buildSchedule(const Group& group, const CollectiveCall& call, const Signature& operationSignature);

}  // namespace mosaic
