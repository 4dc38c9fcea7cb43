// What this rank has called, for transports whose messages carry no signature: the control plane compares it with what
// the others have called, and ranks that need one that has exited learn how far that one came.
//
// Calls form series in which ranks must agree: the collectives of a group, and the messages from one of its ranks to
// another. The history of a series hashes all calls up to one of them, so that two ranks compare a number at an index.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>

#include "collectives/operation.h"
#include "control/control_plane.h"

namespace mosaic {

/// A call that is to be compared, as `ControlPlane::reportCall` takes it.
struct CallReport {
  uint64_t series, index, history;
  std::vector<uint32_t> ranks;
};

class CallLog {
 public:
  /// Appends an operation that is being posted, and fills in `op.calls`; its group's history includes it. Returns what
  /// is to be compared now: at every barrier, and every so many calls.
  std::vector<CallReport> append(Operation& op);
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
  /// What a message contains about a call; several series may share it.
  struct Description {
    Signature signature;
    std::string group, prefix;
    std::string text() const { return descriptionOf(signature, group); }
  };
  struct Call {
    uint64_t index, history;
    std::shared_ptr<const Description> description;
  };
  struct Series {
    uint64_t group = 0, index = 0, history = 0, reported = 0;
    std::vector<uint32_t> ranks;  // sender and receiver of messages; empty: those of the group
    /// Messages of a collective: who joined it is known by the group's own series.
    bool isPartOfCollective = false;
    std::deque<Call> calls;

    CallReport report(uint64_t id, const Call& call) const { return {id, call.index, call.history, ranks}; }
  };
  Series& append(uint64_t id, uint64_t group, uint64_t history, std::shared_ptr<const Description> description);
  void appendMessages(Operation& op, const std::shared_ptr<const Description>& ofOperation,
                      std::vector<CallReport>& reports);

  std::unordered_map<uint64_t, Series> series_;
};

/// How far another rank came, as it published it when it exited.
class CallCounts {
 public:
  /// Without a text nothing is known, and every call passes for called.
  explicit CallCounts(const std::string& text = "");
  bool has(uint64_t series, uint64_t index) const;

 private:
  std::unordered_map<uint64_t, uint64_t> counts_;
  bool isComplete_ = false;
};

}  // namespace mosaic
