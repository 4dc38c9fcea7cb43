// What all ranks have called, compared as they call it: mistakes are found by what was said, not guessed from silence.
#pragma once

#include <deque>
#include <map>
#include <set>

#include "call.h"

namespace mosaic::nccl {

/// Something that the ranks in `to` must hear.
struct Verdict {
  std::vector<uint32_t> to;  // world ranks
  uint64_t group = 0;
  /// Mismatch: what it is. Empty: `left` is gone, and operation `sequence` of that group needs it.
  std::string message;
  uint64_t sequence = 0;
  uint32_t left = 0;
};

class Ledger {
 public:
  /// The ranks of a group, by world rank. Before anybody calls anything in it.
  void addGroup(uint64_t id, std::vector<uint32_t> ranks) { groups_[id] = std::move(ranks); }
  const std::vector<uint32_t>& ranksOf(uint64_t group) const { return groups_.at(group); }

  /// World rank `rank` has called something.
  std::vector<Verdict> post(uint32_t rank, const Signature& signature);
  /// A rank has left: what it has not called, it never will.
  std::vector<Verdict> leave(uint32_t rank);

 private:
  struct Called {
    uint32_t rank;
    Signature signature;
  };
  /// One half of a message whose other half has not come.
  struct Half {
    bool send;
    uint64_t sequence;
    uint8_t dtype;
    Counts shape;
    std::string description, label;
  };
  struct Pair {
    uint64_t group;
    uint32_t from, to;
    auto operator<=>(const Pair&) const = default;
  };
  using Place = std::pair<uint64_t, uint64_t>;  // group, index

  void collective(uint32_t rank, const Signature& signature, std::vector<Verdict>& verdicts);
  void transfer(uint32_t rank, const Signature& signature, const Transfer& transfer, std::vector<Verdict>& verdicts);
  Verdict mismatch(uint64_t group, const std::pair<uint32_t, std::string>& a, const std::pair<uint32_t, std::string>& b,
                   const std::string& label) const;

  std::map<uint64_t, std::vector<uint32_t>> groups_;
  std::map<Place, std::vector<Called>> collectives_;
  std::map<Pair, std::deque<Half>> halves_;
  std::set<uint32_t> left_;
};

}  // namespace mosaic::nccl
