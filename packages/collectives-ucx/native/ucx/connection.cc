#include "ucx/connection.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "mosaic/clock.h"
#include "mosaic/failure.h"

namespace mosaic::ucx {

namespace {

constexpr unsigned kJobBits = 29, kRankBits = 12, kNumberBits = 20;
static_assert(kMaxRanks == 1u << kRankBits);
constexpr ucp_tag_t kFullTagMask = ~ucp_tag_t{0};

constexpr const char* kJobKey = "ucx/job";
/// Time for which a closing rank waits for ranks that do not respond.
constexpr int64_t kCloseTimeoutNs = 2'000'000'000, kPollIntervalNs = 100'000'000;
constexpr size_t kMaxAddressBytes = 65'536, kMaxListedRanks = 16;

std::string makeAddressKey(uint32_t rank) { return "ucx/address/" + std::to_string(rank); }
std::string formatRank(uint32_t rank) { return "rank " + std::to_string(rank); }

uint64_t drawJobId() {
  uint64_t job = 0;
  if (getrandom(&job, sizeof job, 0) != sizeof job) job = static_cast<uint64_t>(monotonicNs());
  return job;
}

std::string getBootstrapValue(MosaicBootstrap& bootstrap, const std::string& key) {
  std::string value(kMaxAddressBytes, '\0');
  uint64_t bytes = 0;
  MosaicFailure failure{};
  if (bootstrap.get(&bootstrap, key.c_str(), value.data(), value.size(), &bytes, &failure) != 0) throw Failure(failure);
  value.resize(std::min<uint64_t>(bytes, value.size()));
  return value;
}

/// Numbers must differ only among messages between two ranks that are in flight at the same time.
ucp_tag_t makeTag(MessageKind kind, uint64_t job, uint32_t sender, uint64_t number) {
  ucp_tag_t tag = static_cast<uint64_t>(kind);
  tag = tag << kJobBits | (job & ((uint64_t{1} << kJobBits) - 1));
  tag = tag << kRankBits | sender;
  return tag << kNumberBits | (number & ((uint64_t{1} << kNumberBits) - 1));
}

ucp_request_param_t makeRequestParam(Request& request) {
  ucp_request_param_t param{};
  param.op_attr_mask = kOpCallback | kOpUserData;
  param.user_data = &request;
  return param;
}

void completeRequest(void* handle, ucs_status_t status, Request& request) {
  library().functions.requestFree(handle);
  request.onComplete(request, status);
}

/// UCX calls no callback for a request that completes or fails immediately.
void completeIfImmediate(ucs_status_ptr_t handle, Request& request) {
  if (handle == nullptr) request.onComplete(request, UCS_OK);
  else if (isError(handle)) request.onComplete(request, toStatus(handle));
}

}  // namespace

// ── connecting

void Connection::connect(MosaicBootstrap& bootstrap) {
  if (bootstrap.size > kMaxRanks) {
    throw Failure(MOSAIC_FAILURE_MISMATCH, "connect: the UCX transport supports at most " + std::to_string(kMaxRanks) +
                                               " ranks, received " + std::to_string(bootstrap.size));
  }
  rank_ = bootstrap.rank;
  peers_.resize(bootstrap.size);
  for (uint32_t rank = 0; rank < bootstrap.size; rank++) peers_[rank].rank = rank;
  const uint32_t* const hosts = bootstrap.hosts;
  const auto ranksOnHost = std::count(hosts, hosts + bootstrap.size, hosts[rank_]);
  if (ranksOnHost == bootstrap.size) return;
  worker_ = std::make_unique<Worker>(settings_, bootstrap.size - static_cast<uint32_t>(ranksOnHost));
  openEndpoints(bootstrap);
  exchangeNotices(bootstrap);
}

void Connection::openEndpoints(MosaicBootstrap& bootstrap) {
  const auto put = [&](const std::string& key, const void* data, size_t bytes) {
    MosaicFailure failure{};
    if (bootstrap.put(&bootstrap, key.c_str(), data, bytes, &failure) != 0) throw Failure(failure);
  };
  if (rank_ == 0) {
    const uint64_t job = drawJobId();
    put(kJobKey, &job, sizeof job);
  }
  const std::string ownAddress = worker_->address();
  put(makeAddressKey(rank_), ownAddress.data(), ownAddress.size());
  const std::string job = getBootstrapValue(bootstrap, kJobKey);
  std::copy_n(job.data(), std::min(job.size(), sizeof jobId_), reinterpret_cast<char*>(&jobId_));
  for (uint32_t i = 1; i < bootstrap.size; i++) {
    Peer& peer = peers_[(rank_ + i) % bootstrap.size];
    if (bootstrap.hosts[peer.rank] == bootstrap.hosts[rank_]) continue;
    const auto onError = [](void* arg, ucp_ep_h, ucs_status_t) { static_cast<Peer*>(arg)->isLost = true; };
    peer.endpoint = worker_->createEndpoint(getBootstrapValue(bootstrap, makeAddressKey(peer.rank)), {onError, &peer});
    if (peer.endpoint) continue;
    throw Failure(MOSAIC_FAILURE_DEVICE,
                  "connect: " + formatRank(rank_) + ": UCX found no network" +
                      (settings_.network.empty() ? "" : " \"" + settings_.network + "\"") + " that reaches " +
                      formatRank(peer.rank) +
                      "; select a network of both hosts with ucx({ network }) "
                      "(`ucx_info -d` lists the available devices); mount a separate /sys in each "
                      "container or network namespace");
  }
}

/// Exchanges one message with each rank, and posts the receives for closing.
void Connection::exchangeNotices(MosaicBootstrap& bootstrap) {
  const auto onReceived = [](Request& request, ucs_status_t status) {
    auto& notice = static_cast<Notice&>(request);
    if (status == UCS_OK) notice.connection->onNotice(notice);
  };
  for (Peer& peer : peers_) {
    if (!peer.endpoint) continue;
    for (const MessageKind kind : {MessageKind::Connect, MessageKind::Close, MessageKind::CloseReceived}) {
      Notice& notice = peer.receivedNotices[static_cast<size_t>(kind) - static_cast<size_t>(MessageKind::Connect)];
      notice.connection = this;
      notice.peer = &peer;
      notice.kind = kind;
      notice.onComplete = onReceived;
      receive(peer.rank, kind, 0, &notice.value, sizeof notice.value, notice);
    }
  }
  for (Peer& peer : peers_) {
    if (peer.endpoint) sendNotice(peer, MessageKind::Connect, 0);
  }
  const auto isUnconnected = [](const Peer& peer) { return peer.endpoint && !peer.isConnected; };
  const bool isCompleted = progressUntil(monotonicNs() + bootstrap.timeout, [&] {
    if (bootstrap.interrupted(&bootstrap)) return true;
    const auto hasRefused = [&](const Peer& peer) { return isUnconnected(peer) && peer.isLost; };
    if (std::any_of(peers_.begin(), peers_.end(), hasRefused)) return true;
    return unsentNoticeCount_ == 0 && std::none_of(peers_.begin(), peers_.end(), isUnconnected);
  });
  std::string unconnectedRanksText;
  size_t unconnectedCount = 0;
  for (const Peer& peer : peers_) {
    if (!isUnconnected(peer) || unconnectedCount++ == kMaxListedRanks) continue;
    unconnectedRanksText +=
        (unconnectedRanksText.empty() ? "" : ", ") + formatRank(peer.rank) + (peer.isLost ? " (refused)" : "");
  }
  if (unconnectedRanksText.empty()) return;
  const std::string problem = isCompleted
                                  ? "cannot connect to "
                                  : "timed out after " + formatSeconds(bootstrap.timeout) + " while connecting to ";
  throw Failure(isCompleted ? MOSAIC_FAILURE_PEER_LOST : MOSAIC_FAILURE_TIMEOUT,
                "connect: " + formatRank(rank_) + ": UCX " + problem + unconnectedRanksText +
                    "; if there is a firewall between the hosts, set a TCP port range with ucx({ ports }) and open it");
}

void Connection::sendNotice(Peer& peer, MessageKind kind, uint64_t value) {
  Notice& notice = peer.sentNotices[static_cast<size_t>(kind) - static_cast<size_t>(MessageKind::Connect)];
  notice.connection = this;
  notice.value = value;
  notice.onComplete = [](Request& request, ucs_status_t) {
    static_cast<Notice&>(request).connection->unsentNoticeCount_--;
  };
  unsentNoticeCount_++;
  send(peer.rank, kind, 0, &notice.value, sizeof notice.value, notice);
}

void Connection::onNotice(Notice& notice) {
  Peer& peer = *notice.peer;
  hasProgressed_ = true;
  if (notice.kind == MessageKind::Connect) {
    peer.isConnected = true;
  } else if (notice.kind == MessageKind::Close) {
    peer.messageCountAtClose = notice.value;
    hasClosedPeers_ = true;
    sendNotice(peer, MessageKind::CloseReceived, 0);
  } else {
    peer.hasReceivedClose = true;
  }
}

// ── messages

void Connection::send(uint32_t peer, MessageKind kind, uint64_t number, const void* data, size_t bytes,
                      Request& request) {
  ucp_request_param_t param = makeRequestParam(request);
  param.cb.send = [](void* handle, ucs_status_t status, void* arg) {
    completeRequest(handle, status, *static_cast<Request*>(arg));
  };
  const ucp_tag_t tag = makeTag(kind, jobId_, rank_, number);
  completeIfImmediate(library().functions.tagSend(peers_[peer].endpoint, data, bytes, tag, &param), request);
}

void Connection::receive(uint32_t peer, MessageKind kind, uint64_t number, void* data, size_t bytes, Request& request) {
  ucp_request_param_t param = makeRequestParam(request);
  param.cb.recv = [](void* handle, ucs_status_t status, const ucp_tag_recv_info_t*, void* arg) {
    completeRequest(handle, status, *static_cast<Request*>(arg));
  };
  const ucp_tag_t tag = makeTag(kind, jobId_, peer, number);
  completeIfImmediate(library().functions.tagReceive(worker_->handle(), data, bytes, tag, kFullTagMask, &param),
                      request);
}

bool Connection::progress() {
  if (!worker_ || isAbandoned_) return false;
  hasProgressed_ |= worker_->progress();
  return std::exchange(hasProgressed_, false);
}

// ── waiting

/// Sleeps until UCX has work to progress, `extraFd` is readable, the time has passed, or `interrupt` is called.
/// Progresses UCX if it woke for that. Returns false, without sleeping, if UCX already had work.
bool Connection::sleep(int64_t nanoseconds, int extraFd) {
  pollfd polled[3] = {{wakeEvent_.fd(), POLLIN, 0}, {-1, POLLIN, 0}, {extraFd, POLLIN, 0}};
  const bool hasActiveWorker = worker_ && !isAbandoned_;
  if (hasActiveWorker && !worker_->arm()) return false;
  if (hasActiveWorker) polled[1].fd = worker_->fd();
  const timespec timeout{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  // The descriptor stays readable until UCX is progressed, and a rank that is in no collective progresses it only here.
  if (ppoll(polled, 3, &timeout, nullptr) > 0 && polled[1].revents != 0) hasProgressed_ |= worker_->progress();
  return true;
}

void Connection::wait(int64_t nanoseconds, int (*ready)(void*), void* arg, int extraFd) {
  wakeEvent_.reset();
  while (!ready(arg) && !sleep(nanoseconds, extraFd)) hasProgressed_ |= worker_->progress();
}

/// Progresses UCX until a condition is met. Returns false if the time `deadline` passes first.
template <typename Condition>
bool Connection::progressUntil(int64_t deadline, Condition condition) {
  for (;;) {
    wakeEvent_.reset();
    while (progress()) continue;
    if (condition()) return true;
    const int64_t now = monotonicNs();
    if (now >= deadline) return false;
    sleep(std::min(deadline - now, kPollIntervalNs));
  }
}

// ── closing

void Connection::close(const std::vector<uint64_t>& sentMessageCounts) {
  if (!worker_ || isAbandoned_) return;
  const auto isCloseExpected = [](const Peer& peer) {
    return peer.endpoint && !peer.isLost && !peer.messageCountAtClose && !peer.hasReceivedClose;
  };
  for (Peer& peer : peers_) {
    if (isCloseExpected(peer)) sendNotice(peer, MessageKind::Close, sentMessageCounts[peer.rank]);
  }
  const bool isDone = progressUntil(monotonicNs() + kCloseTimeoutNs, [&] {
    return unsentNoticeCount_ == 0 && std::none_of(peers_.begin(), peers_.end(), isCloseExpected);
  });
  if (!isDone) return abandon();
  worker_.reset();
}

}  // namespace mosaic::ucx
