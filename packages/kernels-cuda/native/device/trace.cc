#include "device/trace.h"

#include "mosaic/clock.h"

namespace mosaic::cuda {

Timeline::Timeline(std::shared_ptr<const Context> context, CUstream stream)
    : origin_(std::move(context), 0), originTime_(std::make_shared<std::atomic<int64_t>>(0)) {
  // The stream itself reads the host's clock, right before its event, so that no thread has to wake up for it.
  auto* reference = new std::shared_ptr(originTime_);
  const auto recordHostTime = [](void* data) {
    auto* time = static_cast<std::shared_ptr<std::atomic<int64_t>>*>(data);
    **time = monotonicNs();
    delete time;
  };
  check(driver().launchHostFunc(stream, recordHostTime, reference), "startTrace");
  check(driver().eventRecord(origin_.get(), stream), "startTrace");
}

int64_t Timeline::timeOf(const Event& event) const {
  float milliseconds = 0;
  driver().eventElapsedTime(&milliseconds, origin_.get(), event.get());
  return *originTime_ + static_cast<int64_t>(double{milliseconds} * 1e6);
}

Trace::Trace(std::shared_ptr<const Context> context, CUstream stream)
    : context_(std::move(context)), stream_(stream), timeline_(context_, stream) {}

std::unique_ptr<Event> Trace::recordEvent() const {
  auto event = std::make_unique<Event>(context_, 0);
  check(driver().eventRecord(event->get(), stream_), "recording an event");
  return event;
}

void Trace::recordStart(const char* name) { timedKernels_.push_back({name, recordEvent(), nullptr}); }

void Trace::recordEnd() { timedKernels_.back().end = recordEvent(); }

std::vector<TraceEntry> Trace::entries() const {
  std::vector<TraceEntry> entries;
  for (const auto& [name, start, end] : timedKernels_) {
    if (end) entries.push_back({name, timeline_.timeOf(*start), timeline_.timeOf(*end)});
  }
  return entries;
}

}  // namespace mosaic::cuda
