// What of a rank travels in frames.
#pragma once

#include "call.h"
#include "hub/wire.h"

namespace mosaic::nccl {

void write(Writer& to, const Signature& signature);
Signature readSignature(Reader& from);

/// Where a rank is.
struct Position {
  enum class Activity : uint8_t { Idle, Computing, Running };
  Activity activity = Activity::Idle;
  uint64_t group = 0, sequence = 0;
  std::string name;  // of the operation it is at, or did last; empty: none yet
};

void write(Writer& to, const Position& position);
Position readPosition(Reader& from);

}  // namespace mosaic::nccl
