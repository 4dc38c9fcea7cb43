// What failures say. Ranks in messages are world ranks; the group stands in parentheses behind the operation.
#pragma once

#include <string>

#include "operation.h"
#include "peers.h"

namespace mosaic {

/// `ring(sp): rank 3 is at sendRecv #41 (sp) float32 [2,8,100,64], rank 2 at sendRecv #41 (sp) float32 [2,8,128,64]; …`
MosaicFailure mismatchFailure(const Operation& op, uint32_t rank, const Mismatch& mismatch, const Position& peer);
/// The same, found by comparing positions: the two never exchange a message.
MosaicFailure divergenceFailure(const Operation& op, uint32_t rank, uint32_t peer, const Position& position);
/// `rank 3 waits in allGather #42 (sp); rank 2 is at sendRecv #41 (sp); rank 1 is computing`
MosaicFailure timeoutFailure(const Operation& op, const Segment& segment, uint32_t rank, const Peers& peers,
                             double seconds);
/// `rank 2 (pid 71) died; rank 3 needed it in sendRecv #41 (sp)`
MosaicFailure peerLostFailure(const Operation& op, const Segment& segment, uint32_t rank, uint32_t peer, bool died);
/// What this rank says when `peer` has failed before it.
MosaicFailure adoptedFailure(const Segment& segment, uint32_t peer);

}  // namespace mosaic
