// What an operation is, as far as other ranks can tell: every message starts with this, and positions show it.
#pragma once

#include <cstdint>
#include <string>

namespace mosaic {

enum class OpKind : uint8_t { SendRecv, AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Barrier, Split };
enum class DType : uint8_t { Float32, BFloat16, Float16, None };
enum class ReduceOp : uint8_t { Sum, Mean, Max };

inline uint64_t dtypeBytes(DType dtype) { return dtype == DType::Float32 ? 4 : dtype == DType::None ? 1 : 2; }

constexpr uint32_t kSignatureMagic = 0x4d6f7361;  // "Mosa"
constexpr uint32_t kMaxAxes = 8;

/// The fixed header of a message. The receiver compares it with its own before it moves any payload.
struct Signature {
  uint32_t magic = kSignatureMagic;
  OpKind op = OpKind::Barrier;
  DType dtype = DType::None;
  ReduceOp reduce = ReduceOp::Sum;
  uint8_t axes = 0;
  uint64_t group = 0;
  uint64_t sequence = 0;  // operations of this group that the sender has called, this one included
  uint64_t index = 0;     // the same without sendRecv, which not every rank of a group must join
  uint64_t bytes = 0;     // payload of this message
  uint32_t root = 0;
  uint32_t flatShape = 0;  // shapes may differ as long as the bytes agree
  uint64_t shape[kMaxAxes] = {};
  uint64_t unused[2] = {};  // whole cache lines
};
static_assert(sizeof(Signature) == 128);

const char* opName(OpKind op);

/// `allGather #42 (sp)`
std::string nameOf(OpKind op, uint64_t sequence, const std::string& group);
/// `sendRecv #41 (sp) float32 [2,8,100,64]`
std::string nameOf(const Signature& signature, const std::string& group);
/// Whether a message is the one that its receiver expects.
bool matches(const Signature& expected, const Signature& received);

}  // namespace mosaic
