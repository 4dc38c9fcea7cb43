#include "call.h"

#include <algorithm>
#include <numeric>

namespace mosaic::nccl {

uint64_t bytesOf(uint8_t dtype) {
  if (dtype > static_cast<uint8_t>(DType::Float16)) return 1;
  return static_cast<uint64_t>(dtypeBytes(static_cast<DType>(dtype)));
}

uint64_t sizeOf(const Counts& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

bool Group::has(uint32_t worldRank) const { return std::find(ranks.begin(), ranks.end(), worldRank) != ranks.end(); }

Signature signatureOf(const Group& group, const Call& call) {
  Signature signature;
  signature.op = call.op;
  signature.dtype = call.dtype;
  signature.reduce = static_cast<uint8_t>(call.reduce);
  signature.ragged = call.ragged;
  signature.root = call.root;
  signature.group = group.id;
  signature.shape = call.shape;
  signature.send = call.send;
  signature.receive = call.receive;
  signature.transfers = call.transfers;
  signature.groupName = group.name;
  return signature;
}

const char* nameOf(OpKind op) {
  static const char* const names[] = {"sendRecv", "allGather", "reduceScatter", "allReduce",
                                      "allToAll", "broadcast", "barrier",       "split"};
  return static_cast<size_t>(op) < std::size(names) ? names[static_cast<size_t>(op)] : "an unknown operation";
}

std::string nameOf(const Signature& s) {
  return std::string(nameOf(s.op)) + " #" + std::to_string(s.sequence) + " (" + s.groupName + ")";
}

namespace {

std::string tensorText(uint8_t dtype, const Counts& shape) {
  if (dtype > static_cast<uint8_t>(DType::Float16)) return "";
  std::string text = std::string(" ") + dtypeName(static_cast<DType>(dtype)) + " [";
  for (size_t axis = 0; axis < shape.size(); axis++) text += (axis ? "," : "") + std::to_string(shape[axis]);
  return text + "]";
}

}  // namespace

std::string descriptionOf(const Signature& s) {
  static const char* const reductions[] = {"sum", "mean", "max"};
  std::string text = nameOf(s);
  if (s.op == OpKind::ReduceScatter || s.op == OpKind::AllReduce) text += std::string(" ") + reductions[s.reduce % 3];
  if (s.op == OpKind::Broadcast) text += " from rank " + std::to_string(s.root);
  return text + tensorText(s.dtype, s.shape);
}

std::string descriptionOf(const Signature& s, const Transfer& transfer) {
  return nameOf(s) + tensorText(transfer.dtype, transfer.shape);
}

}  // namespace mosaic::nccl
