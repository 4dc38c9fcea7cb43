// A device for tests: the stream of stream.h for JavaScript, with work that fails or blocks on demand. Its memory is
// ArrayBuffers, so that tests can access every byte.
#include <napi.h>

#include <cstring>

#include "mosaic/completion_queue.h"
#include "polling_transport.h"
#include "stream.h"

namespace mosaic::test {

namespace {

using StreamHandle = Napi::External<Stream>;
using Shared = std::shared_ptr<CompletionQueue>;

Stream& streamOf(const Napi::CallbackInfo& info) { return *info[0].As<StreamHandle>().Data(); }

uint8_t* addressOf(Napi::Value value) {
  return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(value.As<Napi::Number>().Int64Value()));
}

Napi::Value numberOf(Napi::Env env, void* address) {
  return Napi::Number::New(env, static_cast<double>(reinterpret_cast<uintptr_t>(address)));
}

// open(): returns [stream, address of the stream].
Napi::Value open(const Napi::CallbackInfo& info) {
  auto* stream = new Stream;
  auto result = Napi::Array::New(info.Env(), 2);
  result.Set(0u, StreamHandle::New(info.Env(), stream));
  result.Set(1u, numberOf(info.Env(), static_cast<MosaicStream*>(stream)));
  return result;
}

// close(stream): runs the submitted work, then ends the stream. The handle must not be used again.
void close(const Napi::CallbackInfo& info) { delete info[0].As<StreamHandle>().Data(); }

// address(arrayBuffer): returns the address of its memory.
Napi::Value address(const Napi::CallbackInfo& info) {
  return numberOf(info.Env(), info[0].As<Napi::ArrayBuffer>().Data());
}

// write(stream, address, bytes): copies the bytes to the address in stream order.
void write(const Napi::CallbackInfo& info) {
  uint8_t* to = addressOf(info[1]);
  const auto bytes = info[2].As<Napi::Uint8Array>();
  std::vector<uint8_t> copy(bytes.Data(), bytes.Data() + bytes.ByteLength());
  streamOf(info).run([to, copy = std::move(copy)] {
    if (!copy.empty()) std::memcpy(to, copy.data(), copy.size());
  });
}

// bind(callback): `callback(completion, code, message)` settles the promises of fences.
void bind(const Napi::CallbackInfo& info) {
  *info.Env().GetInstanceData<Shared>() = std::make_shared<CompletionQueue>(info.Env(), info[0]);
}

struct Fence {
  Shared completions;
  double completion;
};

// fence(stream, completion): completes once all work so far is done, with the stream's failure if it has failed.
void fence(const Napi::CallbackInfo& info) {
  const Shared& completions = *info.Env().GetInstanceData<Shared>();
  completions->expect();
  const MosaicWork work{"fence",
                        [](void* arg, const MosaicFailure* upstream, MosaicFailure*) {
                          const Fence& fence = *static_cast<Fence*>(arg);
                          fence.completions->complete(fence.completion, upstream);
                          return 0;
                        },
                        [](void* arg) { delete static_cast<Fence*>(arg); },
                        new Fence{completions, info[1].As<Napi::Number>().DoubleValue()}};
  Stream& stream = streamOf(info);
  stream.submit(&stream, &work);
}

// hold(stream): submits work that blocks until the returned function is called.
Napi::Value hold(const Napi::CallbackInfo& info) {
  auto gate = std::make_shared<std::atomic<bool>>(false);
  streamOf(info).run([gate] { gate->wait(false); });
  return Napi::Function::New(info.Env(), [gate](const Napi::CallbackInfo&) {
    gate->store(true);
    gate->notify_all();
  });
}

// openPolling(): returns the address of a transport whose ranks sleep in `poll`.
Napi::Value openPollingTransport(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(reinterpret_cast<uintptr_t>(openPolling())));
}

// fail(stream): makes the stream fail like a device whose kernel crashed.
void fail(const Napi::CallbackInfo& info) { streamOf(info).fail("attend: injected failure"); }

}  // namespace

static Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Shared);
  exports.Set("bind", Napi::Function::New(env, bind));
  exports.Set("open", Napi::Function::New(env, open));
  exports.Set("close", Napi::Function::New(env, close));
  exports.Set("address", Napi::Function::New(env, address));
  exports.Set("write", Napi::Function::New(env, write));
  exports.Set("fence", Napi::Function::New(env, fence));
  exports.Set("hold", Napi::Function::New(env, hold));
  exports.Set("fail", Napi::Function::New(env, fail));
  exports.Set("openPolling", Napi::Function::New(env, openPollingTransport));
  return exports;
}

}  // namespace mosaic::test

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) {
  return mosaic::test::initialize(env, exports);
}
NODE_API_MODULE(mosaic_test_device, initializeModule)
