// The one primitive: a batch of messages out, a batch of messages in, and perhaps a reduction of what comes in.
// Every collective is one or two of these (plan.h).
#pragma once

#include <optional>
#include <vector>

#include "reduce.h"
#include "segment.h"

namespace mosaic {

struct Message {
  uint8_t* data;
  Signature signature;  // as sent, or as expected
};

/// Messages between this rank and one other, in order.
struct Lane {
  uint32_t peer;  // world rank
  std::vector<Message> messages;
  size_t next = 0;
  bool open = false;  // the header of messages[next] has passed
  uint64_t moved = 0;

  bool done() const { return next == messages.size(); }
};

struct Copy {
  uint8_t* to;
  const uint8_t* from;
  uint64_t bytes;
};

/// out[i] = op over the group, in rank order, of element i: this rank's from `own`, others' straight from their rings.
struct Reduction {
  uint8_t* out;
  const uint8_t* own;
  uint64_t count;
  DType dtype;
  ReduceOp op;
  /// The receiving lanes in rank order; -1 stands for `own`.
  std::vector<int> order;
  /// `out` is also what is being sent: hold it until that is gone.
  bool afterSends = false;
  uint64_t reduced = 0;
};

struct Stage {
  std::vector<Copy> copies;
  std::vector<Lane> sends;
  std::vector<Lane> receives;
  std::optional<Reduction> reduction;
};

struct Mismatch {
  uint32_t peer;
  Signature expected;
  Signature received;
};

struct Bytes {
  uint64_t sent = 0, received = 0, messages = 0;
};

/// Runs one stage, a little further at each step; never blocks.
class Exchange {
 public:
  Exchange(const Segment& segment, uint32_t rank, Stage& stage, Bytes& bytes);

  /// Moves what can be moved now. False when nothing could.
  bool step();
  bool done() const;
  const std::optional<Mismatch>& mismatch() const { return mismatch_; }

 private:
  bool send(Lane& lane);
  bool receive(Lane& lane);
  bool open(Lane& lane, Channel& channel);
  bool reduce(Reduction& reduction);
  Channel outgoing(const Lane& lane) const { return segment_.channel(rank_, lane.peer); }
  Channel incoming(const Lane& lane) const { return segment_.channel(lane.peer, rank_); }
  void ring(const Lane& lane) const { segment_.page(lane.peer).doorbell.ring(); }
  bool sent() const;

  const Segment& segment_;
  const uint32_t rank_;
  Stage& stage_;
  Bytes& bytes_;
  std::optional<Mismatch> mismatch_;
};

}  // namespace mosaic
