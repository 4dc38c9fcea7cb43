#include "engine.h"

#include <mosaic/clock.h>
#include <mosaic/thread.h>

#include <utility>

#include "report.h"

namespace mosaic {

namespace {

constexpr int64_t kTickNs = 100'000'000, kIdleNs = 1'000'000'000;
// A sleeping thread takes tens of microseconds to wake, so look a little longer before sleeping; but compute threads
// want the cores too.
constexpr int64_t kSpinNs = 20'000;

uint64_t owed(const Lane& lane) {
  uint64_t bytes = 0;
  for (size_t i = lane.next; i < lane.messages.size(); i++) {
    bytes += sizeof(Signature) + lane.messages[i].signature.bytes;
  }
  return lane.open ? bytes - sizeof(Signature) - lane.moved : bytes;
}

/// What this rank is told when it closes with an operation under way, and what the others are told.
MosaicFailure closedFailure(const Operation& op) {
  return recordOf(MOSAIC_FAILURE_CLOSED, op.where() + ": closed during " + op.name());
}

MosaicFailure departure(const Operation& op) {
  return recordOf(MOSAIC_FAILURE_PEER_LOST, "rank " + std::to_string(op.rank) + " left during " + op.name());
}

}  // namespace

Engine::Engine(std::shared_ptr<Segment> segment, uint32_t rank, EngineOptions options)
    : segment_(std::move(segment)), rank_(rank), options_(options), peers_(segment_, rank) {
  page().state.store(RankState::Present);
  thread_ = quietThread("mosaic-comm", [this] { run(); });
}

Engine::~Engine() {
  abort();
  thread_.join();
}

uint64_t Engine::post(Post post) {
  auto op = std::make_shared<Operation>();
  Group& group = *post.group;
  const bool collective = post.call.op != OpKind::SendRecv;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) throw Failure(*failure_);
    if (closing_ || stop_) throw Failure(MOSAIC_FAILURE_CLOSED, "this rank has left its group");
    op->signature = signatureOf(group, post.call, group.sequence + 1, collective ? group.index + 1 : 0);
    op->stages = plan(group, post.call, op->signature);
    group.sequence++;
    if (collective) group.index++;
    op->number = ++posted_;
    op->group = post.group;
    op->segment = segment_;
    op->rank = rank_;
    op->label = std::move(post.label);
    op->settled = std::move(post.settled);
    op->ready.store(post.stream == nullptr);
    queue_.push_back(op);
    page().posted.store(op->number);
  }
  const uint64_t number = op->number;
  if (post.stream) {
    const MosaicWork work = readyWork(std::move(op));
    post.stream->submit(post.stream, &work);
  } else {
    page().doorbell.ring();
  }
  return number;
}

void Engine::wait(uint64_t number, MosaicStream& stream) {
  MosaicWork work;
  {
    const std::lock_guard lock(mutex_);
    if (!queue_.empty() && number >= queue_.front()->number) {
      work = waitWork(queue_.at(number - queue_.front()->number));
    } else if (failure_ && number >= failedFrom_) {
      work = failWork(*failure_);
    } else {
      return;
    }
  }
  stream.submit(&stream, &work);
}

void Engine::close(std::function<void()> left) {
  {
    const std::lock_guard lock(mutex_);
    if (!gone_) left_ = std::exchange(left, nullptr);
  }
  if (left) return left();
  closing_.store(true);
  page().doorbell.ring();
}

void Engine::abort() {
  stop_.store(true);
  page().doorbell.ring();
}

void Engine::startTrace() {
  const std::lock_guard lock(mutex_);
  trace_.clear();
  tracing_.store(true);
}

std::vector<TraceRecord> Engine::stopTrace() {
  const std::lock_guard lock(mutex_);
  tracing_.store(false);
  return std::exchange(trace_, {});
}

void Engine::run() {
  while (auto op = next()) {
    Bytes bytes;
    begin(*op);
    const auto failure = execute(*op, bytes);
    conclude(op, failure, bytes);
  }
  leave();
}

std::shared_ptr<Operation> Engine::next() {
  std::shared_ptr<Operation> op;
  bool over = false;
  const auto look = [&] {
    const std::lock_guard lock(mutex_);
    over = queue_.empty() && (closing_ || stop_);
    if (!queue_.empty() && (queue_.front()->ready || stop_)) op = queue_.front();
    return op || over;
  };
  // Whoever rings may be killed between saying so and doing so: never sleep without end.
  while (!look()) page().doorbell.sleep(kIdleNs, look);
  return op;
}

void Engine::begin(const Operation& op) {
  Position position;
  position.group = op.group->id;
  position.sequence = op.signature.sequence;
  position.index = op.signature.index;
  position.op = op.signature.op;
  position.activity = Activity::Running;
  std::snprintf(position.groupName, sizeof position.groupName, "%s", op.group->name.c_str());
  page().position.store(position);
}

std::optional<MosaicFailure> Engine::execute(Operation& op, Bytes& bytes) {
  const int64_t start = op.startedAt = movedAt_ = monotonicNs();
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
  }
  std::optional<MosaicFailure> failure;
  for (Stage& stage : op.stages) {
    if ((failure = trouble(op, stage, start))) break;
    for (const Lane& lane : stage.sends) {
      if (peers_.left(lane.peer)) failure = peerLostFailure(op, *segment_, rank_, lane.peer, false);
    }
    if (failure) break;
    Exchange exchange(*segment_, rank_, stage, bytes);
    if ((failure = finish(op, exchange, stage, start))) break;
  }
  if (failure) publish(failure->code == MOSAIC_FAILURE_CLOSED ? departure(op) : *failure);
  if (const auto cause = op.cancelled(); failure && cause) return cause;
  return failure;
}

/// Runs one stage to its end, or until something is wrong.
std::optional<MosaicFailure> Engine::finish(Operation& op, Exchange& exchange, const Stage& stage, int64_t start) {
  int64_t idleSince = 0;
  while (!exchange.done()) {
    bool moved = exchange.step();
    if (const auto& mismatch = exchange.mismatch()) {
      return mismatchFailure(op, rank_, *mismatch, segment_->page(mismatch->peer).position.load());
    }
    const int64_t now = monotonicNs();
    if (moved) {
      movedAt_ = now;
      idleSince = 0;
      continue;
    }
    if (idleSince == 0) idleSince = now;
    if (now - idleSince < kSpinNs) {
      relax();
      continue;
    }
    if (auto failure = trouble(op, stage, start)) return failure;
    const int64_t deadline = start + options_.timeoutNs;
    page().doorbell.sleep(std::clamp<int64_t>(deadline - now, 0, kTickNs), [&] {
      return (moved = exchange.step()) || exchange.mismatch() || stop_ || op.isCancelled();
    });
    if (moved) movedAt_ = monotonicNs();
  }
  return std::nullopt;
}

std::optional<MosaicFailure> Engine::trouble(Operation& op, const Stage& stage, int64_t start) {
  const int64_t now = monotonicNs();
  if (stop_) return closedFailure(op);
  if (auto failure = cancellation(op)) return failure;
  if (now - refreshedAt_ >= kTickNs) {
    peers_.refresh();
    refreshedAt_ = now;
  }
  if (auto failure = peerTrouble(op, stage)) return failure;
  if (now - start >= options_.timeoutNs) {
    return timeoutFailure(op, *segment_, rank_, peers_, static_cast<double>(options_.timeoutNs) * 1e-9);
  }
  if (closing_ && options_.drainNs >= 0 && now - movedAt_ >= options_.drainNs) return closedFailure(op);
  return std::nullopt;
}

std::optional<MosaicFailure> Engine::cancellation(Operation& op) {
  const auto cause = op.cancelled();
  if (!cause) return std::nullopt;
  // What others read; the own stream keeps its own cause.
  return recordOf(MOSAIC_FAILURE_PEER_LOST,
                     "rank " + std::to_string(rank_) + " failed before " + op.name() + ": " + cause->message);
}

/// The first of: a rank that died, one that failed, one that called something else, one that left too early.
std::optional<MosaicFailure> Engine::peerTrouble(Operation& op, const Stage& stage) {
  for (const uint32_t peer : op.group->ranks) {
    if (peer != rank_ && peers_.dead(peer)) return peerLostFailure(op, *segment_, rank_, peer, true);
  }
  for (const uint32_t peer : op.group->ranks) {
    if (peer != rank_ && segment_->page(peer).failed.load()) return adoptedFailure(*segment_, peer);
  }
  for (const uint32_t peer : op.group->ranks) {
    if (peer == rank_ || op.signature.index == 0) continue;
    const Position there = segment_->page(peer).position.load();
    const bool sameCall = there.group == op.group->id && there.index == op.signature.index;
    if (sameCall && there.op != op.signature.op) return divergenceFailure(op, rank_, peer, there);
  }
  return lostPeer(op, stage);
}

std::optional<MosaicFailure> Engine::lostPeer(const Operation& op, const Stage& stage) {
  for (const Lane& lane : stage.sends) {
    if (!lane.done() && peers_.left(lane.peer)) return peerLostFailure(op, *segment_, rank_, lane.peer, false);
  }
  for (const Lane& lane : stage.receives) {
    if (lane.done() || !peers_.left(lane.peer)) continue;
    // What it sent before it left is still there.
    if (segment_->channel(lane.peer, rank_).readable() < owed(lane)) {
      return peerLostFailure(op, *segment_, rank_, lane.peer, false);
    }
  }
  return std::nullopt;
}

void Engine::publish(const MosaicFailure& failure) {
  page().failure = failure;
  page().failed.store(1);
  segment_->ringAll(rank_);
}

void Engine::conclude(const std::shared_ptr<Operation>& op, const std::optional<MosaicFailure>& failure,
                      const Bytes& bytes) {
  Position position = page().position.load();
  position.activity = Activity::Idle;
  page().position.store(position);
  if (op->signature.op != OpKind::Split) {
    op->group->bytesSent += bytes.sent;
    op->group->bytesReceived += bytes.received;
    op->group->messagesSent += bytes.messages;
  }
  {
    const std::lock_guard lock(mutex_);
    queue_.pop_front();
    if (failure && !failure_) {
      failure_ = failure;
      failedFrom_ = op->number;
    }
    if (tracing_) {
      trace_.push_back({op->signature.op, op->label.empty() ? op->group->name : op->label, op->startedAt, monotonicNs(),
                        bytes});
    }
    page().completed.store(op->number);
  }
  if (failure) op->failure = *failure;
  if (op->settled) op->settled(failure ? &*failure : nullptr);
  op->settle(failure ? OpState::Failed : OpState::Done);
}

void Engine::leave() {
  page().state.store(RankState::Left);
  segment_->ringAll(rank_);
  std::function<void()> left;
  {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    left = std::exchange(left_, nullptr);
  }
  if (left) left();
}

}  // namespace mosaic
