// Entry points of the stand-in driver for streams and events.
#include "state.h"

using namespace emulated;
using namespace mosaic::cuda;

namespace {

std::shared_ptr<Event>& eventOf(CUevent handle) { return *reinterpret_cast<std::shared_ptr<Event>*>(handle); }

uint64_t recordsOf(Event& event) {
  const std::lock_guard lock(event.mutex);
  return event.recorded;
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* stream, unsigned) {
  if (const CUresult code = ready()) return code;
  *stream = reinterpret_cast<CUstream>(new Stream);
  return counts().streams++, CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream) {
  delete reinterpret_cast<Stream*>(stream);
  return counts().streams--, health().get();
}

CUresult cuStreamQuery(CUstream stream) {
  if (const CUresult code = ready()) return code;
  return streamOf(stream).idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuStreamSynchronize(CUstream stream) {
  if (const CUresult code = ready()) return code;
  streamOf(stream).synchronize();
  return health().get();
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  if (const CUresult code = ready()) return code;
  std::shared_ptr<Event> waited = eventOf(event);
  streamOf(stream).enqueue([waited, wanted = recordsOf(*waited)] { waited->await(wanted); }, true);
  return CUDA_SUCCESS;
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  if (inCallback()) return CUDA_ERROR_NOT_PERMITTED;
  const auto call = [function, data] {
    inCallback() = true;
    function(data);
    inCallback() = false;
  };
  // Unlike a GPU after a failure, which may drop it: an emulated one notifies waiting threads, so that tests end.
  streamOf(stream).enqueue(call, true);
  return health().get();
}

CUresult cuEventCreate(CUevent* event, unsigned) {
  if (const CUresult code = ready()) return code;
  *event = reinterpret_cast<CUevent>(new std::shared_ptr<Event>(std::make_shared<Event>()));
  return counts().events++, CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (counts().contexts == 0) fault(CUDA_ERROR_INVALID_CONTEXT, "an event is destroyed after its context");
  delete &eventOf(event);
  return counts().events--, health().get();
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (const CUresult code = ready()) return code;
  std::shared_ptr<Event> marked = eventOf(event);
  uint64_t number;
  {
    const std::lock_guard lock(marked->mutex);
    number = ++marked->recorded;
  }
  streamOf(stream).enqueue([marked, number] { marked->reach(number); }, true);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  if (const CUresult code = ready()) return code;
  Event& asked = *eventOf(event);
  const std::lock_guard lock(asked.mutex);
  return asked.done < asked.recorded ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
  if (const CUresult code = ready()) return code;
  Event& awaited = *eventOf(event);
  awaited.await(recordsOf(awaited));
  return health().get();
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  *milliseconds = static_cast<float>(eventOf(end)->nanoseconds - eventOf(start)->nanoseconds) / 1e6f;
  return health().get();
}

}  // extern "C"
