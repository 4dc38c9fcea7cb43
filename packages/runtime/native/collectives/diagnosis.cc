// Determines why an operation cannot complete, and writes the error message, in the same way for every transport. Ranks
// in messages are world ranks; the name of the group follows the operation in parentheses.
#include <algorithm>

#include "collectives/engine.h"
#include "mosaic/clock.h"

namespace mosaic {

namespace {

constexpr size_t kMaxListedRanks = 16;
/// A rank requests the positions of its peers once an operation has made no progress for the first delay. Then the
/// interval between requests doubles, up to the maximum.
constexpr int64_t kFirstPositionRequestDelayNs = 100'000'000, kMaxPositionRequestIntervalNs = 5'000'000'000;
constexpr int64_t kPositionsTimeoutNs = 1'200'000'000;
/// Time for which an operation may make no progress after a rank outside of its group has failed.
constexpr int64_t kIndirectFailureDelayNs = 1'000'000'000;
/// Timeouts for the control plane to find the first mismatched call of two ranks, and for a value to arrive.
constexpr int64_t kDivergenceTimeoutNs = 3'000'000'000, kValueTimeoutNs = 1'000'000'000;

/// The root keeps at most 65 536 values and 256 MiB per world; exiting ranks may use half of each.
constexpr size_t kMaxExitKeys = 32'768, kMaxExitBytes = 128 << 20;

/// Keys of values that an exiting rank publishes: its calls, and which rank of a pair of neighbors in a group exits
/// first.
std::string callsKey(uint32_t rank) { return "calls/" + std::to_string(rank); }
std::string pairKey(uint32_t a, uint32_t b) {
  return "exits/" + std::to_string(std::min(a, b)) + "-" + std::to_string(std::max(a, b));
}

/// Returns the text after `exited`, for a rank that may not have called a collective yet.
std::string lastOperationText(const std::string& last) {
  return last.empty() ? "before its first operation" : "after " + last;
}

/// Returns `allGather (sp)` for `allGather #42 (sp)`. Numbers may differ because ranks of a group may have called
/// different numbers of sendRecv.
std::string stripOperationNumber(std::string text) {
  const size_t from = text.find(" #");
  return from == std::string::npos ? text : text.erase(from, text.find(' ', from + 1) - from);
}

/// Whether two texts about operations of one group are equal, except for the number of the operation and the name of
/// the group, which each rank chooses. `ownText` is of this rank.
bool isSameExceptNames(const Operation& op, const std::string& ownText, const std::string& peerText) {
  const std::string own = stripOperationNumber(ownText), peer = stripOperationNumber(peerText);
  const std::string start = std::string(opName(op.op())) + " (";
  const std::string end = own.substr(start.size() + op.group->name.size());
  return peer.size() >= start.size() + end.size() && peer.starts_with(start) && peer.ends_with(end);
}

/// Whether a rank is in the same collective of the group, or in a sendRecv with the same number.
bool isAtSameCall(const Operation& op, const Position& position) {
  if (position.group != op.signature.group || position.index != op.signature.index) return false;
  if (op.signature.index == 0 && position.sequence != op.signature.sequence) return false;
  return isSameExceptNames(op, op.name(), position.operation);
}

std::string describePosition(const Operation& op, const Position& position) {
  using Activity = Position::Activity;
  const std::string rank = rankName(position.rank);
  switch (position.activity) {
    case Activity::Idle:
      return rank + " is in no collective, last collective: " + (position.last.empty() ? "none" : position.last);
    case Activity::Computing:
      return rank + " is computing";
    case Activity::Running:
      return rank + (isAtSameCall(op, position) ? " waits in the same call" : " is at " + position.operation);
    case Activity::Exited: return rank + " exited " + lastOperationText(position.last);
    case Activity::Failed:
      return rank + " failed";
    case Activity::Unknown:
      return rank + " does not respond";
  }
  return rank;
}

}  // namespace

std::string Engine::describeLocation(const Operation& op) const {
  return (op.label.empty() ? "" : op.label + ", ") + rankName(options_.rank);
}

Engine::Diagnosis Engine::localFailure(const Operation& op, MosaicFailureCode code, const std::string& text) const {
  const std::string message = describeLocation(op) + ": " + op.name() + ": " + text;
  return {failureRecord(code, message), failureRecord(MOSAIC_FAILURE_PEER_LOST, message)};
}

MosaicFailure Engine::peerLostFailure(const Operation& op, const std::string& eventText) const {
  return failureRecord(MOSAIC_FAILURE_PEER_LOST,
                       op.prefix() + eventText + "; " + rankName(options_.rank) + " needed it in " + op.name());
}

Engine::Diagnosis Engine::peerExitFailure(const Operation& op, uint32_t rank) {
  const auto positions = positionsOf({rank});
  // If the rank failed and then exited, its failure is reported as the cause.
  if (const auto failure = peerFailure(op)) return *failure;
  std::string text = rankName(rank) + " exited";
  if (!positions.empty()) text.append(" ").append(lastOperationText(positions[0].last));
  const MosaicFailure failure = peerLostFailure(op, text);
  return {failure, failure};
}

std::optional<Engine::Diagnosis> Engine::exitFailure(const Operation& op) {
  std::vector<uint32_t> exitedRanks;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, exitTime] : events_.exitedRanks) {
      if (rank != options_.rank && op.group->contains(rank)) exitedRanks.push_back(rank);
    }
  }
  for (const uint32_t rank : exitedRanks) {
    const CallCounts& counts = exitCounts_.fetch(rank, *control_);
    const auto isMissing = [&](const SequencedCall& call) {
      return call.peer.value_or(rank) == rank && !counts.contains(call.sequence, call.index);
    };
    if (std::any_of(op.calls.begin(), op.calls.end(), isMissing)) return peerExitFailure(op, rank);
  }
  return std::nullopt;
}

void Engine::reportIfRequested() {
  if (isReportRequested_.exchange(false)) sendPendingReports();
}

void Engine::sendPendingReports() {
  std::vector<CallReport> reports;
  {
    const std::lock_guard lock(mutex_);
    reports = log_.collectPendingReports();
  }
  sendReports(reports);
}

void Engine::sendReports(const std::vector<CallReport>& reports) {
  for (const auto& [sequence, index, history, ranks] : reports) control_->reportCall(sequence, index, history, ranks);
}

Engine::Diagnosis Engine::mismatchFailure(const Operation& op, const MosaicMessage& message) {
  const Signature &expected = message.signature, &received = message.received;
  // After mismatched calls, the two ranks may also be in different operations.
  const bool isSameGroup = expected.magic == received.magic && expected.group == received.group;
  if (isSameGroup && expected.history != received.history) {
    if (auto diagnosis = findDivergenceBefore(op, message.peer)) return *diagnosis;
  }
  std::string group = "a different group";
  {
    const std::lock_guard lock(mutex_);
    for (const auto& known : groups_) {
      if (known->id == received.group) group = known->name;
    }
  }
  std::string ownCall = describeOperation(expected, op.group->name), peerCall = describeOperation(received, group);
  // Of the peer's counts, only the one of this message is known, as its bytes.
  if (expected.ragged && expected.op == received.op && expected.bytes != received.bytes) {
    ownCall += ", " + std::to_string(expected.bytes) + " bytes from " + rankName(message.peer);
    peerCall += ", " + std::to_string(received.bytes) + " bytes to " + rankName(options_.rank);
  }
  const std::string text = op.prefix() + (isSameOperation(expected, received)
                                              ? unloggedMismatchText(options_.rank, message.peer)
                                              : mismatchText(options_.rank, ownCall, message.peer, peerCall));
  const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, text);
  return {failure, failure};
}

/// For a message whose histories do not match: finds the first mismatched call in the logs of both ranks.
std::optional<Engine::Diagnosis> Engine::findDivergenceBefore(const Operation& op, uint32_t peer) {
  control_->requestPositions(++lastRequestId_, {peer});  // makes the peer report its calls, too
  sendPendingReports();
  const auto hasPeerExited = [&] {
    const std::lock_guard lock(mutex_);
    return events_.exitedRanks.contains(peer);
  };
  std::optional<std::string> text;
  for (const int64_t deadline = monotonicNs() + kDivergenceTimeoutNs;
       !text && !isStopped_ && monotonicNs() < deadline;) {
    if (auto diagnosis = peerFailure(op)) return diagnosis;
    reportIfRequested();
    if (hasPeerExited()) text = findDivergenceFromExited(peer);
    if (!text) sleepFor(kDivergenceTimeoutNs / 300);
  }
  if (!text) return std::nullopt;
  const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, *text);
  return Diagnosis{failure, failure};
}

/// Describes the first mismatched call of this rank and an exited one. A call that only one of them made is no
/// mismatch.
std::optional<std::string> Engine::findDivergenceFromExited(uint32_t peer) {
  const auto publishedText = control_->find(callsKey(peer), kValueTimeoutNs);
  if (!publishedText) return std::nullopt;
  for (const auto& [group, peerCalls] : CallLog::parseCalls(*publishedText)) {
    const auto ownCalls = calls(group);
    for (auto peerCall = peerCalls.rbegin(); peerCall != peerCalls.rend(); ++peerCall) {
      const auto ownCall = std::find_if(ownCalls.begin(), ownCalls.end(),
                                        [&](const CallRecord& call) { return call.index == peerCall->index; });
      if (ownCall == ownCalls.end()) continue;
      if (ownCall->history != peerCall->history) return mismatchMessage(options_.rank, ownCalls, peer, peerCalls);
      break;  // a history includes all calls before it
    }
  }
  return std::nullopt;
}

/// Ranks may close in any order, and none waits for another. Therefore neighbors in a group compare their calls: the
/// one that closes later reads those that the other published. If two ranks made different numbers of calls, perhaps
/// because one has failed, they must agree on the calls that both made.
std::optional<std::string> Engine::compareCallsAtClose() {
  std::set<uint32_t> neighbors;
  std::string ownCalls;
  {
    const std::lock_guard lock(mutex_);
    if (!events_.failedRanks.empty() || !events_.lostRanks.empty() || events_.controlLostReason) return std::nullopt;
    if (auto message = reportedMismatch()) return message;
    ownCalls = log_.serializeCalls(std::min<size_t>(kMaxExitBytes / options_.size, kMaxValueBytes));
    for (size_t i = 0; i < groups_.size() && (i + 2) * options_.size <= kMaxExitKeys; i++) {
      const auto& group = groups_[i];
      if (group->rank > 0) neighbors.insert(group->ranks[group->rank - 1]);
      if (group->rank + 1 < group->size()) neighbors.insert(group->ranks[group->rank + 1]);
    }
  }
  if (neighbors.empty()) return std::nullopt;
  control_->put(callsKey(options_.rank), ownCalls);
  for (const uint32_t peer : neighbors) control_->put(pairKey(options_.rank, peer), std::to_string(options_.rank));
  for (const uint32_t peer : neighbors) {
    // The first value of a key is kept, so it names the rank that closed first.
    const auto firstClosedRank = control_->find(pairKey(options_.rank, peer), kValueTimeoutNs);
    if (!firstClosedRank || *firstClosedRank != std::to_string(peer)) continue;
    if (auto message = findDivergenceFromExited(peer)) return message;
  }
  const std::lock_guard lock(mutex_);
  return reportedMismatch();
}

/// Returns a mismatch that the control plane has reported for a group of this rank. The caller must hold the lock.
std::optional<std::string> Engine::reportedMismatch() const {
  for (const auto& group : groups_) {
    if (const auto entry = events_.mismatches.find(group->id); entry != events_.mismatches.end()) return entry->second;
  }
  return std::nullopt;
}

/// Returns the first of these that applies: this rank closed, its device failed, a peer failed, a mismatch, a transport
/// error, the timeout.
std::optional<Engine::Diagnosis> Engine::diagnose(Operation& op) {
  if (auto diagnosis = diagnoseClosing(op)) return diagnosis;
  if (auto failure = deviceFailure(op)) {
    const std::string text = rankName(options_.rank) + " failed before " + op.name() + ": " + failure->message;
    return Diagnosis{*failure, failureRecord(MOSAIC_FAILURE_PEER_LOST, text)};
  }
  if (hasEvents_) {
    if (auto diagnosis = peerFailure(op)) {
      // If a peer timed out, it may have waited for an operation that had failed on this rank.
      const bool isPeerTimeout = diagnosis->localFailure.code == MOSAIC_FAILURE_TIMEOUT;
      return isPeerTimeout ? transportError(op).value_or(*diagnosis) : *diagnosis;
    }
    if (auto diagnosis = diagnoseDivergence(op)) return diagnosis;
    if (auto diagnosis = diagnoseSplit(op)) return diagnosis;
  }
  if (auto diagnosis = diagnoseTransport(op)) return diagnosis;
  const int64_t now = monotonicNs();
  if (auto diagnosis = diagnoseTimeout(op, now)) return diagnosis;
  requestPositionsIfStalled(op, now);
  return std::nullopt;
}

std::optional<Engine::Diagnosis> Engine::diagnoseClosing(const Operation& op) {
  const bool isStalled = isClosing_ && options_.drainTimeoutNs >= 0 &&
                         monotonicNs() - std::max<int64_t>(lastProgressNs_, closingSinceNs_) >= options_.drainTimeoutNs;
  if (!isStopped_ && !isStalled) return std::nullopt;
  return Diagnosis{failureRecord(MOSAIC_FAILURE_CLOSED, describeLocation(op) + ": closed during " + op.name()),
                   failureRecord(MOSAIC_FAILURE_PEER_LOST, rankName(options_.rank) + " exited during " + op.name())};
}

std::optional<Engine::Diagnosis> Engine::peerFailure(const Operation& op) {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, cause] : events_.failedRanks) {
    if (op.group->contains(rank)) return Diagnosis{cause, std::nullopt};
  }
  for (const auto& [rank, process] : events_.lostRanks) {
    if (op.group->contains(rank)) return Diagnosis{peerLostFailure(op, process + " died"), std::nullopt};
  }
  if (const auto message = reportedMismatch()) {
    const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, *message);
    // A mismatch of messages between two ranks was reported to these two only, so it is passed on to the peers.
    return Diagnosis{failure, failure};
  }
  if (auto diagnosis = indirectFailure(op)) return diagnosis;
  if (!events_.controlLostReason) return std::nullopt;
  return Diagnosis{
      peerLostFailure(op, "lost the connection to the agent of this host (" + *events_.controlLostReason + ")"),
      std::nullopt};
}

/// Returns a failure outside of the group. It may have made ranks of the group fail, but only the first failure of a
/// world is reported. The caller must hold the lock.
std::optional<Engine::Diagnosis> Engine::indirectFailure(const Operation& op) const {
  if (op.startedAt == 0 || (events_.failedRanks.empty() && events_.lostRanks.empty())) return std::nullopt;
  const int64_t waitStart = std::max({lastProgressNs_, op.startedAt, events_.firstFailureNs});
  if (monotonicNs() - waitStart < kIndirectFailureDelayNs) return std::nullopt;
  if (!events_.failedRanks.empty()) return Diagnosis{events_.failedRanks.begin()->second, std::nullopt};
  return Diagnosis{peerLostFailure(op, events_.lostRanks.begin()->second + " died"), std::nullopt};
}

/// Finds ranks that are in a different collective with the same index. They exchange no message, so this is detected by
/// their positions.
std::optional<Engine::Diagnosis> Engine::diagnoseDivergence(const Operation& op) {
  const std::lock_guard lock(mutex_);
  if (positionRequest_.operationNumber != op.number || op.signature.index == 0) return std::nullopt;
  const auto entry = events_.positions.find(lastRequestId_);
  if (entry == events_.positions.end()) return std::nullopt;
  for (const Position& position : entry->second) {
    if (position.group != op.signature.group || position.index != op.signature.index || position.rank == options_.rank)
      continue;
    const std::string ownDescription = describeOperation(op.signature, op.group->name);
    if (isAtSameCall(op, position) &&
        (op.signature.ragged || isSameExceptNames(op, ownDescription, position.description)))
      continue;
    const std::string text =
        op.prefix() + mismatchText(options_.rank, ownDescription, position.rank, position.description);
    const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, text);
    return Diagnosis{failure, failure};
  }
  return std::nullopt;
}

/// Finds a rank that exited without calling the split: the control plane sends colors to all ranks at once.
std::optional<Engine::Diagnosis> Engine::diagnoseSplit(const Operation& op) {
  if (!op.split) return std::nullopt;
  std::optional<uint32_t> exitedRank;
  {
    const std::lock_guard lock(mutex_);
    if (op.split->hasColors) return std::nullopt;
    for (const auto& [rank, exitTime] : events_.exitedRanks) {
      // Colors that were sent before the exit may still be on their way.
      const bool isOverdue = monotonicNs() - std::max(exitTime, op.startedAt) >= kIndirectFailureDelayNs;
      if (isOverdue && rank != options_.rank && op.group->contains(rank)) exitedRank = rank;
    }
  }
  if (!exitedRank) return std::nullopt;
  return peerExitFailure(op, *exitedRank);
}

std::optional<Engine::Diagnosis> Engine::diagnoseTimeout(Operation& op, int64_t now) {
  if (op.startedAt == 0 || now - op.startedAt < options_.timeoutNs) return std::nullopt;
  const MosaicFailure failure = timeoutFailure(op);
  // Another rank may have timed out first and reported it.
  if (auto diagnosis = peerFailure(op)) return diagnosis;
  return Diagnosis{failure, failure};
}

void Engine::requestPositionsIfStalled(const Operation& op, int64_t now) {
  if (op.startedAt == 0 || op.group->size() == 1) return;
  if (positionRequest_.operationNumber != op.number)
    positionRequest_ = {op.number, std::max(op.startedAt, lastProgressNs_), kFirstPositionRequestDelayNs};
  const int64_t waitStart = std::max(positionRequest_.sendTimeNs, lastProgressNs_);
  if (now - waitStart < positionRequest_.intervalNs) return;
  positionRequest_.sendTimeNs = now;
  positionRequest_.intervalNs = std::min(2 * positionRequest_.intervalNs, kMaxPositionRequestIntervalNs);
  std::vector<uint32_t> peers = op.group->ranks;
  std::erase(peers, options_.rank);
  {
    const std::lock_guard lock(mutex_);
    events_.positions.clear();
  }
  control_->requestPositions(++lastRequestId_, peers);
  // The queried ranks send theirs, too.
  sendPendingReports();
}

std::vector<Position> Engine::positionsOf(const std::vector<uint32_t>& ranks) {
  const uint64_t request = ++lastRequestId_;
  control_->requestPositions(request, ranks);
  for (const int64_t deadline = monotonicNs() + kPositionsTimeoutNs;;) {
    {
      const std::lock_guard lock(mutex_);
      if (auto entry = events_.positions.extract(request)) return std::move(entry.mapped());
      if (isStopped_ || events_.controlLostReason) return {};
    }
    if (monotonicNs() >= deadline) return {};
    sleepFor(1'000'000);
  }
}

MosaicFailure Engine::timeoutFailure(const Operation& op) {
  std::vector<uint32_t> peers = op.group->ranks;
  std::erase(peers, options_.rank);
  const auto positions = positionsOf(peers);
  std::string text = op.prefix() + "timed out after " + formatSeconds(options_.timeoutNs) + ": " +
                     rankName(options_.rank) + " waits in " + op.name();
  for (size_t i = 0; i < std::min(peers.size(), kMaxListedRanks); i++) {
    const auto entry = std::find_if(positions.begin(), positions.end(),
                                    [&](const auto& position) { return position.rank == peers[i]; });
    if (entry != positions.end()) text += "; " + describePosition(op, *entry);
    else text += "; " + control_->describeProcess(peers[i]) + " does not respond";
  }
  if (peers.size() > kMaxListedRanks) text += "; …";
  return failureRecord(MOSAIC_FAILURE_TIMEOUT, text);
}

bool Engine::hasLostPeer() {
  const std::lock_guard lock(mutex_);
  return !events_.failedRanks.empty() || !events_.lostRanks.empty() || events_.controlLostReason;
}

/// Returns why connecting failed. If a peer exited, that is the cause of the error that the transport observed.
MosaicFailure Engine::connectFailure(const MosaicFailure& cause) {
  if (isStopped_) return failureRecord(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
  const std::lock_guard lock(mutex_);
  if (!events_.failedRanks.empty()) return events_.failedRanks.begin()->second;
  if (!events_.lostRanks.empty()) {
    const std::string& process = events_.lostRanks.begin()->second;
    return failureRecord(MOSAIC_FAILURE_PEER_LOST, "connect: " + process + " exited while the ranks were connecting");
  }
  if (events_.controlLostReason) {
    const std::string text = "connect: lost the connection to the agent of this host: " + *events_.controlLostReason;
    return failureRecord(MOSAIC_FAILURE_PEER_LOST, text);
  }
  return cause;
}

}  // namespace mosaic
