#include "hub/ledger.h"

#include <algorithm>
#include <tuple>

namespace mosaic::nccl {

namespace {

const char* const kSameCalls =
    "; all ranks of a group must call the same collectives in the same order, with the same shapes";

uint32_t placeOf(const std::vector<uint32_t>& ranks, uint32_t worldRank) {
  return static_cast<uint32_t>(std::find(ranks.begin(), ranks.end(), worldRank) - ranks.begin());
}

/// Whether two ranks of a group have called the same. `a` and `b` are their places in it.
bool agree(const Signature& x, uint32_t a, const Signature& y, uint32_t b) {
  const auto common = [](const Signature& s) { return std::tie(s.op, s.dtype, s.reduce, s.root, s.ragged); };
  if (common(x) != common(y)) return false;
  if (x.op == OpKind::AllToAll) return x.send.at(b) == y.receive.at(a) && y.send.at(a) == x.receive.at(b);
  return x.ragged ? x.send == y.send : x.shape == y.shape;
}

}  // namespace

std::vector<Verdict> Ledger::post(uint32_t rank, const Signature& signature) {
  std::vector<Verdict> verdicts;
  if (!groups_.contains(signature.group)) return verdicts;
  if (signature.op != OpKind::SendRecv) {
    collective(rank, signature, verdicts);
  } else {
    for (const Transfer& each : signature.transfers) transfer(rank, signature, each, verdicts);
  }
  return verdicts;
}

void Ledger::collective(uint32_t rank, const Signature& signature, std::vector<Verdict>& verdicts) {
  const auto& ranks = groups_[signature.group];
  const auto place = collectives_.try_emplace({signature.group, signature.index}).first;
  std::vector<Called>& called = place->second;
  for (const Called& other : called) {
    if (agree(other.signature, placeOf(ranks, other.rank), signature, placeOf(ranks, rank))) continue;
    const std::string& label = signature.label.empty() ? other.signature.label : signature.label;
    verdicts.push_back(mismatch(signature.group, {other.rank, descriptionOf(other.signature)},
                                {rank, descriptionOf(signature)}, label));
    break;
  }
  called.push_back({rank, signature});
  for (const uint32_t member : ranks) {
    const auto came = [&](const Called& each) { return each.rank == member; };
    if (!left_.contains(member) || std::any_of(called.begin(), called.end(), came)) continue;
    verdicts.push_back({{rank}, signature.group, "", signature.sequence, member});
  }
  if (called.size() == ranks.size()) collectives_.erase(place);
}

void Ledger::transfer(uint32_t rank, const Signature& signature, const Transfer& transfer,
                      std::vector<Verdict>& verdicts) {
  const auto& ranks = groups_[signature.group];
  if (transfer.peer >= ranks.size() || ranks[transfer.peer] == rank) return;
  const uint32_t peer = ranks[transfer.peer];
  const Pair pair = transfer.send ? Pair{signature.group, rank, peer} : Pair{signature.group, peer, rank};
  std::deque<Half>& waiting = halves_[pair];
  const std::string description = descriptionOf(signature, transfer);
  if (waiting.empty() || waiting.front().send == transfer.send) {
    const auto& [send, place, data, dtype, shape] = transfer;
    waiting.push_back({send, signature.sequence, dtype, shape, description, signature.label});
    if (left_.contains(peer)) verdicts.push_back({{rank}, signature.group, "", signature.sequence, peer});
    return;
  }
  const Half other = std::move(waiting.front());
  waiting.pop_front();
  if (waiting.empty()) halves_.erase(pair);
  if (other.dtype == transfer.dtype && other.shape == transfer.shape) return;
  const std::string& label = signature.label.empty() ? other.label : signature.label;
  verdicts.push_back(mismatch(signature.group, {peer, other.description}, {rank, description}, label));
}

Verdict Ledger::mismatch(uint64_t group, const std::pair<uint32_t, std::string>& a,
                         const std::pair<uint32_t, std::string>& b, const std::string& label) const {
  const auto& [first, second] = std::minmax(a, b);
  const std::string message = (label.empty() ? "" : label + ": ") + "rank " + std::to_string(first.first) + " is at " +
                              first.second + ", rank " + std::to_string(second.first) + " at " + second.second;
  return {groups_.at(group), group, message + kSameCalls, 0, 0};
}

std::vector<Verdict> Ledger::leave(uint32_t rank) {
  std::vector<Verdict> verdicts;
  left_.insert(rank);
  for (const auto& [place, called] : collectives_) {
    const auto& ranks = groups_[place.first];
    const auto came = [&](const Called& each) { return each.rank == rank; };
    if (placeOf(ranks, rank) == ranks.size() || std::any_of(called.begin(), called.end(), came)) continue;
    for (const Called& each : called) {
      verdicts.push_back({{each.rank}, place.first, "", each.signature.sequence, rank});
    }
  }
  for (const auto& [pair, waiting] : halves_) {
    if (waiting.empty()) continue;
    const uint32_t waits = waiting.front().send ? pair.from : pair.to;
    const uint32_t awaited = waiting.front().send ? pair.to : pair.from;
    if (awaited == rank) verdicts.push_back({{waits}, pair.group, "", waiting.front().sequence, rank});
  }
  return verdicts;
}

}  // namespace mosaic::nccl
