#include "standin/work.h"

#include <ctime>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <set>

namespace standin {

bool Move::step() {
  bool any = false;
  constexpr uint64_t kHead = sizeof announcement;
  auto* head = reinterpret_cast<uint8_t*>(announcement);
  if (announced < kHead) {
    if (send) {
      announcement[0] = static_cast<uint64_t>(kind);
      announcement[1] = bytes;
    }
    const uint64_t left = kHead - announced;
    const uint64_t n = send ? lane->put(head + announced, left) : lane->take(head + announced, left);
    announced += n;
    any = n > 0;
    if (announced < kHead) return any;
  }
  if (announcement[0] != static_cast<uint64_t>(kind) || announcement[1] != bytes) return any;
  while (moved < bytes) {
    const uint64_t n = send ? lane->put(data + moved, bytes - moved) : lane->take(data + moved, bytes - moved);
    if (n == 0) break;
    moved += n;
    any = true;
  }
  return any;
}

void Work::run(const std::atomic<bool>& stopped) {
  for (const LocalCopy& copy : copies) std::memmove(copy.to, copy.from, copy.bytes);
  for (int idle = 0; !stopped;) {
    bool any = false, all = true;
    std::set<const Lane*> busy;  // an earlier message of the lane is not through
    for (Move& move : moves) {
      if (move.done() || !busy.insert(move.lane).second) continue;
      any = move.step() || any;
      if (move.done()) busy.erase(move.lane);
      all = all && move.done();
    }
    all = all && std::all_of(moves.begin(), moves.end(), [](const Move& move) { return move.done(); });
    if (all) return;
    idle = any ? 0 : idle + 1;
    if (idle > 0 && idle < 50) sched_yield();
    else if (idle >= 50) {
      const timespec nap{0, 50'000};
      nanosleep(&nap, nullptr);
    }
  }
}

}  // namespace standin
