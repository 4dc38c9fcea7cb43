// Messages and checks that both control planes share.
#include "control/control_plane.h"

#include <algorithm>
#include <utility>

namespace mosaic {

std::string rankName(uint32_t rank) { return "rank " + std::to_string(rank); }

namespace {
constexpr const char* kSameCalls =
    "; all ranks of a group must call the same collectives in the same order, with the same shapes";
}  // namespace

std::string mismatchText(uint32_t a, std::string callOfA, uint32_t b, std::string callOfB) {
  if (a > b) {
    std::swap(a, b);
    std::swap(callOfA, callOfB);
  }
  return rankName(a) + " is at " + callOfA + ", " + rankName(b) + " at " + callOfB + kSameCalls;
}

std::string unloggedMismatchText(uint32_t a, uint32_t b) {
  return "ranks " + std::to_string(std::min(a, b)) + " and " + std::to_string(std::max(a, b)) +
         " diverged at a collective that is no longer in the call log" + kSameCalls;
}

std::string mismatchMessage(uint32_t a, const std::vector<CallRecord>& callsOfA, uint32_t b,
                            const std::vector<CallRecord>& callsOfB) {
  std::optional<std::string> lastEqualCall;
  for (const CallRecord& callOfA : callsOfA) {
    for (const CallRecord& callOfB : callsOfB) {
      if (callOfA.index != callOfB.index || callOfA.history == callOfB.history) continue;
      if (callOfA.description != callOfB.description)
        return mismatchText(a, callOfA.description, b, callOfB.description);
      // Calls that read the same after others that differed, or that differ in shares, which are not described.
      if (!lastEqualCall) lastEqualCall = mismatchText(a, callOfA.description, b, callOfB.description);
    }
  }
  return lastEqualCall ? *lastEqualCall : unloggedMismatchText(a, b);
}

std::string ControlPlane::processOf(uint32_t rank, const std::string& reason) const {
  const auto& all = members();
  if (rank >= all.size()) return rankName(rank);
  std::string text = rankName(rank) + " (pid " + std::to_string(all[rank].pid);
  if (hosts().size() > 1) text += " on " + hosts()[all[rank].host];
  if (!reason.empty()) text += "; " + reason;
  return text + ")";
}

void ControlPlane::checkValue(const std::string& key, const std::string& value) {
  if (key.size() <= kMaxTextBytes && value.size() <= kMaxValueBytes) return;
  throw Failure(MOSAIC_FAILURE_DEVICE, "connect: put(" + key.substr(0, 64) + "): expected a key of at most " +
                                           std::to_string(kMaxTextBytes) + " bytes and a value of at most " +
                                           std::to_string(kMaxValueBytes) + ", received " +
                                           std::to_string(key.size()) + " and " + std::to_string(value.size()));
}

}  // namespace mosaic
