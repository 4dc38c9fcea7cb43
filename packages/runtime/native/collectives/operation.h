// A collective in progress: posted by the host, executed by the engine for the transport's ordering.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "collectives/message_schedule.h"
#include "mosaic/failure.h"

namespace mosaic {

/// Called once when an operation has completed or failed. The failure is null if it succeeded.
using CompletionCallback = std::function<void(const MosaicFailure*)>;

/// Additional state of an operation that is a split.
struct SplitRequest {
  int64_t color = 0;
  std::string name;
  std::shared_ptr<Group> splitGroup;  // the group of this rank's color, once the split has completed
  bool hasColors = false;       // all ranks have called the split; under the engine's lock
};

/// An operation's index in a sequence of calls that must match on all ranks: see call_log.h.
struct SequencedCall {
  uint64_t sequence, index;
  std::optional<uint32_t> peer;  // world rank; if absent, all ranks of the group
};

struct TraceRecord {
  OpKind op;
  std::string label;   // passed by the caller, else the group's name
  int64_t start, end;  // nanoseconds of CLOCK_MONOTONIC
  uint64_t bytesSent, bytesReceived;
};

struct Operation {
  virtual ~Operation() = default;

  // Constant once posted.
  uint64_t number = 0;  // among all operations of this rank
  uint32_t groupNumber = 0;
  std::shared_ptr<Group> group;
  Signature signature{};
  MessageSchedule schedule;
  std::string label;  // passed by the caller, for example `ring(sp)`
  std::unique_ptr<SplitRequest> split;
  CompletionCallback onCompleted;
  std::vector<SequencedCall> calls;  // for comparison with the calls of other ranks

  /// Time at which all earlier compute and collectives were done, from which the timeout runs. 0: not yet. Written by
  /// the communication thread under the engine's lock.
  int64_t startedAt = 0;

  OpKind op() const { return static_cast<OpKind>(signature.op); }
  /// Returns a text such as `allGather #42 (sp)`.
  std::string name() const { return operationName(signature, group->name); }
  std::string prefix() const { return label.empty() ? "" : label + ": "; }
  /// Returns the record of this operation, which began and ended at these times.
  TraceRecord traceRecord(int64_t start, int64_t end) const {
    const Payload& payload = schedule.payload;
    return {op(), label.empty() ? group->name : label, start, end, payload.bytesSent, payload.bytesReceived};
  }
};

}  // namespace mosaic
