// Exports for ordering and timing: fences, waiting, traces.
#include "binding/addon.h"

namespace mosaic::cuda {

namespace {

// synchronize: arguments = device, completion.
napi_value synchronize(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value {
    device.onComplete([completion = addon.arguments[1], completions = addon.completions](const MosaicFailure* failure) {
      completions->complete(completion, failure);
    });
    addon.completions->expect();
    return nullptr;
  });
}

// record(): arguments = device → an external that owns the event.
napi_value record(napi_env env, napi_callback_info) {
  Device& device = Addon::of(env).device();
  return rethrowAsJsError(env, &device, [&] {
    auto event = std::make_unique<Event>(device.context());
    check(driver().eventRecord(event->get(), device.stream()), "record");
    napi_value external;
    const auto finalize = [](napi_env, void* data, void*) { delete static_cast<Event*>(data); };
    napi_create_external(env, event.release(), finalize, nullptr, &external);
    return external;
  });
}

// wait(event): arguments = device.
napi_value wait(napi_env env, napi_callback_info info) {
  Device& device = Addon::of(env).device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value {
    check(driver().streamWaitEvent(device.stream(), externalIn<Event>(env, info)->get(), 0), "wait");
    return nullptr;
  });
}

napi_value startTrace(napi_env env, napi_callback_info) {
  Device& device = Addon::of(env).device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value { return device.startTrace(), nullptr; });
}

// stopTrace: arguments = device, completion; call `takeTrace` once the completion has arrived.
napi_value stopTrace(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  return rethrowAsJsError(env, &device, [&]() -> napi_value {
    const double completion = addon.arguments[1];
    auto entries = addon.traces[completion] = std::make_shared<std::vector<TraceEntry>>();
    device.stopTrace([entries, completion, completions = addon.completions](std::vector<TraceEntry> trace) {
      *entries = std::move(trace);
      completions->complete(completion, nullptr);
    });
    addon.completions->expect();
    return nullptr;
  });
}

// takeTrace: arguments = device, completion → [name, start, end, name, …].
napi_value takeTrace(napi_env env, napi_callback_info) {
  Addon& addon = Addon::of(env);
  const auto entry = addon.traces.find(addon.arguments[1]);
  napi_value list;
  napi_create_array(env, &list);
  if (entry == addon.traces.end()) return list;
  uint32_t index = 0;
  for (const auto& [name, start, end] : *entry->second) {
    napi_value values[3];
    napi_create_string_utf8(env, name, NAPI_AUTO_LENGTH, &values[0]);
    napi_create_double(env, static_cast<double>(start), &values[1]);
    napi_create_double(env, static_cast<double>(end), &values[2]);
    for (const napi_value value : values) napi_set_element(env, list, index++, value);
  }
  addon.traces.erase(entry);
  return list;
}

}  // namespace

void exportStream(napi_env env, napi_value exports) {
  exportAll(env, exports,
            {{"synchronize", synchronize},
             {"record", record},
             {"wait", wait},
             {"startTrace", startTrace},
             {"stopTrace", stopTrace},
             {"takeTrace", takeTrace}});
}

}  // namespace mosaic::cuda
