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

/// The operations, in the order of `collectiveOps` in @mosaic/core, followed by split.
enum class OpKind : uint8_t {
  SendRecv, AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Barrier, GroupCast, GroupReduce, Split
};

/// One more than the last DType. It means that the operation has no operand.
constexpr uint8_t kNoDType = 3;

using Signature = MosaicSignature;
static_assert(sizeof(Signature) == 128, "expected a signature of 128 bytes, two cache lines");

/// Bytes sent and received by operations, and messages sent.
struct Payload {
  uint64_t bytesSent = 0, bytesReceived = 0, messagesSent = 0;

  Payload& operator+=(const Payload& other) {
    bytesSent += other.bytesSent;
    bytesReceived += other.bytesReceived;
    messagesSent += other.messagesSent;
    return *this;
  }
};

/// A process group, from the perspective of one of its ranks.
struct Group {
  uint64_t id = 0;
  std::string name;
  std::vector<uint32_t> ranks;  // world ranks, in order
  uint32_t rank = 0;            // this rank's position in `ranks`
  /// Host number of each of `ranks`. Empty before the ranks are connected, and if hosts make no difference.
  std::vector<uint32_t> hosts;

  /// Ids of the groups that this group was split from.
  std::vector<uint64_t> ancestors;

  // Updated when an operation is posted or a call is recorded, under the engine's lock.
  uint64_t sequence = 0, index = 0, recordedCount = 0, history = 0;
  // Sum over the completed operations, under the engine's lock.
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
  /// The caller passed the counts, so ranks may hold tensors of different shapes.
  bool ragged = false;
  std::vector<uint64_t> shape;  // of the input
  uint8_t *out = nullptr, *in = nullptr;
  /// allToAll: elements for each rank and from each rank. allGather and reduceScatter: elements in the share of each
  /// rank.
  std::vector<uint64_t> sendCounts, receiveCounts;
  /// The messages of sendRecv, groupCast and groupReduce.
  std::vector<Transfer> transfers;
  /// groupCast and groupReduce: a hash of the plan and the tensors, equal on all ranks.
  uint64_t plan = 0;

  /// Reads the words that `encodeCall` in packages/runtime/src/collectives/rank.ts wrote. Throws std::out_of_range.
  static CollectiveCall read(const double* words, size_t length);
};

/// Returns the id of the group that a split creates from the ranks of one color. All of them derive the same id.
uint64_t splitId(uint64_t parent, uint64_t index, int64_t color);
/// Returns the id of the sequence of a group's messages from one world rank to another, for one kind of operation.
uint64_t messagesId(uint64_t group, OpKind op, uint32_t from, uint32_t to);

/// Returns the bytes of an element, or 1 for kNoDType.
uint64_t elementBytes(uint8_t dtype);
uint64_t elementCount(const std::vector<uint64_t>& shape);
void setShape(Signature& signature, const std::vector<uint64_t>& shape);

/// Returns the signature of this rank's next operation of a group. Does not change the group's counters.
Signature makeSignature(const Group& group, const CollectiveCall& call);
/// Returns the history of a group after a recorded call.
uint64_t extendHistory(uint64_t history, const std::string& recordedCall);
/// Returns the history of a group after this collective.
uint64_t extendHistory(const Signature& signature);
/// Returns the history of the messages between two ranks after this message.
uint64_t extendHistory(uint64_t history, const Signature& message);
/// Whether a message is the one that its receiver expects, after equal calls of the group. A `MosaicMatches`.
int signaturesMatch(const Signature* expected, const Signature* received);
/// Whether a message belongs to the expected operation, regardless of the sender's earlier calls.
bool isSameOperation(const Signature& expected, const Signature& received);

const char* opName(OpKind op);
/// Returns a text such as `allGather #42 (sp)`.
std::string operationName(const Signature& signature, const std::string& group);
/// Returns a text such as `sendRecv #41 (sp) float32 [2,8,100,64]`.
std::string describeOperation(const Signature& signature, const std::string& group);

}  // namespace mosaic
