// An emulation of libnccl for tests: the entry points of nccl/api.h over memory shared by processes, and over TCP
// between hosts. It is ordered on streams by the driver's host functions, so it requires the emulated driver, whose
// device memory is host memory.
//
// It has NCCL's rules. Calls of a group progress concurrently. A non-blocking communicator is in progress until it was
// polled to success, and may not be used before. A communicator's launches run in order. Ranks with mismatched calls
// never complete. A rank that dies is not detected on its host, and is a remote error on others. Aborting ends running
// launches, and waits for those that are still queued.
#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "emulation/communicator.h"

#define EMULATED_DECLARE(type, name, symbol, parameters) extern "C" type symbol parameters;
MOSAIC_NCCL(EMULATED_DECLARE)

using emulated_nccl::Communicator;
using emulated_nccl::TransferKind;
using emulated_nccl::Work;

namespace {

struct Group {
  int depth = 0;
  ncclResult_t result = ncclSuccess;
  // The order of first use, because a group may use several streams and communicators.
  std::vector<std::pair<std::shared_ptr<Communicator>, void*>> order;
  std::map<std::pair<Communicator*, void*>, Work> work;
};

thread_local Group group;

std::string toHex(const void* data, size_t length) {
  std::string text;
  for (size_t i = 0; i < length; i++) {
    const uint8_t byte = static_cast<const uint8_t*>(data)[i];
    text += {"0123456789abcdef"[byte >> 4], "0123456789abcdef"[byte & 15]};
  }
  return text;
}

ncclResult_t recordError(ncclResult_t result) {
  if (group.result == ncclSuccess && result != ncclSuccess && result != ncclInProgress) group.result = result;
  return result;
}

/// Adds a call to the current group, or to a group of its own.
template <typename Add>
ncclResult_t enqueue(ncclComm_t comm, void* stream, Add add) {
  if (!comm) return recordError(ncclInvalidArgument);
  // As in NCCL, a call while an earlier one is in progress is an error.
  if (comm->communicator->state != ncclSuccess) return recordError(ncclInvalidArgument);
  const bool isImplicitGroup = group.depth == 0;
  if (isImplicitGroup) ncclGroupStart();
  const std::pair<Communicator*, void*> key{comm->communicator.get(), stream};
  if (!group.work.contains(key)) group.order.emplace_back(comm->communicator, stream);
  add(*comm->communicator, group.work[key]);
  return isImplicitGroup ? ncclGroupEnd() : ncclSuccess;
}

/// Checks a configuration like NCCL, which compares minCTAs with maxCTAs even if one is undefined. Tests specify in
/// MOSAIC_EMULATED_NCCL_CONFIG which configuration is accepted: minCTAs, maxCTAs and netName, separated by spaces.
ncclResult_t checkConfig(const ncclConfig_t& config) {
  if (config.magic != mosaic::nccl::kConfigMagic || config.size != sizeof config) return ncclInvalidArgument;
  const auto isValidCtaCount = [](int ctas) { return ctas == mosaic::nccl::kUndefined || ctas > 0; };
  const bool hasValidCtas =
      isValidCtaCount(config.minCTAs) && isValidCtaCount(config.maxCTAs) && config.minCTAs <= config.maxCTAs;
  const std::string text = std::to_string(config.minCTAs) + " " + std::to_string(config.maxCTAs) + " " +
                           (config.netName ? config.netName : "");
  const std::string expected = emulated_nccl::getSetting("MOSAIC_EMULATED_NCCL_CONFIG");
  return hasValidCtas && (expected.empty() || text == expected) ? ncclSuccess : ncclInvalidArgument;
}

uint8_t* toBytes(const void* data) { return static_cast<uint8_t*>(const_cast<void*>(data)); }

void addTransfer(Communicator& comm, Work& work, TransferKind kind, bool isSend, uint32_t peer, void* data,
                 size_t count) {
  const uint32_t from = isSend ? comm.rank : peer, to = isSend ? peer : comm.rank;
  work.transfers.push_back({kind, isSend, comm.getLane(from, to, kind != TransferKind::Message), toBytes(data), count});
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = emulated_nccl::configuredVersion(), ncclSuccess; }

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) { return emulated_nccl::createUniqueId(*id); }

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError   ? "remote process exited or there was a network error"
         : result == ncclSystemError ? "unhandled system error"
                                     : "invalid usage";
}

const char* ncclGetLastError(ncclComm_t) { return ""; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks > static_cast<int>(emulated_nccl::kMaxRanks) || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  if (checkConfig(*config) != ncclSuccess) return ncclInvalidArgument;
  auto communicator = std::make_shared<Communicator>();
  communicator->name = "/nccl-emulated-" + toHex(id.internal, 16);
  communicator->size = static_cast<uint32_t>(ranks);
  communicator->rank = static_cast<uint32_t>(rank);
  communicator->isBlocking = config->blocking != 0;
  communicator->listener = emulated_nccl::Listener::open();
  if (!communicator->listener) return ncclInvalidUsage;
  *comm = new ncclComm{communicator};
  return communicator->runAsync([communicator = communicator.get(), id] {
    communicator->endpoints = emulated_nccl::exchangeEndpoints(
        id, communicator->size, communicator->rank, communicator->listener->endpoint(), communicator->isStopped);
    if (communicator->endpoints.empty()) return communicator->isStopped ? ncclInProgress : ncclRemoteError;
    return communicator->attach();
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm, ncclConfig_t* config) {
  Communicator& parent = *comm->communicator;
  if (parent.state != ncclSuccess || color < 0) return ncclInvalidArgument;
  if (config && checkConfig(*config) != ncclSuccess) return ncclInvalidArgument;
  // NCCL may deadlock in this case.
  if (parent.pendingLaunchCount > 0) return ncclInvalidUsage;
  auto communicator = std::make_shared<Communicator>();
  const int splitNumber = parent.splitCount++;
  auto& split = parent.region->header().splits[splitNumber % emulated_nccl::kMaxSplits];
  split.color[parent.rank] = color;
  split.key[parent.rank] = key;
  split.arrivedCount++;
  communicator->isBlocking = config ? config->blocking != 0 : parent.isBlocking;
  // The new communicator exists once the operation of the parent has completed.
  return parent.runAsync([&parent, &split, newcomm, communicator, splitNumber, color] {
    const uint32_t expectedCount = parent.size * (static_cast<uint32_t>(splitNumber) / emulated_nccl::kMaxSplits + 1);
    const auto isReady = [&] {
      return split.arrivedCount >= expectedCount && !emulated_nccl::isHangConfigured("split");
    };
    if (!parent.waitUntil(isReady)) return ncclInProgress;
    std::vector<std::pair<int, uint32_t>> members;
    for (uint32_t rank = 0; rank < parent.size; rank++) {
      if (split.color[rank] == color) members.emplace_back(split.key[rank], rank);
    }
    std::sort(members.begin(), members.end());
    const auto isSelf = [&](const auto& member) { return member.second == parent.rank; };
    const auto ownMember = std::find_if(members.begin(), members.end(), isSelf);
    communicator->name = parent.name + "-" + std::to_string(splitNumber) + "." + std::to_string(color);
    communicator->size = static_cast<uint32_t>(members.size());
    communicator->rank = static_cast<uint32_t>(ownMember - members.begin());
    communicator->listener = parent.listener;
    for (const auto& [_, rank] : members) communicator->endpoints.push_back(parent.endpoints[rank]);
    *newcomm = new ncclComm{communicator};
    const ncclResult_t result =
        communicator->runAsync([communicator = communicator.get()] { return communicator->attach(); });
    return result == ncclInProgress ? ncclSuccess : result;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  auto communicator = comm->communicator.get();
  if (communicator->state != ncclSuccess) return ncclInvalidArgument;
  return communicator->runAsync([communicator] {
    auto& finalizedRankCount = communicator->region->header().finalizedRankCount;
    finalizedRankCount++;
    return communicator->waitUntil(
               [&] { return finalizedRankCount >= communicator->size && communicator->pendingLaunchCount == 0; })
               ? ncclSuccess
               : ncclInProgress;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  comm->communicator->stop();
  delete comm;
  return ncclSuccess;
}

/// Blocks even in a group, as NCCL up to 2.21.
ncclResult_t ncclCommAbort(ncclComm_t comm) { return ncclCommDestroy(comm); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return *error = comm->communicator->state, ncclSuccess;
}

ncclResult_t ncclGroupStart() { return group.depth++, ncclSuccess; }

ncclResult_t ncclGroupEnd() {
  if (--group.depth > 0) return ncclSuccess;
  Group completedGroup = std::move(group);
  group = Group{};
  ncclResult_t result = completedGroup.result;
  for (auto& [comm, stream] : completedGroup.order) {
    if (result != ncclSuccess && result != ncclInProgress) return result;
    result = comm->runAsync([comm = comm.get(), stream = stream, work = completedGroup.work[{comm.get(), stream}]] {
      return comm->launch(work, stream);
    });
  }
  return result;
}

ncclResult_t ncclSend(const void* data, size_t count, int, int peer, ncclComm_t comm, void* stream) {
  return enqueue(comm, stream, [&](Communicator& communicator, Work& work) {
    addTransfer(communicator, work, TransferKind::Message, true, static_cast<uint32_t>(peer), toBytes(data), count);
  });
}

ncclResult_t ncclRecv(void* data, size_t count, int, int peer, ncclComm_t comm, void* stream) {
  return enqueue(comm, stream, [&](Communicator& communicator, Work& work) {
    addTransfer(communicator, work, TransferKind::Message, false, static_cast<uint32_t>(peer), data, count);
  });
}

ncclResult_t ncclAllGather(const void* in, void* out, size_t count, int, ncclComm_t comm, void* stream) {
  return enqueue(comm, stream, [&](Communicator& communicator, Work& work) {
    work.copies.push_back({toBytes(out) + communicator.rank * count, toBytes(in), count});
    for (uint32_t peer = 0; peer < communicator.size; peer++) {
      if (peer == communicator.rank) continue;
      addTransfer(communicator, work, TransferKind::Gather, true, peer, toBytes(in), count);
      addTransfer(communicator, work, TransferKind::Gather, false, peer, toBytes(out) + peer * count, count);
    }
  });
}

ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, int, int root, ncclComm_t comm, void* stream) {
  return enqueue(comm, stream, [&](Communicator& communicator, Work& work) {
    const auto rootRank = static_cast<uint32_t>(root);
    if (communicator.rank != rootRank)
      return addTransfer(communicator, work, TransferKind::Broadcast, false, rootRank, out, count);
    work.copies.push_back({toBytes(out), toBytes(in), count});
    for (uint32_t peer = 0; peer < communicator.size; peer++) {
      if (peer != rootRank) addTransfer(communicator, work, TransferKind::Broadcast, true, peer, toBytes(in), count);
    }
  });
}

}  // extern "C"
