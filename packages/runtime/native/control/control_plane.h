// What ranks exchange beside the payload of collectives: rendezvous, failures, positions, group splits, and a check
// that they call the same. One interface, two implementations: ranks of one process share memory (in_process.h); ranks
// of many processes use the protocol of docs/control-plane.md with the agent of their host (agent_client.h).
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

/// A rank of the world, as the rendezvous made it known.
struct Member {
  uint32_t host = 0;  // number of its host
  int32_t pid = 0;
};

/// Where a rank is in its sequence of operations.
struct Position {
  enum class Activity : uint8_t {
    Idle,       // nothing is posted: `last` is its last operation
    Computing,  // the next operation waits for compute
    Running,    // it is in `operation`
    Exited,     // it closed in order: `last` is its last operation
    Failed,     // it failed, or its process or host is gone
    Unknown     // no reply within the timeout
  };
  uint32_t rank = 0;
  Activity activity = Activity::Unknown;
  /// Of the operation it is in, or that waits for compute. `index` is 0 for sendRecv.
  uint64_t group = 0, sequence = 0, index = 0;
  std::string operation;    // `allGather #42 (sp)`
  std::string description;  // with dtype and shape
  std::string last;         // the last operation that completed; empty: none
};

/// What a monitor shows of a rank beside its position. Counts are those since the rank connected, times in nanoseconds.
struct Metrics {
  uint64_t time = 0;                        // CLOCK_MONOTONIC at the sample
  uint64_t steps = 0, step = 0, sinceStep = 0;  // marked; the last one; since the last mark
  uint64_t waitedNs = 0;                        // the device has waited for collectives: RankCounters
  uint64_t bytesSent = 0, bytesReceived = 0;
  uint64_t reserved = 0, peak = 0;          // device memory at the last mark
  uint64_t resident = 0;                    // of the process
};

/// A collective of a group that a rank has called, and the hash of all up to and with it.
struct CallRecord {
  uint64_t index = 0, history = 0;
  std::string description;
};

/// `rank 3`
std::string rankName(uint32_t rank);

/// `rank 0 is at <a>, rank 1 at <b>; all ranks of a group must call …`: the lower rank first.
std::string mismatchText(uint32_t a, std::string callA, uint32_t b, std::string callB);
/// The same where the calls that differ are in no log any more.
std::string unloggedMismatchText(uint32_t a, uint32_t b);

/// The same of the first calls in which the logs of two ranks differ.
std::string mismatchMessage(uint32_t a, const std::vector<CallRecord>& callsA, uint32_t b,
                            const std::vector<CallRecord>& callsB);

/// What a control plane delivers to one rank. Called on any thread; must neither block nor call the control plane
/// back.
class ControlListener {
 public:
  virtual ~ControlListener() = default;
  /// A rank's process or host is gone without notice. `process`: "rank 2 (pid 71)", with its host where there are
  /// several.
  virtual void onPeerLost(uint32_t rank, const std::string& process) = 0;
  /// A rank failed; `cause` is what it reported for its peers.
  virtual void onPeerFailed(uint32_t rank, const MosaicFailure& cause) = 0;
  /// A rank closed in order.
  virtual void onPeerExited(uint32_t rank) = 0;
  /// Ranks of a group called different collectives; the message names both.
  virtual void onMismatch(uint64_t group, const std::string& message) = 0;
  /// The colors of all ranks of a group, by rank in the group, for its split with this index.
  virtual void onColors(uint64_t group, uint64_t index, std::vector<int64_t> colors) = 0;
  /// Answers a request for positions; ranks that gave none within 0.8 s, the time of the root, are missing.
  virtual void onPositions(uint64_t request, std::vector<Position> positions) = 0;
  /// The control plane itself is gone: nothing is delivered any more.
  virtual void onControlLost(const std::string& reason) = 0;

  // What the control plane queries from this rank.
  virtual Position position() = 0;
  /// As `position`, for a monitor, which samples often: it is no reason to compare calls.
  virtual std::pair<Position, Metrics> sample() { return {position(), {}}; }
  /// The last calls of a group, oldest first.
  virtual std::vector<CallRecord> calls(uint64_t group) = 0;
};

class ControlPlane {
 public:
  /// Leaves, as if its process had ended, unless `leave` was called.
  virtual ~ControlPlane() = default;

  /// Waits for all ranks of the world; blocks. Throws Failure: TIMEOUT that names the missing ranks, CLOSED once
  /// `interrupt` was called, MISMATCH for another version, size or a rank that is there twice.
  virtual void join() = 0;
  /// By rank; after `join`.
  virtual const std::vector<Member>& members() const = 0;
  /// Names of the hosts, by their numbers; empty where all ranks are in this process.
  virtual const std::vector<std::string>& hosts() const = 0;
  /// `rank 2 (pid 71 on n1; reason)`: the host where there are several, the reason where there is one.
  std::string describeProcess(uint32_t rank, const std::string& reason = "") const;
  /// Whether one host thread drives all ranks: then a call of one rank must not block until another rank's.
  virtual bool isSingleThreaded() const = 0;
  /// Any thread, for good: `join`, `get` and `find` fail from now on, those under way at once.
  virtual void interrupt() = 0;

  /// Publishes a value of at most 64 KiB under a key of this world. The first value of a key stays. Throws Failure.
  virtual void put(const std::string& key, const std::string& value) = 0;
  /// Waits for a value that a rank puts while the ranks connect; blocks. Throws Failure: at once when a rank is lost or
  /// has failed.
  virtual std::string get(const std::string& key) = 0;
  /// The value of a key, if it arrives within that time, whatever happens to other ranks; blocks.
  virtual std::optional<std::string> find(const std::string& key, int64_t timeoutNs) = 0;

  /// From now on the listener is called, also for what happened before. It stays valid until `detach` has returned.
  virtual void attach(ControlListener* listener) = 0;
  virtual void detach() = 0;

  // Everything below returns at once.

  /// This rank failed. `cause` goes to all others; only the first failure of a world does.
  virtual void reportFailure(const MosaicFailure& cause) = 0;
  /// This rank has called the collective `index` of a group; `history` covers all up to and with it. All ranks of the
  /// group report the same indices, which are compared. Where `group` is no group but names the messages from one rank
  /// to another, `ranks` are those two.
  virtual void reportCall(uint64_t group, uint64_t index, uint64_t history,
                          const std::vector<uint32_t>& ranks = {}) = 0;
  /// This rank's color in the split of a group; `onColors` follows once all ranks have given theirs.
  virtual void split(uint64_t group, uint64_t index, const std::vector<uint32_t>& ranks, int64_t color) = 0;
  /// Requests the positions of some ranks.
  virtual void requestPositions(uint64_t request, const std::vector<uint32_t>& ranks) = 0;
  /// This rank closes in order; `last` is its last operation. Only `interrupt`, `detach` and the destructor may follow.
  virtual void leave(const std::string& lastOperation) = 0;

 protected:
  /// Throws Failure for what `put` does not take.
  static void throwIfValueTooLong(const std::string& key, const std::string& value);
};

}  // namespace mosaic
