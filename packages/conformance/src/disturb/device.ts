import { type Device, type DType, type Shape, Tensor } from "@mosaic/core";

/**
 * The same device, but all memory that it hands out holds NaN, memory used before just as fresh memory. Whoever reads
 * what he has not written, or adds to what he has not cleared, gets NaN.
 *
 * @example
 * ```ts
 * import { poisoned } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * using device = poisoned(cpu({ threads: 1 }));
 * using x = device.empty([2], "float32");
 * Array.from(await x.read()); // => [NaN, NaN]
 * ```
 */
export function poisoned(device: Device): Device {
  const wrapper: Device = {
    type: device.type,
    index: device.index,
    stream: device.stream,
    kernels: device.kernels,
    ...(device.features && { features: device.features }),
    empty(shape: Shape, dtype: DType): Tensor {
      using tensor = device.empty(shape, dtype);
      device.kernels.fill(tensor, Number.NaN);
      const { storage, strides, offset } = tensor;
      return new Tensor({ device: wrapper, dtype, storage, shape, strides, offset });
    },
    write: (out, values) => device.write(out, values),
    read: (x) => device.read(x),
    memory: () => device.memory(),
    resetPeakMemory: () => device.resetPeakMemory(),
    startTrace: () => device.startTrace(),
    stopTrace: () => device.stopTrace(),
    [Symbol.dispose]: () => device[Symbol.dispose](),
  };
  return wrapper;
}
