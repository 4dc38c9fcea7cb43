// Which processes of the other ranks are alive. The kernel reports it: a pidfd becomes readable when its process ends.
#pragma once

#include <sys/types.h>

#include <vector>

namespace mosaic {

class Processes {
 public:
  /// By rank; this process needs no descriptor.
  explicit Processes(const std::vector<pid_t>& pids);
  ~Processes();
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  /// Whether the process of a rank has ended; a microsecond.
  bool ended(size_t rank) const;

 private:
  std::vector<int> pidfds_;  // kOwn: this process; kGone: it had ended; kUnknown: the system gives no pidfd
};

}  // namespace mosaic
