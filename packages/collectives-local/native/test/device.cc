// A device for tests: the stream of stream.h under JavaScript, with work that fails or stands still on demand.
// Memory is ArrayBuffers, so that tests see every byte.
#include <napi.h>

#include <cstring>

#include "task_queue.h"
#include "stream.h"

namespace mosaic::test {

namespace {

using StreamHandle = Napi::External<Stream>;
using Shared = std::shared_ptr<TaskQueue>;

Stream& streamOf(const Napi::CallbackInfo& info) { return *info[0].As<StreamHandle>().Data(); }
TaskQueue& tasksOf(Napi::Env env) { return **env.GetInstanceData<Shared>(); }

uint8_t* addressOf(Napi::Value value) {
  return reinterpret_cast<uint8_t*>(static_cast<uintptr_t>(value.As<Napi::Number>().Int64Value()));
}

Napi::Value numberOf(Napi::Env env, void* address) {
  return Napi::Number::New(env, static_cast<double>(reinterpret_cast<uintptr_t>(address)));
}

// open(): [stream, address of the stream].
Napi::Value open(const Napi::CallbackInfo& info) {
  auto* stream = new Stream;
  auto result = Napi::Array::New(info.Env(), 2);
  result.Set(0u, StreamHandle::New(info.Env(), stream));
  result.Set(1u, numberOf(info.Env(), static_cast<MosaicStream*>(stream)));
  return result;
}

// close(stream): runs what was submitted, then ends. The handle must not be used again.
void close(const Napi::CallbackInfo& info) { delete info[0].As<StreamHandle>().Data(); }

// address(arrayBuffer)
Napi::Value address(const Napi::CallbackInfo& info) {
  return numberOf(info.Env(), info[0].As<Napi::ArrayBuffer>().Data());
}

// write(stream, address, bytes): copies the bytes when their turn comes.
void write(const Napi::CallbackInfo& info) {
  uint8_t* to = addressOf(info[1]);
  const auto bytes = info[2].As<Napi::Uint8Array>();
  std::vector<uint8_t> copy(bytes.Data(), bytes.Data() + bytes.ByteLength());
  streamOf(info).run([to, copy = std::move(copy)] {
    if (!copy.empty()) std::memcpy(to, copy.data(), copy.size());
  });
}

struct Fence {
  std::shared_ptr<TaskQueue> tasks;
  Napi::Promise::Deferred promise;
  std::optional<MosaicFailure> failure;
};

// fence(stream): a promise of [code, message], code 0 when all work so far succeeded.
Napi::Value fence(const Napi::CallbackInfo& info) {
  tasksOf(info.Env()).expect();
  auto* arg = new Fence{*info.Env().GetInstanceData<Shared>(), Napi::Promise::Deferred::New(info.Env()), {}};
  const auto promise = arg->promise.Promise();
  const MosaicWork work{"fence",
                        [](void* fence, const MosaicFailure* upstream, MosaicFailure*) {
                          if (upstream) static_cast<Fence*>(fence)->failure = *upstream;
                          return 0;
                        },
                        [](void* fence) {
                          const std::shared_ptr<Fence> done(static_cast<Fence*>(fence));
                          done->tasks->deliver([done](Napi::Env env) {
                            auto outcome = Napi::Array::New(env, 2);
                            outcome.Set(0u, Napi::Number::New(env, done->failure ? done->failure->code : 0));
                            outcome.Set(1u, Napi::String::New(env, done->failure ? done->failure->message : ""));
                            done->promise.Resolve(outcome);
                          });
                        },
                        arg};
  Stream& stream = streamOf(info);
  stream.submit(&stream, &work);
  return promise;
}

// hold(stream): compute that goes on until the returned function is called.
Napi::Value hold(const Napi::CallbackInfo& info) {
  auto gate = std::make_shared<std::atomic<bool>>(false);
  streamOf(info).run([gate] { gate->wait(false); });
  return Napi::Function::New(info.Env(), [gate](const Napi::CallbackInfo&) {
    gate->store(true);
    gate->notify_all();
  });
}

// fail(stream): the stream fails like a device whose kernel crashed.
void fail(const Napi::CallbackInfo& info) { streamOf(info).fail("attend: the test wants it so"); }

}  // namespace

static Napi::Object initialize(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Shared(std::make_shared<TaskQueue>(env)));
  exports.Set("open", Napi::Function::New(env, open));
  exports.Set("close", Napi::Function::New(env, close));
  exports.Set("address", Napi::Function::New(env, address));
  exports.Set("write", Napi::Function::New(env, write));
  exports.Set("fence", Napi::Function::New(env, fence));
  exports.Set("hold", Napi::Function::New(env, hold));
  exports.Set("fail", Napi::Function::New(env, fail));
  return exports;
}

}  // namespace mosaic::test

static Napi::Object initializeModule(Napi::Env env, Napi::Object exports) {
  return mosaic::test::initialize(env, exports);
}
NODE_API_MODULE(mosaic_test_device, initializeModule)
