// One stage of a collective over a host-ordered transport: its messages, and its reduction, also where the
// transport does not reduce.
#pragma once

#include <memory>
#include <vector>

#include "collectives/operation.h"
#include "mosaic/transport.h"

namespace mosaic {

/// The messages of a stage as the transport holds them; they must not move.
class StageRun {
 public:
  /// Enqueues the messages. Throws std::bad_alloc before the first.
  StageRun(const MosaicHostTransport& transport, const Operation& op, const Stage& stage);
  StageRun(const StageRun&) = delete;
  StageRun& operator=(const StageRun&) = delete;

  /// Moves what can be moved. Whether anything moved.
  bool progress();
  bool isDone() const { return areMessagesDone() && reduction_.reduced == reduction_.count; }
  /// A message that will not be done.
  const MosaicMessage* fault() const;

 private:
  bool areMessagesDone() const { return firstSend_ == sends_.size() && firstReceive_ == receives_.size(); }
  void prepare(const Operation& op, const Reduction& reduction);
  void add();

  const MosaicHostTransport& transport_;
  std::vector<MosaicMessage> sends_, receives_;
  size_t firstSend_ = 0, firstReceive_ = 0;  // all before are done
  MosaicReduction reduction_{};
  /// Of the other ranks, one behind the other; for transports that do not reduce, until it is done.
  std::unique_ptr<uint8_t[]> operands_;
};

}  // namespace mosaic
