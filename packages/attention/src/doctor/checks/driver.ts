import { showsGpu } from "../../detect.ts";
import { type Check, note, ok, problem, explained } from "../finding.ts";

const DRIVER = "/proc/driver/nvidia/version";

export const driver: Check = {
  name: "GPU driver",
  async run(system) {
    const module = /Kernel Module.*?\s(\d+\.[\d.]+)/.exec(system.read(DRIVER) ?? "")?.[1];
    if (system.version("@mosaic/kernels-cuda") === undefined) {
      if (!showsGpu(system)) return [note("not looked for: @mosaic/kernels-cuda is not installed")];
      return [note("there is an NVIDIA GPU, and nothing that uses it", "npm install @mosaic/kernels-cuda")];
    }
    const found = await system.ask("cuda");
    if ("value" in found) {
      const { driver: cuda, library, cublasLt = "none: products take a plain kernel" } = found.value;
      return [ok(`${module ? `${module}, ` : ""}for CUDA ${cuda}, ${library}`), ok(`cuBLASLt ${cublasLt}`)];
    }
    const [text, remedy] = explained(found.error);
    const isBroken = found.error.name !== "DeviceError" || showsGpu(system);
    if (isBroken) return [problem(text, remedy)];
    return [note("none, and no NVIDIA GPU to be seen: everything runs on the CPU")];
  },
};
