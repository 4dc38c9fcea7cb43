// How operations come onto the communication stream.
#include <sys/eventfd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/engine.h"

namespace mosaic::nccl {

namespace {

void* pointer(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

}  // namespace

// ── from the host

uint64_t Engine::post(uint32_t group, const Call& call, const std::string& label) {
  auto op = std::make_shared<Operation>();
  {
    const std::lock_guard lock(mutex_);
    op->member = members_.at(group);
  }
  op->signature = signatureOf(op->member->group, call);
  op->signature.label = label;
  op->plan = planOf(op->member->group, call);
  device_.enter(&device_);
  op->ready = marks_.take();
  check(driver().eventRecord(op->ready, options_.compute), "post");
  return enqueue(std::move(op));
}

uint64_t Engine::split(uint32_t group, int64_t color, const std::string& name, Told settled) {
  auto op = std::make_shared<Operation>();
  {
    const std::lock_guard lock(mutex_);
    op->member = members_.at(group);
  }
  Call call;
  call.op = OpKind::Split;
  op->signature = signatureOf(op->member->group, call);
  op->color = color;
  op->partName = name;
  op->settled = std::move(settled);
  return enqueue(std::move(op));
}

uint64_t Engine::enqueue(std::shared_ptr<Operation> op) {
  uint64_t number = 0;
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || closing_ || stop_) marks_.give(op->ready);
    if (failure_) throw Failure(static_cast<MosaicFailureCode>(failure_->code), failure_->message);
    if (closing_ || stop_) throw Failure(MOSAIC_FAILURE_CLOSED, "this rank has left its group");
    Member& member = *op->member;
    op->signature.sequence = ++member.sequence;
    op->signature.index = op->signature.op == OpKind::SendRecv ? 0 : ++member.index;
    number = op->number = ++posted_;
    queue_.push_back(std::move(op));
  }
  eventfd_write(wake_, 1);
  return number;
}

// ── on the communication thread

void Engine::launch(const std::shared_ptr<Operation>& op) {
  {
    const std::lock_guard lock(mutex_);
    op->state = Operation::State::Launching;
  }
  Writer posted(Frame::Post);
  write(posted, op->signature);
  hub_.send(std::move(posted));
  try {
    quiet(op->member->communicator, op->name());
    if (failed_) return;
    if (op->signature.op == OpKind::Split) return launchSplit(op);
    check(driver().streamWaitEvent(stream_, op->ready, 0), "launching");
    if (traces_.on()) {
      op->begin = times_.take();
      check(driver().eventRecord(op->begin, stream_), "launching");
    }
    uint64_t staging = 0;
    if (op->plan.stagingBytes > 0) {
      check(static_cast<CUresult>(device_.allocate(&device_, &staging, op->plan.stagingBytes, stream_)),
            "taking memory to receive into");
    }
    op->staging = staging;
    for (const Stage& stage : op->plan.stages) launchStage(*op, stage);
    if (staging) device_.release(&device_, staging, stream_);
    if (failed_) return;
    op->done = (op->begin ? times_ : marks_).take();
    check(driver().eventRecord(op->done, stream_), "launching");
    Member& member = *op->member;
    member.bytesSent += op->plan.payload.sent;
    member.bytesReceived += op->plan.payload.received;
    member.messagesSent += op->plan.payload.messages;
  } catch (const Failure& failure) {
    const std::string text = where(*op) + ": " + op->name() + ": " + failure.what();
    return fail({recordOf(failure.code(), text), recordOf(MOSAIC_FAILURE_PEER_LOST, text)});
  }
  const std::lock_guard lock(mutex_);
  op->state = Operation::State::Launched;
  launched_.notify_all();
}

void Engine::launchStage(Operation& op, const Stage& stage) {
  if (failed_) return;
  const Communicator& communicator = op.member->communicator;
  for (const Copy& copy : stage.copies) {
    check(driver().memcpyDtoDAsync(copy.to, copy.from, copy.bytes, stream_), "copying");
  }
  if (stage.whole) {
    const auto& [kind, in, out, bytes, root, staged] = *stage.whole;
    const uint64_t base = staged ? op.staging : 0;
    const Functions& nccl = library().functions;
    const ncclComm_t comm = communicator.get();
    check(kind == Whole::Kind::Gather
              ? nccl.allGather(pointer(base + in), pointer(base + out), bytes, kBytes, comm, stream_)
              : nccl.broadcast(pointer(in), pointer(out), bytes, kBytes, static_cast<int>(root), comm, stream_),
          communicator, nameOf(op.signature.op));
    quiet(communicator, nameOf(op.signature.op));
  }
  if (!stage.sends.empty() || !stage.receives.empty()) launchMessages(op, stage);
  if (stage.reduction && !failed_) {
    MosaicRankReduction reduction = *stage.reduction;
    reduction.others = op.staging;
    check(static_cast<CUresult>(device_.reduce(&device_, &reduction, stream_)), "reducing");
  }
}

/// One group: all move side by side, and none can wait for another.
void Engine::launchMessages(Operation& op, const Stage& stage) {
  const Functions& nccl = library().functions;
  const Communicator& communicator = op.member->communicator;
  const std::string where = nameOf(op.signature.op);
  ncclResult_t result = ncclSuccess;
  const auto note = [&](ncclResult_t code) {
    if (sound(result)) result = code;
  };
  nccl.groupStart();
  for (const Message& each : stage.sends) {
    note(nccl.send(pointer(each.at), each.bytes, kBytes, static_cast<int>(each.peer), communicator.get(), stream_));
  }
  for (const Message& each : stage.receives) {
    void* to = pointer(each.at + (each.staged ? op.staging : 0));
    note(nccl.recv(to, each.bytes, kBytes, static_cast<int>(each.peer), communicator.get(), stream_));
  }
  note(nccl.groupEnd());
  check(result, communicator, where);
  quiet(communicator, where);
}

/// Colors go round by the hub; then NCCL splits the communicator, and the new one is made ready.
void Engine::launchSplit(const std::shared_ptr<Operation>& op) {
  const std::pair<uint64_t, uint64_t> place{op->signature.group, op->signature.index};
  hub_.send(std::move(Writer(Frame::Color).value(place.first).value(place.second).value(op->color)));
  // NCCL may deadlock if it splits while the GPU still works for the whole.
  if (!until([&] { return colors_.contains(place) && head() == op; })) return;
  openPart(*op, colors_[place]);
  colors_.erase(place);
  if (failed_) return;
  {
    const std::lock_guard lock(mutex_);
    parts_[op->number] = static_cast<uint32_t>(members_.size());
    members_.push_back(op->part);
    op->state = Operation::State::Over;
    launched_.notify_all();
  }
  op->settled(nullptr);
}

void Engine::openPart(Operation& op, const std::vector<int64_t>& colors) {
  const Group& whole = op.member->group;
  op.part = std::make_shared<Member>();
  Group& part = op.part->group;
  part.id = nccl::partOf(whole.id, op.signature.index, op.color);
  part.name = op.partName;
  for (uint32_t rank = 0; rank < whole.size(); rank++) {
    if (colors.at(rank) != op.color) continue;
    if (rank == whole.rank) part.rank = part.size();
    part.ranks.push_back(whole.ranks[rank]);
  }
  // NCCL's colors are small and not negative.
  const std::set<int64_t> distinct(colors.begin(), colors.end());
  const auto color = static_cast<int>(std::distance(distinct.begin(), distinct.find(op.color)));
  Communicator& communicator = op.member->communicator;
  communicator.split(op.part->communicator, color, static_cast<int>(part.rank), options_.settings);
  // The part exists once the whole is ready again.
  quiet(communicator, "split");
  if (!failed_) quiet(op.part->communicator, "split");
  warmUp(*op.part);
}

}  // namespace mosaic::nccl
