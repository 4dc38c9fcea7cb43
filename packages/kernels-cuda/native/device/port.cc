#include "device/port.h"

#include <algorithm>

#include "device/device.h"
#include "kernels/ranks.h"

namespace mosaic::cuda {

namespace {

Device& deviceOf(MosaicDevicePort* port) { return static_cast<Port*>(port)->device; }

void enter(MosaicDevicePort* port) { deviceOf(port).enter(); }

void fail(MosaicDevicePort* port, const MosaicFailure* failure) {
  deviceOf(port).fail(static_cast<MosaicFailureCode>(failure->code), failure->message);
}

int failureOf(MosaicDevicePort* port, MosaicFailure* out) {
  const MosaicFailure* failure = deviceOf(port).failure();
  if (failure) *out = *failure;
  return failure ? 1 : 0;
}

int allocate(MosaicDevicePort* port, uint64_t* address, size_t bytes, void* stream) {
  CUdeviceptr memory = 0;
  const CUresult code = deviceOf(port).memory().lend(&memory, bytes, static_cast<CUstream>(stream));
  *address = memory;
  return code;
}

int release(MosaicDevicePort*, uint64_t address, void* stream) {
  return Memory::release(address, static_cast<CUstream>(stream));
}

int reduce(MosaicDevicePort* port, const MosaicRankReduction* r, void* stream) {
  Device& device = deviceOf(port);
  const auto operand = [&](uint64_t address) {
    Operand operand{};
    operand.data = reinterpret_cast<void*>(static_cast<uintptr_t>(address));
    operand.dtype = static_cast<DType>(r->dtype);
    return operand;
  };
  ReduceRanksParameters p{operand(r->out), operand(r->own), operand(r->others), r->count,
                          r->ranks,        r->rank,         static_cast<MosaicReduceOp>(r->op)};
  constexpr int64_t kThreads = 256;
  const int64_t blocks = std::min((r->count + kThreads - 1) / kThreads, int64_t{device.multiprocessors()} * 16);
  void* arguments[] = {&p};
  return driver().launchKernel(device.reduceRanks(), static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0,
                               static_cast<CUstream>(stream), arguments, nullptr);
}

constexpr MosaicDevicePort kCalls{MOSAIC_DEVICE_PORT_ABI, enter, fail, failureOf, allocate, release, reduce};

}  // namespace

Port::Port(Device& device) : MosaicDevicePort(kCalls), device(device) {}

}  // namespace mosaic::cuda
