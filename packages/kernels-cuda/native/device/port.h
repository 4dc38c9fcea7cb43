// What the device does for native code of other packages: the ABI of core's include/mosaic/device_port.h.
#pragma once

#include "mosaic/device_port.h"

namespace mosaic::cuda {

class Device;

struct Port : MosaicDevicePort {
  explicit Port(Device& device);
  Device& device;
};

}  // namespace mosaic::cuda
