// Which messages a collective consists of. All algorithms are direct: over shared memory every pair of ranks is one
// copy apart, so rings and trees would only add steps. Bytes sent per rank, n ranks, S bytes of the whole:
//   allGather, reduceScatter, allToAll  S (n-1)/n     allReduce  2 S (n-1)/n, or S (n-1) when small
//   broadcast  S (n-1) at the root      barrier       0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exchange.h"

namespace mosaic {

/// Some ranks of the world, as one of them sees them.
struct Group {
  uint64_t id = 0;
  std::string name;
  std::vector<uint32_t> ranks;  // world ranks, in order
  uint32_t rank = 0;            // own place in `ranks`

  // Counted when an operation is posted, on the thread that posts.
  uint64_t sequence = 0, index = 0;
  // Counted by the communication thread.
  std::atomic<uint64_t> bytesSent{0}, bytesReceived{0}, messagesSent{0};

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
};

struct Transfer {
  bool send;
  uint32_t peer;  // rank in the group
  uint8_t* data;
  DType dtype;
  std::vector<uint64_t> shape;
};

/// The arguments of a collective. Counts are in elements.
struct Call {
  OpKind op = OpKind::Barrier;
  DType dtype = DType::None;
  ReduceOp reduce = ReduceOp::Sum;
  uint32_t root = 0;
  /// Shares were given by the caller: ranks need not hold tensors of the same shape.
  bool ragged = false;
  std::vector<uint64_t> shape;  // of the input
  uint8_t* out = nullptr;
  uint8_t* in = nullptr;
  /// Elements for each rank, and (allToAll) from each rank; of allGather and reduceScatter, each rank's share.
  std::vector<uint64_t> send, receive;
  std::vector<Transfer> transfers;
};

/// What this rank's messages of this operation say of themselves.
Signature signatureOf(const Group& group, const Call& call, uint64_t sequence, uint64_t index);
/// The stages of a call. Throws std::invalid_argument when sends to oneself do not match receives.
std::vector<Stage> plan(const Group& group, const Call& call, const Signature& base);

}  // namespace mosaic
