// The table of functions by which the collectives engine of @mosaic/runtime drives NCCL. All of NCCL's collectives are
// called here: ncclSend, ncclRecv, ncclAllGather, ncclBroadcast, loaded at run time (api.h). ncclAllReduce and
// ncclReduceScatter are not used, because their order of addition differs, and reductions here are in rank order
// (decision 19).
#include "nccl/transport.h"

#include <memory>

/// The engine's handle of a communicator.
struct MosaicCommunicator {
  mosaic::nccl::Communicator nccl;
};

namespace mosaic::nccl {

namespace {

/// Key under which rank 0 publishes NCCL's unique id, by which ranks rendezvous in NCCL.
constexpr const char* kIdKey = "nccl/id";

/// Remedy at the end of the error message for a timeout while NCCL connects.
constexpr const char* kConnectHint =
    "set NCCL_DEBUG=INFO for details; between hosts, select a shared network with nccl({ network })";

struct Transport {
  MosaicTransport table{};
  MosaicStreamTransport functions{};
  Settings settings;
};

Transport& toTransport(void* self) { return *static_cast<Transport*>(self); }

void* toPointer(uint64_t address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }

ncclUniqueId exchangeId(MosaicBootstrap& bootstrap) {
  ncclUniqueId id{};
  MosaicFailure failure{};
  if (bootstrap.rank == 0) {
    check(library().functions.getUniqueId(&id), Communicator());
    if (bootstrap.put(&bootstrap, kIdKey, id.internal, sizeof id.internal, &failure) != 0) throw Failure(failure);
    return id;
  }
  uint64_t bytes = 0;
  if (bootstrap.get(&bootstrap, kIdKey, id.internal, sizeof id.internal, &bytes, &failure) != 0) throw Failure(failure);
  if (bytes == sizeof id.internal) return id;
  throw Failure(MOSAIC_FAILURE_MISMATCH, "NCCL: expected a unique ID of 128 bytes, received " + std::to_string(bytes));
}

int connect(void* self, MosaicBootstrap* bootstrap, MosaicCommunicator** world, MosaicFailure* failure) {
  return captureFailure(failure, "NCCL", [&] {
    const ncclUniqueId id = exchangeId(*bootstrap);
    auto communicator = std::make_unique<MosaicCommunicator>();
    communicator->nccl.init(bootstrap->size, id, bootstrap->rank, toTransport(self).settings);
    *world = communicator.release();
  });
}

int split(void* self, MosaicCommunicator* parent, int32_t color, uint32_t rank, MosaicCommunicator** child,
          MosaicFailure* failure) {
  return captureFailure(failure, "NCCL", [&] {
    auto communicator = std::make_unique<MosaicCommunicator>();
    parent->nccl.split(communicator->nccl, color, static_cast<int>(rank), toTransport(self).settings);
    *child = communicator.release();
  });
}

int state(void*, MosaicCommunicator* communicator, MosaicFailure* failure) {
  const ncclResult_t result = communicator->nccl.state();
  if (result == ncclSuccess) return MOSAIC_COMMUNICATOR_READY;
  if (result == ncclInProgress) return MOSAIC_COMMUNICATOR_BUSY;
  captureFailure(failure, "NCCL", [&] { check(result, communicator->nccl); });
  return MOSAIC_COMMUNICATOR_FAILED;
}

/// Calls ncclSend and ncclRecv between ncclGroupStart and ncclGroupEnd, so that all progress concurrently and none can
/// wait for another.
ncclResult_t exchange(const MosaicStreamStage& stage, ncclComm_t comm, void* stream) {
  const Functions& nccl = library().functions;
  ncclResult_t groupResult = ncclSuccess;
  const auto recordResult = [&](ncclResult_t result) {
    if (isSuccessOrInProgress(groupResult)) groupResult = result;
  };
  nccl.groupStart();
  for (uint32_t i = 0; i < stage.sends_count; i++) {
    const auto& [address, bytes, peer] = stage.sends[i];
    recordResult(nccl.send(toPointer(address), bytes, kByteType, static_cast<int>(peer), comm, stream));
  }
  for (uint32_t i = 0; i < stage.receives_count; i++) {
    const auto& [address, bytes, peer] = stage.receives[i];
    recordResult(nccl.recv(toPointer(address), bytes, kByteType, static_cast<int>(peer), comm, stream));
  }
  recordResult(nccl.groupEnd());
  return groupResult;
}

int enqueue(void*, MosaicCommunicator* communicator, const MosaicStreamStage* stage, void* stream,
            MosaicFailure* failure) {
  const Functions& nccl = library().functions;
  const ncclComm_t comm = communicator->nccl.get();
  const auto launchCollective = [&] {
    void *const in = toPointer(stage->in), *const out = toPointer(stage->out);
    switch (stage->collective) {
      case MOSAIC_STREAM_ALL_GATHER: return nccl.allGather(in, out, stage->bytes, kByteType, comm, stream);
      case MOSAIC_STREAM_BROADCAST:
        return nccl.broadcast(in, out, stage->bytes, kByteType, static_cast<int>(stage->root), comm, stream);
      default: return exchange(*stage, comm, stream);
    }
  };
  return captureFailure(failure, "NCCL", [&] { check(launchCollective(), communicator->nccl); });
}

void finalize(void*, MosaicCommunicator* communicator) { communicator->nccl.finalize(); }

void destroy(void*, MosaicCommunicator* communicator) {
  communicator->nccl.destroy();
  delete communicator;
}

void abortAll(void*, MosaicCommunicator* const* communicators, uint32_t count, void (*enter)(void*), void* arg) {
  std::vector<Communicator*> ncclCommunicators;
  for (uint32_t i = 0; i < count; i++) ncclCommunicators.push_back(&communicators[i]->nccl);
  abortConcurrently(ncclCommunicators, [enter, arg] { enter(arg); });
  for (uint32_t i = 0; i < count; i++) delete communicators[i];
}

void freeTransport(void* self) { delete &toTransport(self); }

}  // namespace

const MosaicTransport* openTransport(const Settings& settings, bool shouldWarmUp) {
  library();  // throws if none was loaded
  auto* transport = new Transport{};
  transport->settings = settings;
  transport->functions = {transport, shouldWarmUp, kConnectHint, connect,  split,        state,
                          enqueue,   finalize,     destroy,      abortAll, freeTransport};
  transport->table = {MOSAIC_TRANSPORT_ABI, MOSAIC_ORDER_STREAM, "nccl", nullptr, &transport->functions};
  return &transport->table;
}

}  // namespace mosaic::nccl
