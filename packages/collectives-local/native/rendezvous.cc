#include "rendezvous.h"

#include <mosaic/clock.h>
#include <mosaic/failure.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "peers.h"

namespace mosaic {

namespace {

constexpr uint32_t kMagic = 0x4d6f5231;  // "MoR1": changes with the protocol
constexpr int64_t kPollNs = 50'000'000;

struct Hello {
  uint32_t magic, rank, size;
};

/// Sent with the descriptor of the segment when `code` is 0.
struct Welcome {
  uint32_t magic;
  int32_t code;
  char text[480];
};

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) ::close(fd_);
  }
  operator int() const { return fd_; }

 private:
  int fd_;
};

struct Address {
  sockaddr_un un{};
  socklen_t length;

  explicit Address(const std::string& name) {
    un.sun_family = AF_UNIX;
    const std::string path = "mosaic-" + std::to_string(getuid()) + "-" + name;
    const size_t count = std::min(path.size(), sizeof un.sun_path - 1);
    std::memcpy(un.sun_path + 1, path.data(), count);  // the leading zero makes it abstract
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + count);
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&un); }
};

class Clock {
 public:
  explicit Clock(const Rendezvous& options) : options_(options), deadline_(monotonicNs() + options.timeoutNs) {}
  bool over() const { return *options_.cancelled || monotonicNs() >= deadline_; }
  int pollMs() const {
    return static_cast<int>(std::clamp<int64_t>(deadline_ - monotonicNs(), 0, kPollNs) / 1'000'000);
  }
  /// As much time again: for an answer that is sure to come.
  void extend() { deadline_ += options_.timeoutNs; }
  std::string limit() const {
    char text[32];
    std::snprintf(text, sizeof text, "%g s", static_cast<double>(options_.timeoutNs) * 1e-9);
    return text;
  }

 private:
  const Rendezvous& options_;
  int64_t deadline_;
};

[[noreturn]] void fail(MosaicFailureCode code, const std::string& text) {
  throw Failure(code, "connect: " + text);
}

Fd newSocket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) fail(MOSAIC_FAILURE_DEVICE, std::string("cannot make a socket: ") + std::strerror(errno));
  return fd;
}

ucred credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) peer.uid = static_cast<uid_t>(-1);
  return peer;
}

/// Waits until there is something to read, or time is up.
bool readable(int fd, const Clock& clock) {
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, clock.pollMs()) > 0;
}

void sendWelcome(int to, int32_t code, const std::string& text, int fd = -1) {
  Welcome welcome{kMagic, code, {}};
  std::snprintf(welcome.text, sizeof welcome.text, "%s", text.c_str());
  iovec part{&welcome, sizeof welcome};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  }
  // Whoever died meanwhile is found dead by all others.
  if (sendmsg(to, &message, MSG_NOSIGNAL) < 0) return;
}

/// Rank 0's side.
class Host {
 public:
  Host(const Rendezvous& options, const Clock& clock) : options_(options), clock_(clock) {}

  std::shared_ptr<Segment> gather() {
    listen();
    while (joined_.size() + 1 < options_.size) {
      if (clock_.over()) giveUp();
      poll();
    }
    auto segment = Segment::create(options_.size);
    introduce(*segment, 0, getpid());
    for (const auto& [rank, guest] : joined_) introduce(*segment, rank, guest.pid);
    // First the name goes, so that whoever is welcome may meet under it again.
    listener_ = Fd();
    for (const auto& [rank, guest] : joined_) sendWelcome(guest.fd, 0, "", segment->fd());
    segment->closeFd();
    return segment;
  }

 private:
  struct Guest {
    Fd fd;
    pid_t pid;
  };

  void listen() {
    const Address address(options_.name);
    for (;;) {
      Fd fd = newSocket();
      if (bind(fd, address.get(), address.length) == 0 && ::listen(fd, static_cast<int>(options_.size)) == 0) {
        listener_ = std::move(fd);
        return;
      }
      const std::string why = std::strerror(errno);
      if (errno != EADDRINUSE) fail(MOSAIC_FAILURE_DEVICE, "rank 0 cannot listen: " + why);
      if (clock_.over()) {
        fail(MOSAIC_FAILURE_MISMATCH, "another rank 0 of this job listens already; give each job its own MASTER_PORT");
      }
      ::poll(nullptr, 0, 10);
    }
  }

  void poll() {
    std::vector<pollfd> entries{{listener_, POLLIN, 0}};
    std::vector<uint32_t> ranks;
    for (const auto& [rank, guest] : joined_) {
      entries.push_back({guest.fd, POLLIN, 0});
      ranks.push_back(rank);
    }
    if (::poll(entries.data(), entries.size(), clock_.pollMs()) <= 0) return;
    // A guest says nothing while it waits: anything to read is its end.
    for (size_t i = 0; i < ranks.size(); i++) {
      if (entries[i + 1].revents) joined_.erase(ranks[i]);
    }
    if (entries[0].revents) admit();
  }

  void admit() {
    Fd fd(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) return;
    const ucred peer = credentials(fd);
    Hello hello{};
    // The hello is on its way when the connection is made: nobody may keep the others waiting.
    pollfd entry{fd, POLLIN, 0};
    if (peer.uid != getuid() || ::poll(&entry, 1, 1000) <= 0) return;
    if (recv(fd, &hello, sizeof hello, 0) != sizeof hello || hello.magic != kMagic) {
      return sendWelcome(fd, MOSAIC_FAILURE_MISMATCH, "rank 0 runs another version of Mosaic");
    }
    const std::string rank = "rank " + std::to_string(hello.rank);
    if (hello.size != options_.size || hello.rank == 0 || hello.rank >= options_.size) {
      return sendWelcome(fd, MOSAIC_FAILURE_MISMATCH,
                         rank + " of " + std::to_string(hello.size) + " met rank 0 of " +
                             std::to_string(options_.size) + "; WORLD_SIZE must agree on all ranks");
    }
    if (const auto it = joined_.find(hello.rank); it != joined_.end()) {
      return sendWelcome(fd, MOSAIC_FAILURE_MISMATCH,
                         rank + " is there already (pid " + std::to_string(it->second.pid) +
                             "); RANK must differ on all ranks");
    }
    joined_.emplace(hello.rank, Guest{std::move(fd), peer.pid});
  }

  static void introduce(const Segment& segment, uint32_t rank, pid_t pid) {
    segment.page(rank).pid = pid;
    segment.page(rank).bornAt = processStart(pid);
  }

  [[noreturn]] void giveUp() {
    std::string missing;
    for (uint32_t rank = 1; rank < options_.size; rank++) {
      if (!joined_.contains(rank)) missing += (missing.empty() ? "" : ", ") + std::to_string(rank);
    }
    const bool one = missing.find(',') == std::string::npos;
    const std::string text = (one ? "rank " : "ranks ") + missing + " of " + std::to_string(options_.size) +
                             " did not come within " + clock_.limit() + "; look at their output for why";
    for (const auto& [rank, guest] : joined_) sendWelcome(guest.fd, MOSAIC_FAILURE_TIMEOUT, text);
    fail(*options_.cancelled ? MOSAIC_FAILURE_CLOSED : MOSAIC_FAILURE_TIMEOUT, text);
  }

  const Rendezvous& options_;
  const Clock& clock_;
  Fd listener_;
  std::map<uint32_t, Guest> joined_;
};

/// Connects and says hello; an invalid descriptor when nobody listens yet.
Fd knock(const Rendezvous& options) {
  const Address address(options.name);
  Fd fd = newSocket();
  if (connect(fd, address.get(), address.length) != 0) return Fd();
  if (credentials(fd).uid != getuid()) fail(MOSAIC_FAILURE_MISMATCH, "another user listens in place of rank 0");
  const Hello hello{kMagic, options.rank, options.size};
  return send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello ? std::move(fd) : Fd();
}

/// The segment, or nothing when rank 0 hung up.
std::shared_ptr<Segment> receiveSegment(int from, const Rendezvous& options) {
  Welcome welcome{};
  iovec part{&welcome, sizeof welcome};
  int fd = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(from, &message, MSG_CMSG_CLOEXEC) != sizeof welcome || welcome.magic != kMagic) return nullptr;
  welcome.text[sizeof welcome.text - 1] = 0;
  if (welcome.code != 0) fail(static_cast<MosaicFailureCode>(welcome.code), welcome.text);
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (!header || header->cmsg_type != SCM_RIGHTS) return nullptr;
  std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  auto segment = Segment::open(fd, options.size);
  segment->closeFd();
  return segment;
}

std::shared_ptr<Segment> join(const Rendezvous& options, Clock& clock) {
  Fd host;
  bool patient = false;
  while (!clock.over()) {
    if (host < 0) host = knock(options);
    if (host >= 0 && !std::exchange(patient, true)) {
      // Rank 0 knows who is missing, and says so when its own patience ends, which began later perhaps.
      clock.extend();
    }
    if (host < 0) {
      poll(nullptr, 0, 10);
    } else if (readable(host, clock)) {
      if (auto segment = receiveSegment(host, options)) return segment;
      host = Fd();  // rank 0 is gone; perhaps another comes
    }
  }
  if (*options.cancelled) fail(MOSAIC_FAILURE_CLOSED, "the process ends");
  if (host >= 0) fail(MOSAIC_FAILURE_TIMEOUT, "some rank did not come within " + clock.limit());
  fail(MOSAIC_FAILURE_TIMEOUT, "rank 0 did not come within " + clock.limit() +
                                   "; look at its output for why, and check that MASTER_ADDR, MASTER_PORT and "
                                   "MOSAIC_RUN_ID agree on all ranks");
}

}  // namespace

std::shared_ptr<Segment> meet(const Rendezvous& options) {
  Clock clock(options);
  return options.rank == 0 ? Host(options, clock).gather() : join(options, clock);
}

}  // namespace mosaic
