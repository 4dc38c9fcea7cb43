// Why an operation cannot complete, and the error message: the same for every transport. Ranks in messages are world
// ranks; the name of the group follows the operation in parentheses.
#include <algorithm>

#include "collectives/engine.h"
#include "mosaic/clock.h"

namespace mosaic {

namespace {

constexpr size_t kMaxListed = 16;
/// A rank queries the positions of its peers once an operation has made no progress for this long; later less often.
constexpr int64_t kFirstPositionRequestNs = 100'000'000, kLongestIntervalNs = 5'000'000'000;
constexpr int64_t kPositionsNs = 1'200'000'000;
/// How long an operation may make no progress once a rank outside of its group has failed.
constexpr int64_t kIndirectFailureNs = 1'000'000'000;
/// Timeout for the control plane to find the first mismatched call of two ranks, and for a value to arrive.
constexpr int64_t kDivergenceDelayNs = 3'000'000'000, kValueNs = 1'000'000'000;

/// The root keeps 65 536 values of 256 MiB of a world: exits of all its ranks may take half of it.
constexpr size_t kMaxExitKeys = 32'768, kMaxExitBytes = 128 << 20;

/// Published by a rank that exits: its calls, and whether it exits before or after its neighbour in each group.
std::string callsKey(uint32_t rank) { return "calls/" + std::to_string(rank); }
std::string pairKey(uint32_t a, uint32_t b) {
  return "exits/" + std::to_string(std::min(a, b)) + "-" + std::to_string(std::max(a, b));
}

/// The text after `exited`, for a rank that may not have called a collective yet.
std::string lastOperationText(const std::string& last) {
  return last.empty() ? "before its first operation" : "after " + last;
}

/// `allGather (sp)` of `allGather #42 (sp)`: ranks of a group may have called different numbers of sendRecv.
std::string withoutNumber(std::string text) {
  const size_t from = text.find(" #");
  return from == std::string::npos ? text : text.erase(from, text.find(' ', from + 1) - from);
}

/// Whether a rank is in the same collective of a group, or in a sendRecv of the same number.
bool isAtSameCall(const Operation& op, const Position& at) {
  if (at.group != op.signature.group || at.index != op.signature.index) return false;
  if (op.signature.index == 0 && at.sequence != op.signature.sequence) return false;
  return withoutNumber(at.operation) == withoutNumber(op.name());
}

std::string describe(const Operation& op, const Position& at) {
  using Activity = Position::Activity;
  const std::string rank = rankName(at.rank);
  switch (at.activity) {
    case Activity::Idle:
      return rank + " is in no collective, last collective: " + (at.last.empty() ? "none" : at.last);
    case Activity::Computing:
      return rank + " is computing";
    case Activity::Running:
      return rank + (isAtSameCall(op, at) ? " waits in the same call" : " is at " + at.operation);
    case Activity::Exited:
      return rank + " exited " + lastOperationText(at.last);
    case Activity::Failed:
      return rank + " failed";
    case Activity::Unknown:
      return rank + " does not respond";
  }
  return rank;
}

}  // namespace

std::string Engine::location(const Operation& op) const {
  return (op.label.empty() ? "" : op.label + ", ") + rankName(options_.rank);
}

Engine::Diagnosis Engine::localFailure(const Operation& op, MosaicFailureCode code, const std::string& text) const {
  const std::string message = location(op) + ": " + op.name() + ": " + text;
  return {failureRecord(code, message), failureRecord(MOSAIC_FAILURE_PEER_LOST, message)};
}

MosaicFailure Engine::peerLostFailure(const Operation& op, const std::string& what) const {
  return failureRecord(MOSAIC_FAILURE_PEER_LOST,
                       op.prefix() + what + "; " + rankName(options_.rank) + " needed it in " + op.name());
}

Engine::Diagnosis Engine::peerExitedFailure(const Operation& op, uint32_t rank) {
  const auto positions = positionsOf({rank});
  // For a rank that failed and then exited, the failure is reported as the cause.
  if (const auto failure = peerFailure(op)) return *failure;
  const std::string last = positions.empty() ? "" : positions[0].last;
  const MosaicFailure failure = peerLostFailure(op, rankName(rank) + " exited " + lastOperationText(last));
  return {failure, failure};
}

std::optional<Engine::Diagnosis> Engine::exitedFailure(const Operation& op) {
  std::vector<uint32_t> exited;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [rank, at] : events_.exited) {
      if (rank != options_.rank && op.group->contains(rank)) exited.push_back(rank);
    }
  }
  for (const uint32_t rank : exited) {
    const CallCounts& counts = exitCounts_.of(rank, *control_);
    const auto isMissing = [&](const SequencedCall& call) {
      return call.peer.value_or(rank) == rank && !counts.contains(call.series, call.index);
    };
    if (std::any_of(op.calls.begin(), op.calls.end(), isMissing)) return peerExitedFailure(op, rank);
  }
  return std::nullopt;
}

void Engine::reportIfRequested() {
  if (reportRequested_.exchange(false)) reportPending();
}

void Engine::reportPending() {
  std::vector<CallReport> reports;
  {
    const std::lock_guard lock(mutex_);
    reports = log_.takePending();
  }
  report(reports);
}

void Engine::report(const std::vector<CallReport>& reports) {
  for (const auto& [series, index, history, ranks] : reports) control_->reportCall(series, index, history, ranks);
}

Engine::Diagnosis Engine::mismatch(const Operation& op, const MosaicMessage& message) {
  const Signature &expected = message.signature, &received = message.received;
  // After mismatched calls ranks need not be in the same operation, either.
  const bool areSameGroup = expected.magic == received.magic && expected.group == received.group;
  if (areSameGroup && expected.history != received.history) {
    if (auto found = findDivergenceBefore(op, message.peer)) return *found;
  }
  std::string group = "a different group";
  {
    const std::lock_guard lock(mutex_);
    for (const auto& each : groups_) {
      if (each->id == received.group) group = each->name;
    }
  }
  const std::string text =
      op.prefix() + (isSameOperation(expected, received)
                         ? unloggedMismatchText(options_.rank, message.peer)
                         : mismatchText(options_.rank, descriptionOf(expected, op.group->name), message.peer,
                                        descriptionOf(received, group)));
  const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, text);
  return {failure, failure};
}

/// The histories of a message do not match: finds the first mismatched call in the logs of both ranks.
std::optional<Engine::Diagnosis> Engine::findDivergenceBefore(const Operation& op, uint32_t peer) {
  control_->requestPositions(++requests_, {peer});  // so that the peer reports its calls, too
  reportPending();
  const auto hasExited = [&] {
    const std::lock_guard lock(mutex_);
    return events_.exited.contains(peer);
  };
  std::optional<std::string> text;
  for (const int64_t limit = monotonicNs() + kDivergenceDelayNs; !text && !stop_ && monotonicNs() < limit;) {
    if (auto found = peerFailure(op)) return found;
    reportIfRequested();
    if (hasExited()) text = findDivergenceFromExited(peer);
    if (!text) sleepFor(kDivergenceDelayNs / 300);
  }
  if (!text) return std::nullopt;
  const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, *text);
  return Diagnosis{failure, failure};
}

/// The first mismatched call of this rank and one that has exited; calls that only one of them made are no mismatch.
std::optional<std::string> Engine::findDivergenceFromExited(uint32_t peer) {
  const auto published = control_->find(callsKey(peer), kValueNs);
  if (!published) return std::nullopt;
  for (const auto& [group, theirs] : CallLog::read(*published)) {
    const auto own = calls(group);
    for (auto last = theirs.rbegin(); last != theirs.rend(); ++last) {
      const auto matching =
          std::find_if(own.begin(), own.end(), [&](const CallRecord& each) { return each.index == last->index; });
      if (matching == own.end()) continue;
      if (matching->history != last->history) return mismatchMessage(options_.rank, own, peer, theirs);
      break;  // a history covers all calls before it
    }
  }
  return std::nullopt;
}

/// Ranks may close in any order, and none waits for another. So the neighbours of a group compare: of two, the one that
/// closes later has the calls of the other. Ranks that end after different numbers of calls, perhaps because one has
/// failed, must agree on those that both have made.
std::optional<std::string> Engine::compareAtClose() {
  std::set<uint32_t> neighbours;
  std::string own;
  {
    const std::lock_guard lock(mutex_);
    if (!events_.failed.empty() || !events_.lost.empty() || events_.controlLost) return std::nullopt;
    if (auto found = reportedMismatch()) return found;
    own = log_.published(std::min<size_t>(kMaxExitBytes / options_.size, kMaxValueBytes));
    for (size_t i = 0; i < groups_.size() && (i + 2) * options_.size <= kMaxExitKeys; i++) {
      const auto& group = groups_[i];
      if (group->rank > 0) neighbours.insert(group->ranks[group->rank - 1]);
      if (group->rank + 1 < group->size()) neighbours.insert(group->ranks[group->rank + 1]);
    }
  }
  if (neighbours.empty()) return std::nullopt;
  control_->put(callsKey(options_.rank), own);
  for (const uint32_t peer : neighbours) control_->put(pairKey(options_.rank, peer), std::to_string(options_.rank));
  for (const uint32_t peer : neighbours) {
    // The first value of a key is kept: that of the rank that closed first.
    const auto first = control_->find(pairKey(options_.rank, peer), kValueNs);
    if (!first || *first != std::to_string(peer)) continue;
    if (auto found = findDivergenceFromExited(peer)) return found;
  }
  const std::lock_guard lock(mutex_);
  return reportedMismatch();
}

/// What the control plane has reported about groups of this rank. The caller holds the lock.
std::optional<std::string> Engine::reportedMismatch() const {
  for (const auto& group : groups_) {
    if (const auto found = events_.mismatches.find(group->id); found != events_.mismatches.end()) return found->second;
  }
  return std::nullopt;
}

/// The first of: this rank closed, its device failed, a peer failed, a mismatch, a transport error, the timeout.
std::optional<Engine::Diagnosis> Engine::diagnose(Operation& op) {
  if (auto found = checkClosing(op)) return found;
  if (auto own = deviceFailure(op)) {
    const std::string text = rankName(options_.rank) + " failed before " + op.name() + ": " + own->message;
    return Diagnosis{*own, failureRecord(MOSAIC_FAILURE_PEER_LOST, text)};
  }
  if (hasEvents_) {
    if (auto found = peerFailure(op)) {
      // A peer that timed out may have waited for what had failed here by then.
      const bool hasTimedOut = found->local.code == MOSAIC_FAILURE_TIMEOUT;
      return hasTimedOut ? transportError(op).value_or(*found) : *found;
    }
    if (auto found = checkDivergence(op)) return found;
  }
  if (auto found = transportFailure(op)) return found;
  const int64_t now = monotonicNs();
  if (auto found = checkTimeout(op, now)) return found;
  requestPositionsIfStalled(op, now);
  return std::nullopt;
}

std::optional<Engine::Diagnosis> Engine::checkClosing(const Operation& op) {
  const bool isStalled = closing_ && options_.drainNs >= 0 && monotonicNs() - progressedAt_ >= options_.drainNs;
  if (!stop_ && !isStalled) return std::nullopt;
  return Diagnosis{failureRecord(MOSAIC_FAILURE_CLOSED, location(op) + ": closed during " + op.name()),
                   failureRecord(MOSAIC_FAILURE_PEER_LOST, rankName(options_.rank) + " exited during " + op.name())};
}

std::optional<Engine::Diagnosis> Engine::peerFailure(const Operation& op) {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, cause] : events_.failed) {
    if (op.group->contains(rank)) return Diagnosis{cause, std::nullopt};
  }
  for (const auto& [rank, process] : events_.lost) {
    if (op.group->contains(rank)) return Diagnosis{peerLostFailure(op, process + " died"), std::nullopt};
  }
  if (const auto found = reportedMismatch()) {
    const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, *found);
    // Of messages between two ranks only those two have been informed.
    return Diagnosis{failure, failure};
  }
  if (auto found = indirectFailure(op)) return found;
  if (!events_.controlLost) return std::nullopt;
  return Diagnosis{peerLostFailure(op, "lost the connection to the agent of this host (" + *events_.controlLost + ")"),
                   std::nullopt};
}

/// A failure outside of the group: ranks of the group may have failed with it, which only the first reports. Under the
/// lock.
std::optional<Engine::Diagnosis> Engine::indirectFailure(const Operation& op) const {
  if (op.startedAt == 0 || (events_.failed.empty() && events_.lost.empty())) return std::nullopt;
  const int64_t waitStart = std::max({progressedAt_, op.startedAt, events_.firstFailureAt});
  if (monotonicNs() - waitStart < kIndirectFailureNs) return std::nullopt;
  if (!events_.failed.empty()) return Diagnosis{events_.failed.begin()->second, std::nullopt};
  return Diagnosis{peerLostFailure(op, events_.lost.begin()->second + " died"), std::nullopt};
}

/// Two ranks that are in different collectives of one number never exchange a message: their positions show it.
std::optional<Engine::Diagnosis> Engine::checkDivergence(const Operation& op) {
  const std::lock_guard lock(mutex_);
  if (positionRequest_.operation != op.number || op.signature.index == 0) return std::nullopt;
  const auto found = events_.positions.find(requests_);
  if (found == events_.positions.end()) return std::nullopt;
  for (const Position& at : found->second) {
    if (at.group != op.signature.group || at.index != op.signature.index || at.rank == options_.rank) continue;
    const std::string own = descriptionOf(op.signature, op.group->name);
    if (isAtSameCall(op, at) && (op.signature.ragged || withoutNumber(at.description) == withoutNumber(own))) continue;
    const std::string text = op.prefix() + mismatchText(options_.rank, own, at.rank, at.description);
    const MosaicFailure failure = failureRecord(MOSAIC_FAILURE_MISMATCH, text);
    return Diagnosis{failure, failure};
  }
  return std::nullopt;
}

std::optional<Engine::Diagnosis> Engine::checkTimeout(Operation& op, int64_t now) {
  if (op.startedAt == 0 || now - op.startedAt < options_.timeoutNs) return std::nullopt;
  const MosaicFailure failure = timeout(op);
  // Another rank's timeout may have passed first, and was reported.
  if (auto found = peerFailure(op)) return found;
  return Diagnosis{failure, failure};
}

void Engine::requestPositionsIfStalled(const Operation& op, int64_t now) {
  if (op.startedAt == 0 || op.group->size() == 1) return;
  if (positionRequest_.operation != op.number)
    positionRequest_ = {op.number, std::max(op.startedAt, progressedAt_), kFirstPositionRequestNs};
  const int64_t waitStart = std::max(positionRequest_.at, progressedAt_);
  if (now - waitStart < positionRequest_.interval) return;
  positionRequest_.at = now;
  positionRequest_.interval = std::min(2 * positionRequest_.interval, kLongestIntervalNs);
  std::vector<uint32_t> peers = op.group->ranks;
  std::erase(peers, options_.rank);
  {
    const std::lock_guard lock(mutex_);
    events_.positions.clear();
  }
  control_->requestPositions(++requests_, peers);
  // Ranks that are queried do the same.
  reportPending();
}

std::vector<Position> Engine::positionsOf(const std::vector<uint32_t>& ranks) {
  const uint64_t request = ++requests_;
  control_->requestPositions(request, ranks);
  for (const int64_t limit = monotonicNs() + kPositionsNs;;) {
    {
      const std::lock_guard lock(mutex_);
      if (auto found = events_.positions.extract(request)) return std::move(found.mapped());
      if (events_.controlLost) return {};
    }
    if (monotonicNs() >= limit) return {};
    sleepFor(1'000'000);
  }
}

MosaicFailure Engine::timeout(const Operation& op) {
  std::vector<uint32_t> peers = op.group->ranks;
  std::erase(peers, options_.rank);
  const auto positions = positionsOf(peers);
  std::string text = op.prefix() + "timed out after " + seconds(options_.timeoutNs) + ": " + rankName(options_.rank) +
                     " waits in " + op.name();
  for (size_t i = 0; i < std::min(peers.size(), kMaxListed); i++) {
    const auto found =
        std::find_if(positions.begin(), positions.end(), [&](const auto& each) { return each.rank == peers[i]; });
    if (found != positions.end()) text += "; " + describe(op, *found);
    else text += "; " + control_->processOf(peers[i]) + " does not respond";
  }
  if (peers.size() > kMaxListed) text += "; …";
  return failureRecord(MOSAIC_FAILURE_TIMEOUT, text);
}

bool Engine::hasLostPeer() {
  const std::lock_guard lock(mutex_);
  return !events_.failed.empty() || !events_.lost.empty() || events_.controlLost;
}

/// Why connecting failed: a peer that exited is the cause of an error that the transport observed.
MosaicFailure Engine::connectFailure(const MosaicFailure& cause) {
  if (stop_) return failureRecord(MOSAIC_FAILURE_CLOSED, "connect: this rank closed while connecting");
  const std::lock_guard lock(mutex_);
  if (!events_.failed.empty()) return events_.failed.begin()->second;
  if (!events_.lost.empty()) {
    const std::string& process = events_.lost.begin()->second;
    return failureRecord(MOSAIC_FAILURE_PEER_LOST, "connect: " + process + " exited while the ranks were connecting");
  }
  if (events_.controlLost) {
    const std::string text = "connect: lost the connection to the agent of this host: " + *events_.controlLost;
    return failureRecord(MOSAIC_FAILURE_PEER_LOST, text);
  }
  return cause;
}

}  // namespace mosaic
