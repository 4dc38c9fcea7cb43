#include "signature.h"

#include <algorithm>

namespace mosaic {

const char* opName(OpKind op) {
  static const char* const names[] = {"sendRecv", "allGather", "reduceScatter", "allReduce",
                                      "allToAll", "broadcast", "barrier",       "split"};
  return static_cast<size_t>(op) < std::size(names) ? names[static_cast<size_t>(op)] : "an unknown operation";
}

std::string nameOf(OpKind op, uint64_t sequence, const std::string& group) {
  return std::string(opName(op)) + " #" + std::to_string(sequence) + " (" + group + ")";
}

namespace {

const char* dtypeName(DType dtype) {
  static const char* const names[] = {"float32", "bfloat16", "float16", ""};
  return names[std::min<size_t>(static_cast<size_t>(dtype), 3)];
}

const char* reduceName(ReduceOp op) {
  static const char* const names[] = {"sum", "mean", "max"};
  return names[std::min<size_t>(static_cast<size_t>(op), 2)];
}

bool reduces(OpKind op) { return op == OpKind::ReduceScatter || op == OpKind::AllReduce; }

}  // namespace

std::string nameOf(const Signature& s, const std::string& group) {
  std::string text = nameOf(s.op, s.sequence, group);
  if (reduces(s.op)) text.append(" ").append(reduceName(s.reduce));
  if (s.op == OpKind::Broadcast) text += " from rank " + std::to_string(s.root);
  if (s.dtype == DType::None) return text;
  text.append(" ").append(dtypeName(s.dtype)).append(" [");
  for (uint32_t axis = 0; axis < std::min<uint32_t>(s.axes, kMaxAxes); axis++) {
    text.append(axis ? "," : "").append(std::to_string(s.shape[axis]));
  }
  return text + "]";
}

bool matches(const Signature& a, const Signature& b) {
  if (a.magic != b.magic || a.op != b.op || a.group != b.group || a.bytes != b.bytes) return false;
  if (a.dtype != b.dtype || a.reduce != b.reduce || a.root != b.root || a.index != b.index) return false;
  if (a.flatShape || b.flatShape) return a.flatShape == b.flatShape;
  return a.axes == b.axes && std::equal(a.shape, a.shape + std::min<uint32_t>(a.axes, kMaxAxes), b.shape);
}

}  // namespace mosaic
