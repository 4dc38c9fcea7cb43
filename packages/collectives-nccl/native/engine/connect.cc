// How a rank comes to its communicator, and leaves it.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "mosaic/clock.h"
#include "engine/engine.h"

namespace mosaic::nccl {

namespace {

/// Ranks flush together; one that never comes must not hold up the others.
constexpr int64_t kFlushNs = 2'000'000'000;

std::string hostName() {
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

void Engine::connect() {
  connectBy_ = monotonicNs() + static_cast<int64_t>(options_.connectSeconds * 1e9);
  check(driver().streamCreate(&stream_, cuda::STREAM_NON_BLOCKING), "making a stream");
  meet();
  if (failed_) return;
  Member& world = *members_.front();
  world.communicator.begin(options_.size, options_.id, options_.rank, options_.settings);
  quiet(world.communicator, "connecting the ranks");
  warmUp(world);
}

void Engine::meet() {
  hub_ = Channel(connectTo(options_.host, options_.port, options_.connectSeconds));
  Writer hello(Frame::Hello);
  hello.text(options_.token).value(options_.rank).value(options_.size);
  hello.value(static_cast<uint32_t>(getpid())).text(hostName()).value(library().version);
  hub_.send(std::move(hello));
  until([&] { return welcome_; });
  connectBy_ = monotonicNs() + static_cast<int64_t>(options_.connectSeconds * 1e9);
}

/// Waits until NCCL has done what it was last told. An error is `trouble`'s, which asks the hub whose fault it is;
/// before there are operations, it is thrown.
void Engine::quiet(const Communicator& communicator, const std::string& where) {
  ncclResult_t state = ncclSuccess;
  until([&] {
    state = communicator.state();
    return connecting_ ? state != ncclInProgress : state == ncclSuccess;
  });
  if (!failed_) check(state, communicator, where);
}

/// A byte from each to each, and each operation once: connections that are made in the middle of a program could wait
/// for ranks that are busy elsewhere.
void Engine::warmUp(Member& member) {
  const uint32_t size = member.group.size(), rank = member.group.rank;
  if (failed_ || !options_.warmUp || size == 1) return;
  const Functions& nccl = library().functions;
  const ncclComm_t comm = member.communicator.get();
  const std::string where = "making connections";
  uint64_t memory = 0;
  check(static_cast<CUresult>(device_.allocate(&device_, &memory, 2 * size, stream_)), "taking memory");
  const auto at = [&](uint32_t i) { return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(memory)) + i; };
  nccl.groupStart();
  for (uint32_t peer = 0; peer < size; peer++) {
    if (peer == rank) continue;
    nccl.send(at(rank), 1, kBytes, static_cast<int>(peer), comm, stream_);
    nccl.recv(at(size + peer), 1, kBytes, static_cast<int>(peer), comm, stream_);
  }
  check(nccl.groupEnd(), member.communicator, where);
  quiet(member.communicator, where);
  if (!failed_) check(nccl.allGather(at(rank), at(0), 1, kBytes, comm, stream_), member.communicator, where);
  quiet(member.communicator, where);
  if (!failed_) check(nccl.broadcast(at(0), at(0), 1, kBytes, 0, comm, stream_), member.communicator, where);
  quiet(member.communicator, where);
  const CUevent done = marks_.take();
  check(driver().eventRecord(done, stream_), where.c_str());
  until([&] { return driver().eventQuery(done) != cuda::CUDA_ERROR_NOT_READY; });
  device_.release(&device_, memory, stream_);
  marks_.give(done);
}

void Engine::leave() {
  hub_.send(std::move(Writer(Frame::Goodbye).text(last_)));
  closeCommunicators();
  hub_.close();
  answerTraces();
  if (stream_) driver().streamDestroy(stream_);
  marks_.clear();
  times_.clear();
  std::function<void()> left;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    left = std::exchange(onLeft_, nullptr);
  }
  answerTraces();
  if (left) left();
}

/// Parts first. Together, for each flush may wait for the others', though not for those who died or failed.
void Engine::closeCommunicators() {
  const auto settling = [&](const std::shared_ptr<Member>& member) {
    const auto isGone = [&](uint32_t rank) { return gone_.contains(rank); };
    return member->communicator.open() && member->communicator.state() == ncclInProgress &&
           std::ranges::none_of(member->group.ranks, isGone);
  };
  const int64_t limit = monotonicNs() + (failed_ || stop_ ? 0 : kFlushNs);
  if (!failed_ && !stop_) {
    for (auto each = members_.rbegin(); each != members_.rend(); each++) (*each)->communicator.finalize();
  }
  while (std::ranges::any_of(members_, settling) && monotonicNs() < limit && !stop_) {
    listen();
    rest(100'000);
  }
  const bool isWell = !failed_ && !stop_;
  {
    AbortTogether together([this] { device_.enter(&device_); });
    for (const auto& member : members_) {
      Communicator& communicator = member->communicator;
      if (communicator.open() && (!isWell || communicator.state() != ncclSuccess)) together.add(communicator);
    }
  }
  // Giving back memory may wait for all of the GPU, so after those.
  for (auto each = members_.rbegin(); each != members_.rend(); each++) (*each)->communicator.destroy();
}

}  // namespace mosaic::nccl
