// Collectives over a host-ordered transport. The communication thread executes each operation stage by stage, once the
// compute stream has made it ready. The compute stream waits for the operation on its own thread.
#pragma once

#include "collectives/engine.h"

namespace mosaic {

class StageExecution;

class HostEngine final : public Engine {
 public:
  HostEngine(TransportPtr transport, MosaicStream* stream, std::unique_ptr<ControlPlane> control,
             const EngineOptions& options, CompletionCallback onConnected);
  ~HostEngine() override;

  void wait(uint64_t number) override;

 private:
  struct HostOperation;

  void connect(MosaicBootstrap& bootstrap) override;
  void run() override;
  void wake() override;
  void sleepFor(int64_t nanoseconds) override;
  std::shared_ptr<Operation> makeOperation(bool waitsForCompute) override;
  void onPosted(const std::shared_ptr<Operation>& op) override;
  std::optional<MosaicFailure> deviceFailure(Operation& op) override;
  std::optional<Diagnosis> diagnoseTransport(Operation& op) override;
  void onFailed(const MosaicFailure& failure, const std::vector<std::shared_ptr<Operation>>& ops) override;
  void closeTransport() override;
  int64_t waitedNs() const override { return counters()->waitedNs(); }

  std::shared_ptr<HostOperation> next();
  void execute(const std::shared_ptr<HostOperation>& op);
  bool runStage(HostOperation& op, StageExecution& execution);
  template <typename Ready>
  void sleep(int64_t nanoseconds, Ready ready);

  const MosaicHostTransport& transport_;
  MosaicStream* const stream_;
  std::map<uint32_t, int64_t> peerLossNsByRank_;  // by rank: time at which the transport first observed its loss
  int64_t lastPeerCheckNs_ = 0;
};

}  // namespace mosaic
