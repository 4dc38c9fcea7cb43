#include "peers.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace mosaic {

uint64_t processStart(int pid) {
  char path[64], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", pid);
  FILE* file = std::fopen(path, "re");
  if (!file) return 0;
  const size_t length = std::fread(text, 1, sizeof text - 1, file);
  std::fclose(file);
  text[length] = 0;
  // The name in parentheses may hold spaces: the state is the field after it, the start time the 20th from there.
  char* field = std::strrchr(text, ')');
  if (!field || field[1] == 0 || field[2] == 'Z' || field[2] == 'X') return 0;
  field += 2;
  for (int i = 0; i < 19 && field; i++) field = std::strchr(field + 1, ' ');
  return field ? std::strtoull(field, nullptr, 10) : 0;
}

Peers::Peers(std::shared_ptr<Segment> segment, uint32_t rank)
    : segment_(std::move(segment)), pidfds_(segment_->size(), -1), dead_(segment_->size(), false) {
  for (uint32_t peer = 0; peer < segment_->size(); peer++) {
    const int pid = segment_->page(peer).pid.load();
    if (peer == rank || pid == getpid()) continue;
    pidfds_[peer] = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    // Between the rendezvous and here the process may have died and its pid been given to another; if it died before
    // rank 0 could tell when it began, that is 0 on both sides.
    const bool gone = pidfds_[peer] < 0 && errno == ESRCH;
    if (gone || processStart(pid) != segment_->page(peer).bornAt.load()) dead_[peer] = true;
  }
}

Peers::~Peers() {
  for (int fd : pidfds_) {
    if (fd >= 0) ::close(fd);
  }
}

bool Peers::ended(uint32_t rank) const {
  const ControlPage& page = segment_->page(rank);
  const int pid = page.pid.load();
  if (pid == getpid()) return false;
  if (pidfds_[rank] < 0) return processStart(pid) != page.bornAt.load();
  pollfd entry{pidfds_[rank], POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

void Peers::refresh() {
  for (uint32_t rank = 0; rank < segment_->size(); rank++) {
    if (dead_[rank] || left(rank) || !ended(rank)) continue;
    // It may have said goodbye just before it ended.
    dead_[rank] = !left(rank);
  }
}

}  // namespace mosaic
