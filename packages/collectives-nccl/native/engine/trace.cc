#include "engine/trace.h"

#include <utility>

#include "mosaic/clock.h"

namespace mosaic::nccl {

void Trace::start() {
  const std::lock_guard lock(mutex_);
  records_.clear();
  CUstream idle = nullptr;
  check(driver().streamCreate(&idle, cuda::STREAM_NON_BLOCKING), "startTrace");
  if (!origin_) check(driver().eventCreate(&origin_, 0), "startTrace");
  driver().eventRecord(origin_, idle);
  driver().eventSynchronize(origin_);
  originNs_ = monotonicNs();
  driver().streamDestroy(idle);
  on_ = true;
}

void Trace::record(const Signature& signature, const Payload& payload, CUevent begin, CUevent end) {
  const std::lock_guard lock(mutex_);
  if (!on_) return;
  const auto timeOf = [&](CUevent event) {
    float milliseconds = 0;
    driver().eventElapsedTime(&milliseconds, origin_, event);
    return originNs_ + static_cast<int64_t>(double{milliseconds} * 1e6);
  };
  const std::string& label = signature.label.empty() ? signature.groupName : signature.label;
  records_.push_back({signature.op, label, timeOf(begin), timeOf(end), payload.sent, payload.received});
}

std::vector<TraceRecord> Trace::stop() {
  const std::lock_guard lock(mutex_);
  on_ = false;
  if (origin_) driver().eventDestroy(std::exchange(origin_, nullptr));
  return std::exchange(records_, {});
}

}  // namespace mosaic::nccl
