#include "collectives/call.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <stdexcept>

namespace mosaic {

namespace {

constexpr uint32_t kSignatureMagic = 0x4d6f7334;  // "Mos4"

/// Reads the numbers of a call, with each list preceded by its length. Addresses are exact as numbers, because user
/// space ends far below 2^53.
class CallReader {
 public:
  CallReader(const double* data, size_t length) : next_(data), end_(data + length) {}

  uint64_t readNumber() {
    if (next_ == end_) throw std::out_of_range("truncated call: expected another argument, received the end");
    return static_cast<uint64_t>(*next_++);
  }
  uint8_t* readAddress() { return reinterpret_cast<uint8_t*>(readNumber()); }
  std::vector<uint64_t> readList() {
    std::vector<uint64_t> values(readNumber());
    for (uint64_t& value : values) value = readNumber();
    return values;
  }

 private:
  const double* next_;
  const double* end_;
};

uint64_t hash(uint64_t value, std::initializer_list<uint64_t> words) {
  for (const uint64_t word : words) value = (value ^ word) * 0x100000001b3;  // FNV-1a style, over 64-bit words
  return value;
}

constexpr uint64_t kHashBasis = 0xcbf29ce484222325;

const char* reduceOpName(uint8_t op) {
  static const char* const names[] = {"sum", "mean", "max"};
  return names[std::min<size_t>(op, 2)];
}

bool hasPlan(uint8_t op) {
  return op == static_cast<uint8_t>(OpKind::GroupCast) || op == static_cast<uint8_t>(OpKind::GroupReduce);
}

/// Whether the counts of an operation, if passed, are the same on all ranks.
bool hasCommonCounts(uint8_t op) {
  return op == static_cast<uint8_t>(OpKind::AllGather) || op == static_cast<uint8_t>(OpKind::ReduceScatter);
}

uint64_t hashCounts(const std::vector<uint64_t>& counts) {
  uint64_t value = kHashBasis;
  for (const uint64_t count : counts) value = hash(value, {count});
  return value;
}

bool isReduction(uint8_t op) {
  return op == static_cast<uint8_t>(OpKind::ReduceScatter) || op == static_cast<uint8_t>(OpKind::AllReduce);
}

}  // namespace

bool Group::contains(uint32_t worldRank) const {
  return std::find(ranks.begin(), ranks.end(), worldRank) != ranks.end();
}

CollectiveCall CollectiveCall::read(const double* data, size_t length) {
  CallReader reader(data, length);
  CollectiveCall call;
  call.op = static_cast<OpKind>(reader.readNumber());
  call.dtype = static_cast<uint8_t>(reader.readNumber());
  call.reduce = static_cast<ReduceOp>(reader.readNumber());
  call.root = static_cast<uint32_t>(reader.readNumber());
  call.ragged = reader.readNumber() != 0;
  call.out = reader.readAddress();
  call.in = reader.readAddress();
  call.shape = reader.readList();
  call.sendCounts = reader.readList();
  call.receiveCounts = reader.readList();
  call.transfers.resize(reader.readNumber());
  for (Transfer& transfer : call.transfers) {
    transfer.isSend = reader.readNumber() != 0;
    transfer.peer = static_cast<uint32_t>(reader.readNumber());
    transfer.data = reader.readAddress();
    transfer.dtype = static_cast<uint8_t>(reader.readNumber());
    transfer.shape = reader.readList();
  }
  call.plan = reader.readNumber();
  return call;
}

uint64_t splitId(uint64_t parent, uint64_t index, int64_t color) {
  return hash(kHashBasis, {parent, index, static_cast<uint64_t>(color)});
}

uint64_t messagesId(uint64_t group, OpKind op, uint32_t from, uint32_t to) {
  return hash(kHashBasis, {group, static_cast<uint64_t>(op), from, to});
}

uint64_t elementBytes(uint8_t dtype) {
  return dtype >= kNoDType ? 1 : static_cast<uint64_t>(dtypeBytes(static_cast<DType>(dtype)));
}

uint64_t elementCount(const std::vector<uint64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

void setShape(Signature& signature, const std::vector<uint64_t>& shape) {
  signature.axes = static_cast<uint8_t>(std::min<size_t>(shape.size(), MOSAIC_MAX_AXES));
  // If there are more axes than fit, the outermost are merged.
  const size_t numLeadingAxes = shape.size() - signature.axes;
  for (uint32_t axis = 0; axis < signature.axes; axis++) signature.shape[axis] = shape[axis + numLeadingAxes];
  for (size_t axis = 0; axis < numLeadingAxes; axis++) signature.shape[0] *= shape[axis];
}

Signature makeSignature(const Group& group, const CollectiveCall& call) {
  Signature signature{};
  signature.magic = kSignatureMagic;
  signature.op = static_cast<uint8_t>(call.op);
  signature.dtype = call.dtype;
  signature.reduce = static_cast<uint8_t>(call.reduce);
  signature.group = group.id;
  signature.sequence = group.sequence + 1;
  signature.root = call.root;
  signature.ragged = call.ragged;
  signature.history = group.history;
  signature.plan = call.ragged && hasCommonCounts(signature.op) ? hashCounts(call.sendCounts) : call.plan;
  if (call.op == OpKind::SendRecv) {
    if (call.transfers.empty()) return signature;
    signature.dtype = call.transfers[0].dtype;
    setShape(signature, call.transfers[0].shape);
    return signature;
  }
  signature.index = group.index + 1;
  setShape(signature, call.shape);
  return signature;
}

uint64_t extendHistory(uint64_t history, const std::string& recordedCall) {
  uint64_t value = hash(history ? history : kHashBasis, {recordedCall.size()});
  for (size_t offset = 0; offset < recordedCall.size(); offset += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, recordedCall.data() + offset, std::min(sizeof word, recordedCall.size() - offset));
    value = hash(value, {word});
    value ^= value >> 32;  // a multiplication propagates differences to higher bits only
  }
  return value;
}

uint64_t extendHistory(const Signature& s) {
  uint64_t value = hash(s.history ? s.history : kHashBasis, {s.op, s.dtype, s.reduce, s.root, s.ragged, s.index});
  if (s.plan != 0) value = hash(value, {s.plan});
  // Shapes of ragged calls may differ between ranks.
  for (uint32_t axis = 0; axis < (s.ragged ? 0 : s.axes); axis++) value = hash(value, {s.shape[axis]});
  return value;
}

uint64_t extendHistory(uint64_t history, const Signature& s) {
  uint64_t value = hash(history ? history : kHashBasis, {s.op, s.dtype, s.ragged, s.bytes});
  for (uint32_t axis = 0; axis < (s.ragged ? 0 : s.axes); axis++) value = hash(value, {s.shape[axis]});
  return value;
}

int signaturesMatch(const Signature* expected, const Signature* received) {
  return expected->history == received->history && isSameOperation(*expected, *received);
}

bool isSameOperation(const Signature& a, const Signature& b) {
  if (a.magic != b.magic || a.op != b.op || a.group != b.group || a.bytes != b.bytes) return false;
  if (a.dtype != b.dtype || a.reduce != b.reduce || a.root != b.root) return false;
  if (a.index != b.index || a.ragged != b.ragged || a.plan != b.plan) return false;
  if (a.ragged) return true;
  return a.axes == b.axes && std::equal(a.shape, a.shape + std::min<uint32_t>(a.axes, MOSAIC_MAX_AXES), b.shape);
}

const char* opName(OpKind op) {
  static const char* const names[] = {"sendRecv", "allGather", "reduceScatter", "allReduce",
                                      "allToAll", "broadcast", "barrier",       "groupCast",
                                      "groupReduce", "split"};
  return static_cast<size_t>(op) < std::size(names) ? names[static_cast<size_t>(op)] : "an unknown operation";
}

std::string operationName(const Signature& s, const std::string& group) {
  return std::string(opName(static_cast<OpKind>(s.op))) + " #" + std::to_string(s.sequence) + " (" + group + ")";
}

std::string describeOperation(const Signature& s, const std::string& group) {
  std::string text = operationName(s, group);
  if (isReduction(s.op)) text.append(" ").append(reduceOpName(s.reduce));
  if (s.op == static_cast<uint8_t>(OpKind::Broadcast)) text += " from rank " + std::to_string(s.root);
  if (s.dtype >= kNoDType) return text;
  text.append(" ").append(dtypeName(static_cast<DType>(s.dtype))).append(" [");
  for (uint32_t axis = 0; axis < std::min<uint32_t>(s.axes, MOSAIC_MAX_AXES); axis++) {
    text.append(axis ? "," : "").append(std::to_string(s.shape[axis]));
  }
  text += "]";
  if (!s.ragged) return text;
  if (!hasPlan(s.op) && !hasCommonCounts(s.op)) return text + " by counts";
  char plan[17];
  std::snprintf(plan, sizeof plan, "%08llx", static_cast<unsigned long long>(s.plan & 0xffffffff));
  return text.append(hasPlan(s.op) ? ", plan " : ", counts ").append(plan);
}

}  // namespace mosaic
