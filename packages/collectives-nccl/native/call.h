// A collective as JavaScript asks for it, and as ranks compare it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mosaic/device_port.h"
#include "mosaic/dtype.h"

namespace mosaic::nccl {

// In the order of core's src/native/collectives/call.ts.
enum class OpKind : uint8_t { SendRecv, AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Barrier, Split };

using Counts = std::vector<uint64_t>;

struct Transfer {
  bool send = false;
  uint32_t peer = 0;  // rank in the group
  uint8_t* data = nullptr;
  uint8_t dtype = 0;
  Counts shape;
};

/// The arguments of a collective. Counts are in elements.
struct Call {
  OpKind op = OpKind::Barrier;
  /// Of mosaic::DType; one more stands for none.
  uint8_t dtype = 3;
  MosaicReduceOp reduce = MOSAIC_REDUCE_SUM;
  uint32_t root = 0;
  /// Shares were given by the caller: ranks need not hold tensors of the same shape.
  bool ragged = false;
  Counts shape;  // of the input
  uint8_t *out = nullptr, *in = nullptr;
  /// Elements for each rank, and (allToAll) from each rank; of allGather and reduceScatter, each rank's share.
  Counts send, receive;
  std::vector<Transfer> transfers;
};

uint64_t bytesOf(uint8_t dtype);
uint64_t sizeOf(const Counts& shape);

/// Some ranks of the world, as one of them sees them.
struct Group {
  uint64_t id = 0;
  std::string name;
  std::vector<uint32_t> ranks;  // world ranks, in order
  uint32_t rank = 0;            // own place in `ranks`

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  bool has(uint32_t worldRank) const;
};

/// What a rank has called: all that must agree among ranks, and what messages say of it.
struct Signature {
  OpKind op = OpKind::Barrier;
  uint8_t dtype = 3;
  uint8_t reduce = 0;
  bool ragged = false;
  uint32_t root = 0;
  uint64_t group = 0;
  uint64_t sequence = 0;  // operations of this group that the rank has called, this one included
  uint64_t index = 0;     // the same without sendRecv, which not every rank of a group must join; 0 for sendRecv
  Counts shape, send, receive;
  std::vector<Transfer> transfers;  // without data
  std::string groupName, label;
};

Signature signatureOf(const Group& group, const Call& call);

/// `allGather #42 (sp)`
std::string nameOf(const Signature& signature);
/// `allGather #42 (sp) float32 [2,8,100,64]`
std::string descriptionOf(const Signature& signature);
/// The same of one message of a sendRecv.
std::string descriptionOf(const Signature& signature, const Transfer& transfer);
const char* nameOf(OpKind op);

}  // namespace mosaic::nccl
