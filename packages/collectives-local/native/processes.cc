#include "processes.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

namespace mosaic {

namespace {

constexpr int kOwn = -1, kGone = -2, kUnknown = -3;

int pidfdOf(pid_t pid) {
  if (pid == getpid()) return kOwn;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) return fd;
  // Without pidfds (a sandbox that forbids them) only the control plane observes that a process ends.
  return errno == ESRCH ? kGone : kUnknown;
}

}  // namespace

Processes::Processes(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) pidfds_.push_back(pidfdOf(pid));
}

Processes::~Processes() {
  for (const int fd : pidfds_) {
    if (fd >= 0) ::close(fd);
  }
}

bool Processes::ended(size_t rank) const {
  const int fd = pidfds_[rank];
  if (fd < 0) return fd == kGone;
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace mosaic
