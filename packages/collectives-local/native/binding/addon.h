// What belongs to one JavaScript environment.
#pragma once

#include <napi.h>

#include <atomic>
#include <list>
#include <thread>

#include "../engine.h"
#include "mailbox.h"

namespace mosaic {

/// One rank, as JavaScript holds it.
struct Member {
  std::unique_ptr<Engine> engine;  // null once it has left
  MosaicStream* stream = nullptr;
  std::vector<std::shared_ptr<Group>> groups;

  Engine& open() const {
    if (!engine) throw Failure(MOSAIC_FAILURE_CLOSED, "this rank has left its group");
    return *engine;
  }
};

/// A rendezvous under way, on its own thread.
struct Connecting {
  std::thread thread;
  std::atomic<bool> over{false};
};

struct Addon {
  std::shared_ptr<Mailbox> mailbox;
  /// Those that have not left: an operation under way must not end because nobody holds its group any more.
  std::list<std::shared_ptr<Member>> members;
  std::list<Connecting> connecting;
  std::atomic<bool> ending{false};

  /// Joins what has ended.
  void sweep();
  void abortAll();
  /// At the end of the environment: no thread of ours outlives it.
  void end();
};

/// Runs `body`; native failures become JavaScript errors with `code`, for src/native.ts to turn into classes.
template <typename Body>
auto guarded(Napi::Env env, Body body) -> decltype(body()) {
  try {
    return body();
  } catch (const Failure& failure) {
    Napi::Error error = Napi::Error::New(env, failure.what());
    error.Set("failure", Napi::Number::New(env, failure.code()));
    throw error;
  } catch (const Napi::Error&) {
    throw;
  } catch (const std::exception& exception) {
    throw Napi::Error::New(env, exception.what());
  }
}

/// Opening and closing ranks.
void exportMembers(Napi::Env env, Napi::Object exports);
/// Operations of a rank.
void exportCalls(Napi::Env env, Napi::Object exports);

using Handle = Napi::External<std::shared_ptr<Member>>;
inline std::shared_ptr<Member>& memberOf(const Napi::CallbackInfo& info) { return *info[0].As<Handle>().Data(); }

}  // namespace mosaic
