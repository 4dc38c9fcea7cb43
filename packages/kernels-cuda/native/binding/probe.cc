#include <string>

#include "binding/addon.h"
#include "device/image.h"
#include "driver/driver.h"

namespace mosaic::cuda {

napi_value probe(napi_env env, napi_callback_info) {
  return guarded(env, nullptr, [&] {
    const Driver& cuda = driver();
    int count = 0;
    check(cuda.deviceGetCount(&count), "counting GPUs");
    napi_value found;
    napi_create_array(env, &found);
    auto add = [&, next = uint32_t{0}](const std::string& text) mutable {
      napi_value value;
      napi_create_string_utf8(env, text.data(), text.size(), &value);
      napi_set_element(env, found, next++, value);
    };
    add(versionText(driverVersion()));
    add(driverLibrary());
    add(imageOfDriver() || kernelImage() ? "kernels" : "");
    const BlasLibrary* blas = blasLibrary();
    add(blas ? blas->name + " " + blas->version : "");
    for (int ordinal = 0; ordinal < count; ordinal++) {
      CUdevice device = 0;
      char name[256] = "";
      int major = 0, minor = 0;
      size_t bytes = 0;
      cuda.deviceGet(&device, ordinal);
      cuda.deviceGetName(name, sizeof name, device);
      cuda.deviceGetAttribute(&major, COMPUTE_CAPABILITY_MAJOR, device);
      cuda.deviceGetAttribute(&minor, COMPUTE_CAPABILITY_MINOR, device);
      cuda.deviceTotalMem(&bytes, device);
      add(name);
      add(std::to_string(major) + "." + std::to_string(minor));
      add(std::to_string(bytes));
    }
    return found;
  });
}

}  // namespace mosaic::cuda
