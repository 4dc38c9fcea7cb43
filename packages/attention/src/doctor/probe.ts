import { writeSync } from "node:fs";
import { matmul, type MosaicError, ones } from "@mosaic/core";
import { cpu, features } from "@mosaic/kernels-cpu";
import { importCuda, importNccl } from "../device-factories.ts";
import { world } from "../init.ts";
import type { ProbeResult, ProbeValues } from "./system.ts";

const probes: { readonly [Name in keyof ProbeValues]: () => Promise<ProbeValues[Name]> } = {
  cpu: async () => features(),
  ranks: allReduceTwoRanks,
  cuda: async () => (await importCuda()).cudaSystem() as ProbeValues["cuda"],
  gpus: matmulOnGpus,
  nccl: async () => (await importNccl()).ncclSystem() as ProbeValues["nccl"],
};

async function allReduceTwoRanks(): Promise<number> {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }), timeout: 30 });
  const sums = contexts.map(async (ctx) => {
    using a = ones(ctx, [2, 6]);
    using b = ones(ctx, [6, 2]);
    using product = matmul(a, b);
    ctx.world.allReduce(product).wait();
    return (await product.read())[0]!;
  });
  const [sum] = await Promise.all(sums);
  await Promise.all(contexts.map((ctx) => ctx.close()));
  return sum!;
}

async function matmulOnGpus(): Promise<readonly number[]> {
  const { cuda, cudaSystem } = await importCuda();
  const products: number[] = [];
  for (const index of cudaSystem().gpus.keys()) {
    using device = cuda({ index });
    using a = ones(device, [2, 6]);
    using b = ones(device, [6, 2]);
    using product = matmul(a, b);
    products.push((await product.read())[0]!);
  }
  return products;
}

// One probe in a process of its own: `node doctor-probe.js <name>` answers as JSON on file descriptor 3, away from
// whatever native code may print.

const probe = probes[process.argv[2] as keyof typeof probes];
writeSync(3, JSON.stringify(await writeResult(probe)));
// A driver that holds on to its threads must not hold on to us.
process.exit();

async function writeResult(run: () => Promise<unknown>): Promise<ProbeResult<unknown>> {
  try {
    return { value: await run() };
  } catch (error) {
    const { name, message, details } = error as Error & Partial<MosaicError>;
    const remedy = details?.remedy;
    if (remedy === undefined) return { error: { name, message } };
    return { error: { name, message: message.replace(`; ${remedy}`, ""), remedy } };
  }
}
