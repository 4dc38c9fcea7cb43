// Checks of GPUs: the driver, the devices, the links between them, and NCCL.

import type { CudaGpu } from "@mosaic/kernels-cuda";
import { hasGpu } from "../detect.ts";
import {
  type Check,
  formatFailure,
  type Finding,
  formatGigabytes,
  createNote,
  createOk,
  createProblem,
  type System,
} from "./system.ts";

const DRIVER_VERSION_PATH = "/proc/driver/nvidia/version";

export const driverCheck: Check = {
  name: "GPU driver",
  async run(system) {
    const moduleVersion = /Kernel Module.*?\s(\d+\.[\d.]+)/.exec(system.readFile(DRIVER_VERSION_PATH) ?? "")?.[1];
    if (system.version("@mosaic/kernels-cuda") === undefined) {
      if (!hasGpu(system)) return [createNote("skipped: @mosaic/kernels-cuda is not installed")];
      return [
        createNote("NVIDIA GPU found, but @mosaic/kernels-cuda is not installed", "npm install @mosaic/kernels-cuda"),
      ];
    }
    const probeResult = await system.runProbe("cuda");
    if ("value" in probeResult) {
      const { driver: cuda, library, cublasLt = "not found: matmul uses the built-in kernel" } = probeResult.value;
      return [
        createOk(`${moduleVersion ? `${moduleVersion}, ` : ""}for CUDA ${cuda}, ${library}`),
        createOk(`cuBLASLt ${cublasLt}`),
      ];
    }
    const [failureText, remedy] = formatFailure(probeResult.error);
    const isGpuBroken = probeResult.error.name !== "DeviceError" || hasGpu(system);
    if (isGpuBroken) return [createProblem(failureText, remedy)];
    return [createNote("not found, and no NVIDIA GPU detected: everything runs on the CPU")];
  },
};

export const gpusCheck: Check = {
  name: "GPUs",
  async run(system) {
    const probeResult = await system.runProbe("cuda");
    if ("error" in probeResult) return [];
    const visibleDevices = system.env["CUDA_VISIBLE_DEVICES"];
    const gpus = probeResult.value.gpus;
    return [
      ...gpus.map(describeGpu),
      ...(gpus.length === 0
        ? [createNote("the driver reports no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES")]
        : []),
      ...(visibleDevices === undefined ? [] : [createNote(`restricted by CUDA_VISIBLE_DEVICES=${visibleDevices}`)]),
      ...(gpus.some(({ problem }) => problem === undefined) ? await checkProducts(system, gpus) : []),
    ];
  },
};

function describeGpu({ name, capability, bytes, problem: gpuProblem }: CudaGpu, index: number): Finding {
  const text = `${index}: ${name}, compute capability ${capability}, ${formatGigabytes(bytes)}`;
  if (gpuProblem === undefined) return createOk(`${text}, ${describeKernelCode(capability)}`);
  return createProblem(
    `${text}: ${gpuProblem}`,
    "exclude it with CUDA_VISIBLE_DEVICES, or build the package where nvcc is installed",
  );
}

/**
 * Describes the code that a GPU runs: machine code of its generation, or PTX on newer GPUs. See
 * native/kernels/image.cmake of the package.
 */
function describeKernelCode(capability: string): string {
  if (capability.startsWith("8.")) return "kernels sm_80";
  return capability === "9.0" ? "kernels sm_90a" : "kernels JIT-compiled from PTX by the driver";
}

async function checkProducts(
  { runProbe }: Parameters<Check["run"]>[0],
  gpus: readonly CudaGpu[],
): Promise<readonly Finding[]> {
  if (gpus.some(({ problem }) => problem !== undefined)) return [];
  const probeResult = await runProbe("gpus");
  if ("error" in probeResult) return [createProblem(...formatFailure(probeResult.error))];
  const failedGpuIndex = probeResult.value.findIndex((product) => product !== 6);
  if (failedGpuIndex < 0)
    return [createOk(gpus.length === 1 ? "test matmul passed" : "test matmul passed on each GPU")];
  return [
    createProblem(
      `the test matmul on GPU ${failedGpuIndex} returned ${probeResult.value[failedGpuIndex]}, expected 6`,
      "test the GPU with compute-sanitizer and dcgmi diag",
    ),
  ];
}

/**
 * Reports the links between GPUs of this host from `nvidia-smi topo -m`. NV12 is twelve NVLinks; other links use PCIe
 * or the system interconnect.
 */
export const gpuLinksCheck: Check = {
  name: "GPU links",
  async run(system) {
    const cuda = await system.runProbe("cuda");
    if (!("value" in cuda) || cuda.value.gpus.length < 2) return [];
    const table = system.runCommand("nvidia-smi", "topo", "-m");
    const pairs = parseTopology(table ?? "");
    if (pairs.length === 0) return [createNote("unknown: nvidia-smi topo reports no topology")];
    const pairsWithoutNvlink = pairs.filter(({ link }) => !link.startsWith("NV"));
    if (pairsWithoutNvlink.length === 0)
      return [createOk(`NVLink between all pairs (${[...new Set(pairs.map(({ link }) => link))].join(", ")})`)];
    const linkKindsText = [...new Set(pairsWithoutNvlink.map(({ link }) => link))].sort().join(", ");
    const { a, b } = pairsWithoutNvlink[0]!;
    return [
      createNote(
        `${pairsWithoutNvlink.length} of ${pairs.length} GPU pairs have no NVLink (${linkKindsText}), such as GPUs ${a} and ${b}`,
        "place the mesh axis with the most communication on NVLink pairs: mosaic-plan accounts for the links",
      ),
    ];
  },
};

interface GpuPair {
  readonly a: number;
  readonly b: number;
  readonly link: string;
}

/** Parses the upper triangle of the table. Its rows are "GPU0  X  NV18 …", and its columns have the same order. */
function parseTopology(table: string): readonly GpuPair[] {
  const rows = table
    .split("\n")
    .map((line) => line.trim().split(/\s+/))
    .filter(([name, ...cells]) => /^GPU\d+$/.test(name ?? "") && cells.includes("X"));
  return rows.flatMap(([, ...cells], a) => {
    return cells.slice(a + 1, rows.length).map((link, i) => ({ a, b: a + 1 + i, link }));
  });
}

/** One port of an RDMA network adapter. */
interface RdmaPort {
  /** Device and port, such as "mlx5_0/1". */
  readonly name: string;
  readonly isActive: boolean;
  /** Rate and link layer, such as "400 Gb/sec (4X NDR), InfiniBand". */
  readonly speed: string;
}

export function listRdmaDevices({ listDirectory }: System): readonly string[] {
  return listDirectory("/sys/class/infiniband");
}

export function listRdmaPorts(system: System): readonly RdmaPort[] {
  const { listDirectory, readFile } = system;
  return listRdmaDevices(system).flatMap((device) => {
    const directory = `/sys/class/infiniband/${device}/ports`;
    return listDirectory(directory).map((port) => {
      const readAttribute = (attribute: string): string =>
        (readFile(`${directory}/${port}/${attribute}`) ?? "unknown").trim();
      return {
        name: `${device}/${port}`,
        isActive: readAttribute("state").includes("ACTIVE"),
        speed: `${readAttribute("rate")}, ${readAttribute("link_layer")}`,
      };
    });
  });
}

export const ncclCheck: Check = {
  name: "NCCL",
  async run(system) {
    const cuda = await system.runProbe("cuda");
    const gpuCount = "value" in cuda ? cuda.value.gpus.length : 0;
    if (system.version("@mosaic/collectives-nccl") === undefined) {
      if (gpuCount < 2) return [];
      return [
        createNote(
          `${gpuCount} GPUs, but @mosaic/collectives-nccl is not installed`,
          "npm install @mosaic/collectives-nccl",
        ),
      ];
    }
    const probeResult = await system.runProbe("nccl");
    if ("value" in probeResult) return [createOk(`${probeResult.value.version}, ${probeResult.value.library}`)];
    const [text, remedy] = formatFailure(probeResult.error);
    if (gpuCount > 1 || probeResult.error.name === "AddonLoadError") return [createProblem(text, remedy)];
    return [
      gpuCount === 1
        ? createNote(`${text}: required only with more than one GPU`, remedy)
        : createNote("not required without a GPU"),
    ];
  },
};
