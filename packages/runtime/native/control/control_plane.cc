// Messages and checks that are common to both control planes.
#include "control/control_plane.h"

#include <algorithm>
#include <utility>

namespace mosaic {

std::string rankName(uint32_t rank) { return "rank " + std::to_string(rank); }

namespace {
constexpr const char* kSameCallsHint =
    "; all ranks of a group must call the same collectives in the same order, with the same shapes";
}  // namespace

std::string mismatchText(uint32_t a, std::string callA, uint32_t b, std::string callB) {
  if (a > b) {
    std::swap(a, b);
    std::swap(callA, callB);
  }
  return rankName(a) + " is at " + callA + ", " + rankName(b) + " at " + callB + kSameCallsHint;
}

std::string unloggedMismatchText(uint32_t a, uint32_t b) {
  return "ranks " + std::to_string(std::min(a, b)) + " and " + std::to_string(std::max(a, b)) +
         " diverged at a collective that is no longer in the call log" + kSameCallsHint;
}

std::string mismatchMessage(uint32_t a, const std::vector<CallRecord>& callsA, uint32_t b,
                            const std::vector<CallRecord>& callsB) {
  std::optional<std::string> equalCallsText;
  for (const CallRecord& callA : callsA) {
    for (const CallRecord& callB : callsB) {
      if (callA.index != callB.index || callA.history == callB.history) continue;
      if (callA.description != callB.description) return mismatchText(a, callA.description, b, callB.description);
      // The descriptions are equal because earlier calls differed, or because the counts of allToAll differ, which are
      // not described.
      if (!equalCallsText) equalCallsText = mismatchText(a, callA.description, b, callB.description);
    }
  }
  return equalCallsText ? *equalCallsText : unloggedMismatchText(a, b);
}

std::string ControlPlane::describeProcess(uint32_t rank, const std::string& reason) const {
  const auto& allMembers = members();
  if (rank >= allMembers.size()) return rankName(rank);
  std::string text = rankName(rank) + " (pid " + std::to_string(allMembers[rank].pid);
  if (hosts().size() > 1) text += " on " + hosts()[allMembers[rank].host];
  if (!reason.empty()) text += "; " + reason;
  return text + ")";
}

void ControlPlane::throwIfValueTooLong(const std::string& key, const std::string& value) {
  if (key.size() <= kMaxTextBytes && value.size() <= kMaxValueBytes) return;
  throw Failure(MOSAIC_FAILURE_DEVICE, "connect: put(" + key.substr(0, 64) + "): expected a key of at most " +
                                           std::to_string(kMaxTextBytes) + " bytes and a value of at most " +
                                           std::to_string(kMaxValueBytes) + " bytes, received " +
                                           std::to_string(key.size()) + " and " + std::to_string(value.size()) +
                                           " bytes");
}

}  // namespace mosaic
