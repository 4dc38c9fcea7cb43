// Compiled as a library, because the emulated NCCL looks up cuLaunchHostFunc in the library that MOSAIC_CUDA_LIBRARY
// names.
#include "device.h"

#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace mosaic::test {

namespace {

using Handle = std::shared_ptr<Event>;

Device& of(MosaicDevicePort* port) { return *static_cast<Device*>(port); }
Stream& streamOf(void* stream) { return *static_cast<Stream*>(stream); }
Handle& eventOf(void* event) { return *static_cast<Handle*>(event); }
uint8_t* bytes(uint64_t address) { return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(address)); }

int failureOf(MosaicDevicePort* port, MosaicFailure* out) {
  const auto failure = of(port).failure();
  if (failure) *out = *failure;
  return failure ? 1 : 0;
}

int createStream(MosaicDevicePort*, void** stream, MosaicFailure*) {
  *stream = new Stream;
  return 0;
}

int record(MosaicDevicePort*, void* stream, int, void** event, MosaicFailure*) {
  auto created = std::make_shared<Event>();
  streamOf(stream).submit([created] { created->reach(); });
  *event = new Handle(std::move(created));
  return 0;
}

int waitEvent(MosaicDevicePort*, void* stream, void* event, MosaicFailure*) {
  streamOf(stream).submit([awaited = eventOf(event)] { awaited->await(); });
  return 0;
}

int query(MosaicDevicePort*, void* event, MosaicFailure*) {
  const std::lock_guard lock(eventOf(event)->mutex);
  return eventOf(event)->isDone ? MOSAIC_EVENT_DONE : MOSAIC_EVENT_PENDING;
}

int copy(MosaicDevicePort*, uint64_t to, uint64_t from, size_t count, void* stream, MosaicFailure*) {
  streamOf(stream).submit([=] { std::memmove(bytes(to), bytes(from), count); });
  return 0;
}

int allocate(MosaicDevicePort*, uint64_t* address, size_t count, void*, MosaicFailure*) {
  *address = reinterpret_cast<uintptr_t>(std::malloc(count));
  return 0;
}

int reduce(MosaicDevicePort*, const MosaicRankReduction* given, void* stream, MosaicFailure*) {
  streamOf(stream).submit([r = *given] {
    const auto dtype = static_cast<DType>(r.dtype);
    const auto op = static_cast<ReduceOp>(r.op);
    const auto count = static_cast<uint64_t>(r.count);
    std::vector<float> sum(count);
    for (int32_t rank = 0; rank < r.ranks; rank++) {
      const int32_t place = rank - (rank > r.rank ? 1 : 0);
      const uint64_t from = rank == r.rank ? r.own : r.others + place * count * dtypeBytes(dtype);
      reduction::accumulate(sum.data(), bytes(from), count, dtype, op, rank == 0);
    }
    reduction::finish(bytes(r.out), sum.data(), count, dtype, op, static_cast<uint32_t>(r.ranks));
  });
  return 0;
}

const MosaicDevicePort kCalls{MOSAIC_DEVICE_PORT_ABI,
                              [](MosaicDevicePort*) {},
                              [](MosaicDevicePort* port, const MosaicFailure* failure) { of(port).fail(*failure); },
                              failureOf,
                              createStream,
                              [](MosaicDevicePort*, void* stream) { delete &streamOf(stream); },
                              record,
                              waitEvent,
                              query,
                              [](MosaicDevicePort*, void* event) {
                                const std::lock_guard lock(eventOf(event)->mutex);
                                return eventOf(event)->at;
                              },
                              [](MosaicDevicePort*, void* event) { delete &eventOf(event); },
                              copy,
                              allocate,
                              [](MosaicDevicePort*, uint64_t address, void* stream) {
                                streamOf(stream).submit([address] { std::free(bytes(address)); });
                              },
                              reduce};

}  // namespace

Device::Device() : MosaicDevicePort(kCalls) {}

}  // namespace mosaic::test

extern "C" int cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  mosaic::test::streamOf(stream).submit([=] { function(data); });
  return 0;
}
