// Detects whether the processes of other ranks have ended. A pidfd becomes readable when its process ends.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace mosaic {

inline constexpr int kOwnProcess = -1, kExitedProcess = -2, kUnknownProcess = -3;

inline int openPidfd(pid_t pid) {
  if (pid == getpid()) return kOwnProcess;
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd >= 0) return fd;
  // If pidfds are not available, for example in a sandbox, only the control plane observes that a process ends.
  return errno == ESRCH ? kExitedProcess : kUnknownProcess;
}

class PeerProcesses {
 public:
  /// `pids` is by rank. This process needs no descriptor.
  explicit PeerProcesses(const std::vector<pid_t>& pids);
  ~PeerProcesses();
  PeerProcesses(const PeerProcesses&) = delete;
  PeerProcesses& operator=(const PeerProcesses&) = delete;

  /// Whether the process of a rank has ended. Takes about a microsecond.
  bool hasExited(size_t rank) const;

 private:
  /// kOwnProcess: this process; kExitedProcess: it had ended before; kUnknownProcess: no pidfd is available.
  std::vector<int> pidfds_;
};

inline PeerProcesses::PeerProcesses(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) pidfds_.push_back(openPidfd(pid));
}

inline PeerProcesses::~PeerProcesses() {
  for (const int fd : pidfds_) {
    if (fd >= 0) ::close(fd);
  }
}

inline bool PeerProcesses::hasExited(size_t rank) const {
  const int fd = pidfds_[rank];
  if (fd < 0) return fd == kExitedProcess;
  pollfd entry{fd, POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace mosaic
