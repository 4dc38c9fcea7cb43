// Collectives over a stream-ordered transport: the communication thread enqueues whole operations on a stream of the
// device, in order, and observes their completion by events. It alone calls the transport, and never blocks, so that it
// notices whatever goes wrong.
#pragma once

#include "collectives/engine.h"
#include "mosaic/device_port.h"

namespace mosaic {

class StreamEngine final : public Engine {
 public:
  StreamEngine(const MosaicTransport& transport, const Compute& compute, std::unique_ptr<ControlPlane> control,
               const EngineOptions& options, Completed connected);
  ~StreamEngine() override;

  /// Holds the host until the operation is enqueued, which takes microseconds and needs no other rank.
  void wait(uint64_t number) override;
};

}  // namespace mosaic
