// What this rank has called, so that ranks can find out where they diverged. Messages that carry a signature carry the
// history of their group, too; the control plane compares the histories of those that do not, and names the calls.
//
// Calls form sequences that must match on all ranks: the collectives and recorded calls of a group, and, where messages
// carry no signature, the messages from one of its ranks to another. The history of a sequence hashes all calls up to
// one of them, so that two ranks compare a number at an index.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <unordered_map>

#include "collectives/operation.h"
#include "control/control_plane.h"

namespace mosaic {

/// A call that is to be compared, as `ControlPlane::reportCall` takes it.
struct CallReport {
  uint64_t sequence, index, history;
  std::vector<uint32_t> ranks;
};

/// The last calls of groups, as a rank publishes them when it exits: by group, oldest first.
using PublishedCalls = std::map<uint64_t, std::vector<CallRecord>>;

class CallLog {
 public:
  /// `hasSignatures`: messages carry them, so that neither messages nor the group's own barriers need be compared.
  explicit CallLog(bool hasSignatures) : hasSignatures_(hasSignatures) {}

  /// Appends an operation that is being posted, and fills in `op.calls`; its group's history includes it. Returns what
  /// is to be compared now: at a barrier all that its ranks have called, and without signatures every so many calls.
  std::vector<CallReport> append(Operation& op);
  /// The same for a recorded call.
  std::vector<CallReport> append(const Group& group, std::string recordedCall);
  /// Each kept call that was not reported here before, those of groups first: what to compare where an operation makes
  /// no progress, and ranks may be at different calls.
  std::vector<CallReport> collectPendingReports();
  /// The last calls of a sequence, oldest first.
  std::vector<CallRecord> calls(uint64_t sequence) const;
  /// The group whose ranks form the sequence; the sequence itself if this rank is not part of it.
  uint64_t groupOf(uint64_t sequence) const;
  /// `ring(sp): `: what precedes a message about a call of the sequence that the message describes.
  std::string messagePrefix(uint64_t sequence, const std::string& message) const;
  /// How many calls this rank has made in each sequence, for `CallCounts`.
  std::string serializeCounts() const;
  /// The last calls of its groups, in at most so many bytes, for ranks that compare them after this one has exited.
  std::string serializeCalls(size_t maxBytes) const;
  /// Reads what another rank published; a truncated entry is left out.
  static PublishedCalls parseCalls(const std::string& publishedText);

 private:
  /// What a message contains about a call; several sequences may share it.
  struct Description {
    Signature signature;
    std::string group, prefix;
    uint64_t number = 0;  // of a recorded call, which has no signature
    std::string recordedCall;
    std::string text() const;
  };
  struct LoggedCall {
    uint64_t index, history;
    std::shared_ptr<const Description> description;
  };
  struct CallSequence {
    uint64_t group = 0, index = 0, history = 0;
    uint64_t reportedIndex = 0, allReportedIndex = 0;  // up to where the last call was reported, and each of them
    std::vector<uint64_t> ancestors;  // of the group
    std::vector<uint32_t> ranks;      // sender and receiver of messages; empty: those of the group
    /// Messages of a collective: the sequence of the group records who joined it.
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

/// How many calls another rank has made in each sequence, as it published when it exited.
class CallCounts {
 public:
  /// Without a text the counts are unknown, and every call counts as made.
  explicit CallCounts(const std::string& text = "");
  bool contains(uint64_t sequence, uint64_t index) const;

 private:
  std::unordered_map<uint64_t, uint64_t> counts_;
  bool isComplete_ = false;
};

/// The counts of ranks that have exited, fetched from the control plane. Used by the communication thread only.
class ExitCounts {
 public:
  static void publish(ControlPlane& control, uint32_t rank, const std::string& counts);
  /// Fetched once; blocks for a second at most.
  const CallCounts& fetch(uint32_t rank, ControlPlane& control);

 private:
  std::map<uint32_t, CallCounts> counts_;
};

}  // namespace mosaic
