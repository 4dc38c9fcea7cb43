// What this rank has called, for transports whose messages carry no signature: the control plane compares it with what the
// others have called, and ranks that need one that has exited learn how far that one came.
//
// Calls form series in which ranks must agree: the collectives of a group, and the messages from one of its ranks to another.
// The history of a series hashes all calls up to one of them, so that two ranks compare a number at an index.
#pragma once

#include <deque>
#include <map>
#include <optional>

#include "collectives/operation.h"
#include "control/control_plane.h"

namespace mosaic {

/// A call that is to be compared, as `ControlPlane::reportCall` takes it.
struct CallReport {
  uint64_t series, index, history;
};

class CallLog {
 public:
  /// Appends an operation that is being posted, and fills in `op.calls`. `history` is its group's, this call included.
  /// Returns what is to be compared now: at every barrier, and every so many calls.
  std::vector<CallReport> append(Operation& op, uint64_t history);
  /// All kept calls that were not compared yet: what to compare where an operation makes no progress.
  std::vector<CallReport> takePending();
  /// The last calls of a series, oldest first.
  std::vector<CallRecord> calls(uint64_t series) const;
  /// The group whose ranks form the series; the series itself if this rank takes no part in it.
  uint64_t groupOf(uint64_t series) const;
  /// `ring(sp): `: what precedes a message about a call of the series that the message describes.
  std::string prefixOf(uint64_t series, const std::string& message) const;
  /// How far this rank came in each series, for `CallCounts`.
  std::string counts() const;

 private:
  struct Call {
    CallRecord record;
    std::string prefix;
  };
  struct Series {
    uint64_t group = 0, index = 0, history = 0, reported = 0;
    std::deque<Call> calls;
  };
  Series& appendTo(uint64_t series, const Operation& op, const Signature& signature, uint64_t history);

  std::map<uint64_t, Series> series_;
};

/// How far another rank came, as it published it when it exited.
class CallCounts {
 public:
  /// Without a text nothing is known, and every call passes for called.
  explicit CallCounts(const std::string& text = "");
  bool has(uint64_t series, uint64_t index) const;

 private:
  std::map<uint64_t, uint64_t> counts_;
  bool isComplete_ = false;
};

}  // namespace mosaic
