// A log of this rank's calls, from which ranks find the call at which they diverged. A signature in a message includes
// the history of the group. For messages without signature, the control plane compares histories and names the calls.
//
// Calls form sequences that must match on all ranks: the collectives and recorded calls of a group, and, if messages
// have no signature, the messages from one of its ranks to another. The history at an index of a sequence is a hash of
// all calls up to it, so that two ranks need to compare only one number.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "collectives/operation.h"
#include "control/control_plane.h"

namespace mosaic {

/// A call to be compared; the arguments of `ControlPlane::reportCall`.
struct CallReport {
  uint64_t sequence, index, history;
  std::vector<uint32_t> ranks;
};

/// The last calls of each group that a rank publishes when it exits: by group, oldest first.
using PublishedCalls = std::map<uint64_t, std::vector<CallRecord>>;

class CallLog {
 public:
  /// `hasSignatures`: messages have signatures, so that neither messages nor the barriers of a group need to be
  /// compared by the control plane.
  explicit CallLog(bool hasSignatures) : hasSignatures_(hasSignatures) {}

  /// Appends an operation that is being posted, and fills in `op.calls`. The group's history must include the
  /// operation. Returns the calls to compare now: at a barrier those of all its ranks' sequences, and without
  /// signatures the last call of a sequence at regular intervals.
  std::vector<CallReport> append(Operation& op);
  /// Appends a recorded call, likewise.
  std::vector<CallReport> append(const Group& group, std::string recordedCall);
  /// Returns each logged call that this function has not returned before, those of groups first. They are compared when
  /// an operation makes no progress, because ranks may be at different calls.
  std::vector<CallReport> collectPendingReports();
  /// Returns the last calls of a sequence, oldest first.
  std::vector<CallRecord> calls(uint64_t sequence) const;
  /// Returns the group of a sequence, or the sequence's own id if this rank has no calls in it.
  uint64_t groupOf(uint64_t sequence) const;
  /// Returns the prefix, such as `ring(sp): `, for a message about a call of the sequence that the message describes.
  std::string messagePrefix(uint64_t sequence, const std::string& message) const;
  /// Encodes the number of calls that this rank has made in each sequence, for `CallCounts`.
  std::string serializeCounts() const;
  /// Encodes the last calls of this rank's groups in at most `maxBytes`, for ranks that compare them after this one has
  /// exited.
  std::string serializeCalls(size_t maxBytes) const;
  /// Decodes the calls that another rank published. A truncated entry is omitted.
  static PublishedCalls parseCalls(const std::string& publishedText);

 private:
  /// The description of a call in messages. Several sequences may share it.
  struct Description {
    Signature signature;
    std::string group, prefix;
    uint64_t number = 0;  // number of a recorded call, which has no signature; 0 for an operation
    std::string recordedCall;
    std::string text() const;
  };
  struct LoggedCall {
    uint64_t index, history;
    std::shared_ptr<const Description> description;
  };
  struct CallSequence {
    uint64_t group = 0, index = 0, history = 0;
    uint64_t reportedIndex = 0, allReportedIndex = 0;  // the last call reported; the last up to which all were reported
    std::vector<uint64_t> ancestors;  // ancestors of the group
    std::vector<uint32_t> ranks;      // sender and receiver of messages; empty: the sequence is that of the group
    /// The messages belong to a collective. Then the group's sequence records which ranks have called it.
    bool isPartOfCollective = false;
    std::deque<LoggedCall> calls;

    CallReport report(uint64_t id, const LoggedCall& call) const { return {id, call.index, call.history, ranks}; }
    bool isGroupSequence() const { return ranks.empty(); }
  };
  CallSequence& append(uint64_t id, const Group& group, uint64_t history,
                       std::shared_ptr<const Description> description);
  void appendMessages(Operation& op, const std::shared_ptr<const Description>& operationDescription,
                      std::vector<CallReport>& reports);
  static void reportPendingCalls(uint64_t id, CallSequence& sequence, std::vector<CallReport>& reports);
  static void reportLastCall(uint64_t id, CallSequence& sequence, std::vector<CallReport>& reports);
  void reportAtBarrier(const Group& barrier, std::vector<CallReport>& reports);

  const bool hasSignatures_;
  std::unordered_map<uint64_t, CallSequence> sequences_;
};

/// The number of calls that another rank had made in each sequence when it exited.
class CallCounts {
 public:
  /// If the text is empty, the counts are unknown, and every call counts as made.
  explicit CallCounts(const std::string& text = "");
  bool contains(uint64_t sequence, uint64_t index) const;

 private:
  std::unordered_map<uint64_t, uint64_t> counts_;
  bool isComplete_ = false;
};

/// The call counts of exited ranks, fetched from the control plane. Used by the communication thread only.
class ExitCounts {
 public:
  static void publish(ControlPlane& control, uint32_t rank, const std::string& counts);
  /// Returns the counts of a rank, which are fetched once. Blocks for at most one second.
  const CallCounts& fetch(uint32_t rank, ControlPlane& control);

 private:
  std::map<uint32_t, CallCounts> counts_;
};

}  // namespace mosaic
