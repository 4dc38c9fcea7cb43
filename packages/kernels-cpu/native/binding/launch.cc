// One exported function per kernel of the schema: reads its arguments and submits the work.
#include "mosaic/kernel_arguments.h"

#include <cstddef>
#include <memory>
#include <new>

#include "binding/addon.h"

namespace mosaic {

namespace {

template <class Arguments>
struct KernelTask {
  Device& device;
  void (*kernel)(const Arguments& args, Pool& pool);
  Arguments args;

  KernelTask(Device& device, void (*kernel)(const Arguments& args, Pool& pool)) : device(device), kernel(kernel) {}
  void operator()() const { kernel(args, device.pool()); }

  static void* operator new(size_t, Device& device) {
    static_assert(sizeof(KernelTask) <= TaskPool::kSlotBytes && alignof(KernelTask) <= alignof(std::max_align_t));
    return device.tasks.allocate();
  }
  static void operator delete(void* memory, Device& device) { device.tasks.release(memory); }
  static void operator delete(KernelTask* task, std::destroying_delete_t) {
    TaskPool& tasks = task->device.tasks;
    task->~KernelTask();
    tasks.release(task);
  }
};

/// Reads the arguments directly into the memory of the submitted work, because they may be a kilobyte.
template <class Arguments>
void submit(Device& device, ArgumentReader reader, const char* name,
            void (*kernel)(const Arguments& args, Pool& pool)) {
  std::unique_ptr<KernelTask<Arguments>> task(new (device) KernelTask<Arguments>(device, kernel));
  task->args.read(reader);
  enqueueOwned(device.stream, name, std::move(task));
}

struct Op {
  const char* name;
  void (*submit)(Device& device, ArgumentReader args);
};

constexpr Op kOps[] = {
#define MOSAIC_OP(name, Arguments) \
  {#name, [](Device& device, ArgumentReader args) { submit(device, args, #name, device.kernels.name); }},
    MOSAIC_KERNELS(MOSAIC_OP)
#undef MOSAIC_OP
};

// On return, arguments[0] is 0, or 1 if the stream has failed and nothing was submitted.
napi_value launch(napi_env env, napi_callback_info info) {
  void* data;
  napi_get_cb_info(env, info, nullptr, nullptr, nullptr, &data);
  Addon& addon = Addon::of(env);
  Device& device = addon.device();
  if (device.stream.failure()) {
    addon.arguments[0] = 1;
    return nullptr;
  }
  static_cast<const Op*>(data)->submit(device, ArgumentReader(addon.arguments + 1));
  addon.arguments[0] = 0;
  return nullptr;
}

}  // namespace

void exportKernels(napi_env env, napi_value exports) {
  for (const Op& op : kOps) {
    napi_value function;
    napi_create_function(env, op.name, NAPI_AUTO_LENGTH, guarded<launch>, const_cast<Op*>(&op), &function);
    napi_set_named_property(env, exports, op.name, function);
  }
}

}  // namespace mosaic
