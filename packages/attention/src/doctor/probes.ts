import { matmul, ones } from "@mosaic/core";
import { type CpuFeatures, features, cpu } from "@mosaic/kernels-cpu";
import type { NcclSystem } from "@mosaic/collectives-nccl";
import type { CudaSystem } from "@mosaic/kernels-cuda";
import { importCuda } from "../gpus.ts";
import { importNccl } from "../parts.ts";
import { world } from "../world.ts";

/** What runs native code, each in a process of its own. */
export interface Answers {
  /** The CPU device's addon. */
  readonly cpu: CpuFeatures;
  /** What two ranks compute and sum up between them: 12. */
  readonly ranks: number;
  readonly cuda: CudaSystem;
  /** What each GPU computes: 6. */
  readonly gpus: readonly number[];
  readonly nccl: NcclSystem;
}

export const probes: { readonly [Name in keyof Answers]: () => Promise<Answers[Name]> } = {
  cpu: async () => features(),
  ranks: sumOfTwoRanks,
  cuda: async () => (await importCuda()).cudaSystem(),
  gpus: productsOnGpus,
  nccl: async () => (await importNccl()).ncclSystem(),
};

async function sumOfTwoRanks(): Promise<number> {
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

async function productsOnGpus(): Promise<readonly number[]> {
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
