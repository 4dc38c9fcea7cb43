// A collective under way: posted by the host, launched by the communication thread, carried out by the GPU.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "cuda/driver.h"
#include "engine/plan.h"
#include "nccl/communicator.h"

namespace mosaic::nccl {

/// A group of this rank, and its communicator.
struct Member {
  Group group;
  Communicator communicator;
  // Counted when an operation is posted, by the thread that posts.
  uint64_t sequence = 0, index = 0;
  // Counted when an operation is launched.
  std::atomic<uint64_t> bytesSent{0}, bytesReceived{0}, messagesSent{0};
};

using Told = std::function<void(const MosaicFailure*)>;

struct Operation {
  enum class State { Queued, Launching, Launched, Over };

  // Constant once posted.
  uint64_t number = 0;  // of all operations of this rank
  std::shared_ptr<Member> member;
  Signature signature;
  Plan plan;
  CUevent ready = nullptr;  // all compute that the operands depend on; null: they are there
  // A split's.
  int64_t color = 0;
  std::string partName;
  std::shared_ptr<Member> part;
  Told settled;

  // Under the engine's lock.
  State state = State::Queued;
  bool waited = false;  // compute depends on it

  // Of the communication thread.
  CUevent begin = nullptr, done = nullptr;
  uint64_t staging = 0;
  int64_t startedAt = 0;  // 0: compute holds it up, or what is before it

  std::string name() const { return nameOf(signature); }
  std::string prefix() const { return signature.label.empty() ? "" : signature.label + ": "; }
};

}  // namespace mosaic::nccl
