// The exchange between ranks other than the payload of collectives: rendezvous, failures, positions, group splits, and
// a check that all ranks make the same calls. One interface has two implementations: ranks of one process share memory
// (in_process.h); ranks of many processes use the protocol of docs/control-plane.md with the agent of their host
// (agent_client.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mosaic/failure.h"

namespace mosaic {

constexpr uint32_t kMaxTextBytes = 2048;
constexpr uint32_t kMaxValueBytes = 65536;

/// A rank of the world, as received in the rendezvous.
struct Member {
  uint32_t host = 0;  // host number
  int32_t pid = 0;
};

/// A rank's position in its sequence of operations.
struct Position {
  enum class Activity : uint8_t {
    Idle,       // no operation is posted; `last` is the rank's last operation
    Computing,  // the next operation waits for compute
    Running,    // the rank executes `operation`
    Exited,     // the rank closed in order; `last` is its last operation
    Failed,     // the rank failed, or its process or host has ended
    Unknown     // no reply within the timeout
  };
  uint32_t rank = 0;
  Activity activity = Activity::Unknown;
  /// These describe the operation that the rank executes or that waits for compute. `index` is 0 for sendRecv.
  uint64_t group = 0, sequence = 0, index = 0;
  std::string operation;    // for example `allGather #42 (sp)`
  std::string description;  // with dtype and shape
  std::string last;         // the last operation that completed; empty: none
};

/// Metrics of a rank that a monitor shows in addition to its position. Counts are since the rank connected; times are
/// in nanoseconds.
struct Metrics {
  uint64_t time = 0;                        // CLOCK_MONOTONIC at the sample
  uint64_t steps = 0, step = 0, sinceStep = 0;  // marked steps; time of the last one; time since the last mark
  uint64_t waitedNs = 0;                        // time for which the device waited for collectives: RankCounters
  uint64_t bytesSent = 0, bytesReceived = 0;
  uint64_t reserved = 0, peak = 0;          // device memory at the last mark
  uint64_t resident = 0;                    // resident memory of the process
};

/// A collective of a group that a rank has called, and the hash of all its calls up to and including this one.
struct CallRecord {
  uint64_t index = 0, history = 0;
  std::string description;
};

/// Returns a text such as `rank 3`.
std::string rankName(uint32_t rank);

/// Returns `rank 0 is at <a>, rank 1 at <b>; all ranks of a group must call …`, with the lower rank first.
std::string mismatchText(uint32_t a, std::string callA, uint32_t b, std::string callB);
/// Returns the same message for calls that are no longer in the logs.
std::string unloggedMismatchText(uint32_t a, uint32_t b);

/// Returns the same message for the first calls at which the logs of two ranks differ.
std::string mismatchMessage(uint32_t a, const std::vector<CallRecord>& callsA, uint32_t b,
                            const std::vector<CallRecord>& callsB);

/// Receives the events that a control plane delivers to one rank. Called on any thread. Must neither block nor call the
/// control plane.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  /// A rank's process or host has ended without notice. `process` is for example "rank 2 (pid 71)", with its host if
  /// there are several.
  virtual void onPeerLost(uint32_t rank, const std::string& process) = 0;
  /// A rank failed; `cause` is what it reported for its peers.
  virtual void onPeerFailed(uint32_t rank, const MosaicFailure& cause) = 0;
  /// A rank closed in order.
  virtual void onPeerExited(uint32_t rank) = 0;
  /// Ranks of a group called different collectives; the message names both.
  virtual void onMismatch(uint64_t group, const std::string& message) = 0;
  /// Delivers the colors of all ranks of a group, by rank in the group, for its split with this index.
  virtual void onColors(uint64_t group, uint64_t index, std::vector<int64_t> colors) = 0;
  /// Delivers the reply to a request for positions. Ranks that did not reply within 0.8 s, the root's timeout, are
  /// missing.
  virtual void onPositions(uint64_t request, std::vector<Position> positions) = 0;
  /// The control plane itself is lost: no more events will be delivered.
  virtual void onControlLost(const std::string& reason) = 0;

  // The functions below answer queries of the control plane to this rank.
  virtual Position position() = 0;
  /// As `position`, but for a monitor, which samples often. It does not trigger a comparison of calls.
  virtual std::pair<Position, Metrics> sample() { return {position(), {}}; }
  /// Returns the last calls of a group, oldest first.
  virtual std::vector<CallRecord> calls(uint64_t group) = 0;
};

class ControlPlane {
 public:
  /// Unless `leave` was called, leaves as if this rank's process had ended.
  virtual ~ControlPlane() = default;

  /// Blocks until all ranks of the world have joined. Throws Failure: TIMEOUT, which names the missing ranks; CLOSED
  /// once `interrupt` was called; MISMATCH for a different version or size, or a rank that joins twice.
  virtual void join() = 0;
  /// The ranks of the world, by rank. Valid after `join`.
  virtual const std::vector<Member>& members() const = 0;
  /// Names of the hosts, by host number. Empty if all ranks are in this process.
  virtual const std::vector<std::string>& hosts() const = 0;
  /// Returns a text such as `rank 2 (pid 71 on n1; reason)`, with the host if there are several, and the reason if
  /// there is one.
  std::string describeProcess(uint32_t rank, const std::string& reason = "") const;
  /// Whether one host thread drives all ranks. Then a call of one rank must not wait for a call of another rank.
  virtual bool isSingleThreaded() const = 0;
  /// Makes `join`, `get` and `find` fail permanently, including calls in progress. May be called from any thread.
  virtual void interrupt() = 0;

  /// Publishes a value of at most 64 KiB under a key of this world. The first value of a key is kept. Throws Failure.
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Blocks until a rank has put the value, while the ranks connect. Throws Failure, immediately when a rank is lost or
  /// has failed.
  virtual std::string get(const std::string& key) = 0;
  /// Blocks until the value of a key arrives or the timeout has passed, even if other ranks fail meanwhile.
  virtual std::optional<std::string> find(const std::string& key, int64_t timeoutNs) = 0;

  /// Sets the listener, which is also called for earlier events. It must stay valid until `detach` has returned.
  virtual void attach(ControlListener* listener) = 0;
  virtual void detach() = 0;

  // All functions below return immediately.

  /// Reports that this rank failed. `cause` is sent to all other ranks, but only for the first failure of a world.
  virtual void reportFailure(const MosaicFailure& cause) = 0;
  /// Reports that this rank has called the collective `index` of a group. `history` is the hash of all calls up to and
  /// including it. All ranks of the group report the same indices, whose histories are compared. If `group` is instead
  /// the id of the messages from one rank to another, `ranks` are those two.
  virtual void reportCall(uint64_t group, uint64_t index, uint64_t history,
                          const std::vector<uint32_t>& ranks = {}) = 0;
  /// Sends this rank's color in the split of a group. `onColors` is called once all ranks have sent theirs.
  virtual void split(uint64_t group, uint64_t index, const std::vector<uint32_t>& ranks, int64_t color) = 0;
  /// Requests the positions of some ranks.
  virtual void requestPositions(uint64_t request, const std::vector<uint32_t>& ranks) = 0;
  /// This rank closes in order; `lastOperation` is the last one that it completed. Only `interrupt`, `detach` and the
  /// destructor may follow.
  virtual void leave(const std::string& lastOperation) = 0;

 protected:
  /// Throws Failure if the key or value is too long for `put`.
  static void throwIfValueTooLong(const std::string& key, const std::string& value);
};

}  // namespace mosaic
