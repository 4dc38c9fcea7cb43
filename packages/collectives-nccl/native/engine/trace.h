// When collectives ran, as the GPU's own clock has it.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "call.h"
#include "cuda/driver.h"
#include "engine/plan.h"

namespace mosaic::nccl {

struct TraceRecord {
  OpKind op;
  std::string label;   // the caller's, else the group's name
  int64_t start, end;  // nanoseconds of CLOCK_MONOTONIC
  uint64_t sent, received;
};

class Trace {
 public:
  bool on() const { return on_; }
  /// Forgets what was recorded, and ties the GPU's clock to the host's: waits for an empty stream.
  void start();
  /// An operation ran between two marks, which are passed.
  void record(const Signature& signature, const Payload& payload, CUevent begin, CUevent end);
  std::vector<TraceRecord> stop();

 private:
  std::atomic<bool> on_{false};
  std::mutex mutex_;
  std::vector<TraceRecord> records_;
  CUevent origin_ = nullptr;
  int64_t originNs_ = 0;
};

}  // namespace mosaic::nccl
