// What can go wrong while ranks wait for one another, whose fault it is, and what becomes of it.
#include <algorithm>

#include "mosaic/clock.h"
#include "engine/engine.h"

namespace mosaic::nccl {

namespace {

constexpr uint32_t kMostListed = 16;
/// NCCL notices a lost rank before the hub may: so long the hub has to say which.
constexpr int64_t kGraceNs = 500'000'000;
constexpr int64_t kAnswersNs = 1'000'000'000;
/// The hub can name the ranks that have not come, so it goes first.
constexpr int64_t kHubFirstNs = 3'000'000'000;

std::string rankName(uint32_t rank) { return "rank " + std::to_string(rank); }

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", value);
  return text;
}

/// Of a rank that may have done nothing yet.
std::string lastOf(const std::string& name) { return name.empty() ? "before its first operation" : "after " + name; }

std::string whereabouts(const Operation& op, const Position& at) {
  using Activity = Position::Activity;
  if (at.activity == Activity::Computing) return " is computing";
  if (at.activity == Activity::Idle) return " has called nothing " + (at.name.empty() ? "yet" : "since " + at.name);
  const bool here = at.group == op.signature.group && at.sequence == op.signature.sequence && at.name == op.name();
  return here ? " waits in it too" : " is at " + at.name;
}

}  // namespace

std::string Engine::process(uint32_t rank) const {
  return rankName(rank) + (rank < pids_.size() ? " (pid " + std::to_string(pids_[rank]) + ")" : "");
}

/// `ring(sp), rank 3`
std::string Engine::where(const Operation& op) const {
  return (op.signature.label.empty() ? "" : op.signature.label + ", ") + rankName(options_.rank);
}

/// The first of: this rank's own end, its device's, another rank's, a mistake, NCCL's error, the deadline.
std::optional<Engine::Trouble> Engine::trouble() {
  if (connecting_) return connectingTrouble();
  std::deque<std::shared_ptr<Operation>> pending;
  {
    const std::lock_guard lock(mutex_);
    pending = queue_;
  }
  if (pending.empty()) return std::nullopt;
  Operation& first = *pending.front();
  const bool stuck = closing_ && options_.drainSeconds >= 0 &&
                     monotonicNs() - movedAt_ >= static_cast<int64_t>(options_.drainSeconds * 1e9);
  if (stop_ || stuck) {
    return Trouble{recordOf(MOSAIC_FAILURE_CLOSED, where(first) + ": closed during " + first.name()),
                   recordOf(MOSAIC_FAILURE_PEER_LOST, rankName(options_.rank) + " left during " + first.name())};
  }
  if (auto found = deviceTrouble(first)) return found;
  for (const auto& op : pending) {
    if (auto found = peerTrouble(*op)) return found;
  }
  if (auto found = libraryTrouble()) return found;
  return late(first);
}

std::optional<Engine::Trouble> Engine::connectingTrouble() {
  const std::string self = "nccl: " + rankName(options_.rank);
  if (stop_) return Trouble{recordOf(MOSAIC_FAILURE_CLOSED, self + ": closed while the ranks connected"), {}};
  if (refused_) return Trouble{*refused_, {}};
  for (const auto& [rank, gone] : gone_) {
    if (gone.cause) return Trouble{*gone.cause, {}};
    const std::string text = "nccl: " + process(rank) + " died while the ranks connected";
    return Trouble{recordOf(MOSAIC_FAILURE_PEER_LOST, text), {}};
  }
  if (hub_.lost()) {
    return Trouble{recordOf(MOSAIC_FAILURE_PEER_LOST, self + ": rank 0 ended while the ranks connected"), {}};
  }
  if (monotonicNs() < connectBy_ + (welcome_ ? 0 : kHubFirstNs)) return std::nullopt;
  if (!welcome_) {
    return Trouble{recordOf(MOSAIC_FAILURE_TIMEOUT, self + ": rank 0 has not let it in within " +
                                                        seconds(options_.connectSeconds)), {}};
  }
  const auto failure = recordOf(MOSAIC_FAILURE_TIMEOUT, self + ": NCCL has not connected the ranks within " +
                                                            seconds(options_.connectSeconds) +
                                                            "; NCCL_DEBUG=INFO shows what it tries");
  return Trouble{failure, failure};
}

std::optional<Engine::Trouble> Engine::deviceTrouble(const Operation& op) {
  MosaicFailure own{};
  if (!device_.failure(&device_, &own)) return std::nullopt;
  const std::string text = rankName(options_.rank) + " failed before " + op.name() + ": " + own.message;
  return Trouble{own, recordOf(MOSAIC_FAILURE_PEER_LOST, text)};
}

std::optional<Engine::Trouble> Engine::peerTrouble(const Operation& op) {
  const auto need = [&](const char* when) {
    return "; " + rankName(options_.rank) + " needed it " + when + " " + op.name();
  };
  for (const auto& [rank, gone] : gone_) {
    if (rank == options_.rank || !op.member->group.has(rank)) continue;
    if (gone.cause) return Trouble{*gone.cause, {}};
    const auto failure = recordOf(MOSAIC_FAILURE_PEER_LOST, op.prefix() + process(rank) + " died" + need("in"));
    return Trouble{failure, failure};
  }
  if (const auto found = mismatches_.find(op.signature.group); found != mismatches_.end()) {
    return Trouble{recordOf(MOSAIC_FAILURE_MISMATCH, found->second), {}};
  }
  const auto [group, sequence] = std::pair{op.signature.group, op.signature.sequence};
  // The first of the group, up to this operation. NCCL may have taken a message that nobody will ever receive, and the
  // operation that sent it may be over: then the next one tells.
  const auto found = needed_.lower_bound({group, 0});
  if (found == needed_.end() || found->first.first != group || found->first.second > sequence) return std::nullopt;
  const std::string left = rankName(found->second) + " left " + lastOf(left_[found->second]);
  const bool here = found->first.second == sequence;
  const auto failure = recordOf(MOSAIC_FAILURE_PEER_LOST, op.prefix() + left + need(here ? "in" : "before"));
  return Trouble{failure, failure};
}

std::optional<Engine::Trouble> Engine::libraryTrouble() {
  if (suspicion_ && monotonicNs() - suspicion_->since >= kGraceNs) {
    const MosaicFailure& failure = suspicion_->failure;
    return Trouble{failure, recordOf(MOSAIC_FAILURE_PEER_LOST, failure.message)};
  }
  if (suspicion_) return std::nullopt;
  for (const auto& member : members_) {
    if (!member->communicator.open()) continue;
    const ncclResult_t state = member->communicator.state();
    if (sound(state)) continue;
    const std::string self = rankName(options_.rank) + ", group " + member->group.name;
    const Failure failure = failureOf(state, member->communicator, self);
    suspicion_ = Suspicion{recordOf(failure.code(), failure.what()), monotonicNs()};
  }
  return std::nullopt;
}

/// An operation's clock runs from when everything before it is done, compute and collectives.
std::optional<Engine::Trouble> Engine::late(Operation& op) {
  const int64_t now = monotonicNs();
  if (op.startedAt == 0) {
    if (!op.ready || driver().eventQuery(op.ready) == cuda::CUDA_SUCCESS) op.startedAt = now;
    return std::nullopt;
  }
  if (now - op.startedAt < static_cast<int64_t>(options_.timeoutSeconds * 1e9)) return std::nullopt;
  const MosaicFailure failure = timedOut(op);
  // Another rank's limit may have passed first: then that one has told.
  if (auto found = peerTrouble(op)) return found;
  return Trouble{failure, failure};
}

/// Names each rank's position: all are asked, and those that answer in time are quoted.
MosaicFailure Engine::timedOut(const Operation& op) {
  std::vector<uint32_t> others = op.member->group.ranks;
  std::erase(others, options_.rank);
  positions_.clear();
  hub_.send(Writer(Frame::Ask));
  const auto answered = [&] {
    return std::all_of(others.begin(), others.end(), [&](uint32_t rank) {
      return positions_.contains(rank) || left_.contains(rank) || gone_.contains(rank);
    });
  };
  for (const int64_t limit = monotonicNs() + kAnswersNs; !answered() && !hub_.lost() && monotonicNs() < limit;) {
    rest(1'000'000);
    listen();
  }
  std::string text = op.prefix() + "no end within " + seconds(options_.timeoutSeconds) + ": " +
                     rankName(options_.rank) + " waits in " + op.name();
  for (size_t i = 0; i < others.size() && i <= kMostListed; i++) {
    const uint32_t rank = others[i];
    if (i == kMostListed) text += "; …";
    else if (left_.contains(rank)) text += "; " + rankName(rank) + " left " + lastOf(left_[rank]);
    else if (gone_.contains(rank)) text += "; " + process(rank) + (gone_[rank].cause ? " failed" : " died");
    else if (positions_.contains(rank)) text += "; " + rankName(rank) + whereabouts(op, positions_[rank]);
    else text += "; " + process(rank) + " does not answer";
  }
  return recordOf(MOSAIC_FAILURE_TIMEOUT, text);
}

void Engine::fail(const Trouble& trouble) {
  std::vector<std::shared_ptr<Operation>> over;
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failure_ = trouble.here;
    failedFrom_ = queue_.empty() ? posted_ + 1 : queue_.front()->number;
    over.assign(queue_.begin(), queue_.end());
    queue_.clear();
    for (const auto& op : over) {
      // Before anything is let go that compute waits for: it must not go on with what has not come.
      if (op->waited) device_.fail(&device_, &trouble.here);
      op->state = Operation::State::Over;
    }
    failed_ = true;
    launched_.notify_all();
  }
  if (trouble.there) {
    hub_.send(std::move(Writer(Frame::Failed).value(trouble.there->code).text(trouble.there->message)));
  }
  {
    AbortTogether together([this] { device_.enter(&device_); });
    for (const auto& member : members_) together.add(member->communicator);
  }
  for (const auto& op : over) {
    // What a split was about to make: the whole has ended, so nobody writes to it any more.
    if (op->part) op->part->communicator.abort();
    if (op->settled) op->settled(&trouble.here);
    marks_.give(op->ready);
  }
  const std::lock_guard lock(mutex_);
  completed_ = posted_;
}

}  // namespace mosaic::nccl
