// The arguments and the signature of a collective.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "mosaic/view.h"
#include "mosaic/reduction.h"
#include "mosaic/transport.h"

namespace mosaic {

/// In the order of `collectiveOps` in @mosaic/core, and split.
enum class OpKind : uint8_t {
  SendRecv, AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Barrier, GroupCast, GroupReduce, Split
};

/// One more than the last DType: the operation has no operand.
constexpr uint8_t kNoDType = 3;

using Signature = MosaicSignature;
static_assert(sizeof(Signature) == 128, "expected a signature of 128 bytes, two cache lines");

/// What operations move: bytes, and messages sent.
struct Payload {
  uint64_t bytesSent = 0, bytesReceived = 0, messagesSent = 0;

  Payload& operator+=(const Payload& other) {
    bytesSent += other.bytesSent;
    bytesReceived += other.bytesReceived;
    messagesSent += other.messagesSent;
    return *this;
  }
};

/// A process group, as seen by one of its ranks.
struct Group {
  uint64_t id = 0;
  std::string name;
  std::vector<uint32_t> ranks;  // world ranks, in order
  uint32_t rank = 0;            // own position in `ranks`
  /// The host of each of `ranks`, by number. Empty before the ranks are connected, and where hosts make no difference.
  std::vector<uint32_t> hosts;

  /// The groups that it was split from.
  std::vector<uint64_t> ancestors;

  // Counted when an operation is posted or a call recorded, under the engine's lock.
  uint64_t sequence = 0, index = 0, recordedCount = 0, history = 0;
  // Of the operations that are concluded, under the engine's lock.
  Payload payload;

  uint32_t size() const { return static_cast<uint32_t>(ranks.size()); }
  bool contains(uint32_t worldRank) const;
};

struct Transfer {
  bool isSend = false;
  uint32_t peer = 0;  // rank in the group
  uint8_t* data = nullptr;
  uint8_t dtype = 0;
  std::vector<uint64_t> shape;
};

/// The arguments of a collective. Counts are in elements.
struct CollectiveCall {
  OpKind op = OpKind::Barrier;
  uint8_t dtype = kNoDType;
  ReduceOp reduce = ReduceOp::Sum;
  uint32_t root = 0;
  /// Counts given by the caller: ranks may hold tensors of different shapes.
  bool ragged = false;
  std::vector<uint64_t> shape;  // of the input
  uint8_t *out = nullptr, *in = nullptr;
  /// Elements for each rank, and (allToAll) from each rank; of allGather and reduceScatter, the share of each rank.
  std::vector<uint64_t> sendCounts, receiveCounts;
  /// The messages of sendRecv, groupCast and groupReduce.
  std::vector<Transfer> transfers;
  /// groupCast and groupReduce: a hash of the plan and the tensors, the same on all ranks.
  uint64_t plan = 0;

  /// Reads what packages/runtime/src/collectives/call.ts wrote. Throws std::out_of_range.
  static CollectiveCall read(const double* words, size_t length);
};

/// The group that a split creates from the ranks of one color: all of them derive the same ID.
uint64_t splitId(uint64_t parent, uint64_t index, int64_t color);
/// The messages of a group from one world rank to another, those of one kind of operation.
uint64_t messagesId(uint64_t group, OpKind op, uint32_t from, uint32_t to);

/// Bytes of an element; 1 for none.
uint64_t elementBytes(uint8_t dtype);
uint64_t elementCount(const std::vector<uint64_t>& shape);
void setShape(Signature& signature, const std::vector<uint64_t>& shape);

/// The signature of this rank's next operation of a group; does not count it.
Signature makeSignature(const Group& group, const CollectiveCall& call);
/// The history of a group after a call that was recorded.
uint64_t extendHistory(uint64_t history, const std::string& recordedCall);
/// The history of a group after this collective.
uint64_t extendHistory(const Signature& signature);
/// The history of the messages between two ranks after this one.
uint64_t extendHistory(uint64_t history, const Signature& message);
/// Whether a message is the one that its receiver expects, after the same calls of the group. A `MosaicMatches`.
int signaturesMatch(const Signature* expected, const Signature* received);
/// Whether a message belongs to the expected operation, whatever its sender has called before.
bool isSameOperation(const Signature& expected, const Signature& received);

const char* opName(OpKind op);
/// `allGather #42 (sp)`
std::string operationName(const Signature& signature, const std::string& group);
/// `sendRecv #41 (sp) float32 [2,8,100,64]`
std::string describeOperation(const Signature& signature, const std::string& group);

}  // namespace mosaic
