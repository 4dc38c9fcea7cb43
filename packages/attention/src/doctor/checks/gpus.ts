import type { CudaGpu } from "@mosaic/kernels-cuda";
import { type Check, type Finding, gigabytes, note, ok, problem, explained } from "../finding.ts";

export const gpus: Check = {
  name: "GPUs",
  async run(system) {
    const found = await system.ask("cuda");
    if ("error" in found) return [];
    const visible = system.env["CUDA_VISIBLE_DEVICES"];
    const all = found.value.gpus;
    return [
      ...all.map(describe),
      ...(all.length === 0 ? [note("the driver shows none", "check nvidia-smi and CUDA_VISIBLE_DEVICES")] : []),
      ...(visible === undefined ? [] : [note(`only those that CUDA_VISIBLE_DEVICES=${visible} names`)]),
      ...(all.some(({ trouble }) => trouble === undefined) ? await trial(system, all) : []),
    ];
  },
};

function describe({ name, capability, bytes, trouble }: CudaGpu, index: number): Finding {
  const text = `${index}: ${name}, compute capability ${capability}, ${gigabytes(bytes)}`;
  if (trouble === undefined) return ok(`${text}, ${kernelsFor(capability)}`);
  return problem(
    `${text}: ${trouble}`,
    "hide it from Mosaic with CUDA_VISIBLE_DEVICES, or build the package where nvcc is",
  );
}

/** Machine code runs on its own generation; what is newer takes PTX. See native/kernels/image.cmake of the package. */
function kernelsFor(capability: string): string {
  if (capability.startsWith("8.")) return "kernels sm_80";
  return capability === "9.0" ? "kernels sm_90a" : "kernels from PTX, compiled by the driver when first used";
}

async function trial({ ask }: Parameters<Check["run"]>[0], all: readonly CudaGpu[]): Promise<readonly Finding[]> {
  if (all.some(({ trouble }) => trouble !== undefined)) return [];
  const found = await ask("gpus");
  if ("error" in found) return [problem(...explained(found.error))];
  const wrong = found.value.findIndex((product) => product !== 6);
  if (wrong < 0) return [ok(all.length === 1 ? "it computes" : "each computes")];
  return [
    problem(`GPU ${wrong} computed ${found.value[wrong]}, not 6`, "test it with compute-sanitizer and dcgmi diag"),
  ];
}
