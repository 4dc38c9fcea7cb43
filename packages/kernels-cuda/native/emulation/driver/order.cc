// Entry points of the stand-in driver for streams and events.
#include "state.h"

using namespace emulated;
using namespace mosaic::cuda;

namespace {

Event& eventOf(CUevent handle) { return *reinterpret_cast<Event*>(handle); }

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
  streamOf(stream).enqueue([record = eventOf(event).latest()] { record->await(); }, true);
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
  *event = reinterpret_cast<CUevent>(new Event);
  return counts().events++, CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event) {
  if (counts().contexts == 0) fault(CUDA_ERROR_INVALID_CONTEXT, "an event is destroyed after its context");
  delete &eventOf(event);
  return counts().events--, health().get();
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  if (const CUresult code = ready()) return code;
  streamOf(stream).enqueue([record = eventOf(event).record()] { record->reach(); }, true);
  return CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event) {
  if (const CUresult code = ready()) return code;
  return eventOf(event).latest()->isReached() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event) {
  if (const CUresult code = ready()) return code;
  eventOf(event).latest()->await();
  return health().get();
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  const int64_t elapsed = eventOf(end).latest()->nanoseconds() - eventOf(start).latest()->nanoseconds();
  *milliseconds = static_cast<float>(elapsed) / 1e6f;
  return health().get();
}

}  // extern "C"
