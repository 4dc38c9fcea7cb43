#include "report.h"

namespace mosaic {

namespace {

constexpr uint32_t kMostListed = 16;

std::string rankName(uint32_t rank) { return "rank " + std::to_string(rank); }

std::string prefix(const Operation& op) { return op.label.empty() ? "" : op.label + ": "; }

std::string process(const Segment& segment, uint32_t rank) {
  return rankName(rank) + " (pid " + std::to_string(segment.page(rank).pid.load()) + ")";
}

std::string nameOf(const Position& position) { return nameOf(position.op, position.sequence, position.groupName); }

/// What follows `after`, for a rank that has perhaps done nothing yet.
std::string lastOf(const Position& position) {
  return position.sequence == 0 ? "before its first operation" : "after " + nameOf(position);
}

std::string whereabouts(const Operation& op, const Segment& segment, uint32_t rank, const Peers& peers) {
  const ControlPage& page = segment.page(rank);
  const Position at = page.position.load();
  if (peers.left(rank)) return rankName(rank) + " left " + lastOf(at);
  if (peers.dead(rank)) return process(segment, rank) + " died";
  if (at.activity == Activity::Running) {
    const bool here = at.group == op.group->id && at.sequence == op.signature.sequence && at.op == op.signature.op;
    return rankName(rank) + (here ? " waits in it too" : " is at " + nameOf(at));
  }
  if (page.posted.load() > page.completed.load()) return rankName(rank) + " is computing";
  return rankName(rank) + " has called nothing " + (at.sequence == 0 ? "yet" : "since " + nameOf(at));
}

const char* const kSameCalls =
    "; all ranks of a group must call the same collectives in the same order, with the same shapes";

}  // namespace

MosaicFailure mismatchFailure(const Operation& op, uint32_t rank, const Mismatch& mismatch, const Position& peer) {
  const Signature& received = mismatch.received;
  const std::string group = received.group == op.group->id ? op.group->name
                            : received.group == peer.group ? peer.groupName
                                                           : "another group";
  const std::string here = rankName(rank) + " is at " + nameOf(mismatch.expected, op.group->name);
  const std::string there = rankName(mismatch.peer) + " at " + nameOf(received, group);
  return recordOf(MOSAIC_FAILURE_MISMATCH, prefix(op) + here + ", " + there + kSameCalls);
}

MosaicFailure divergenceFailure(const Operation& op, uint32_t rank, uint32_t peer, const Position& position) {
  const std::string here = rankName(rank) + " called " + op.name();
  const std::string there = rankName(peer) + " called " + nameOf(position);
  return recordOf(MOSAIC_FAILURE_MISMATCH, prefix(op) + here + ", " + there + kSameCalls);
}

MosaicFailure timeoutFailure(const Operation& op, const Segment& segment, uint32_t rank, const Peers& peers,
                             double seconds) {
  char limit[32];
  std::snprintf(limit, sizeof limit, "%g s", seconds);
  std::string text = prefix(op) + "no end within " + limit + ": " + rankName(rank) + " waits in " + op.name();
  uint32_t listed = 0;
  for (const uint32_t peer : op.group->ranks) {
    if (peer == rank) continue;
    if (listed++ == kMostListed) {
      text += "; …";
      break;
    }
    text += "; " + whereabouts(op, segment, peer, peers);
  }
  return recordOf(MOSAIC_FAILURE_TIMEOUT, text);
}

MosaicFailure peerLostFailure(const Operation& op, const Segment& segment, uint32_t rank, uint32_t peer, bool died) {
  // A rank that failed and then ended is missed for what made it fail. It says so before it goes.
  if (segment.page(peer).failed.load()) return adoptedFailure(segment, peer);
  const Position at = segment.page(peer).position.load();
  const std::string what = died ? process(segment, peer) + " died" : rankName(peer) + " left " + lastOf(at);
  const std::string need = rankName(rank) + " needed it in " + op.name();
  return recordOf(MOSAIC_FAILURE_PEER_LOST, prefix(op) + what + "; " + need);
}

MosaicFailure adoptedFailure(const Segment& segment, uint32_t peer) { return segment.page(peer).failure; }

}  // namespace mosaic
