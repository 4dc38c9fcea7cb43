import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import {
  type Context,
  masks,
  MultiAxisAttention,
  reduceGradients,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { formatMesh, meshSize } from "../backend/trials.ts";
import { type Case, check, LEAK_HINT } from "../check.ts";
import { normals } from "../oracle/numbers.ts";
import { type MakeWorld, runOnWorld } from "../world.ts";
import { type Arrangement, arrangementOption, makeWorldOption } from "../suite-options.ts";

export const leakOptions = defineOptions("leakCase", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** The Arrangement to train. */
  arrangement: arrangementOption,
  /** Number of forward and backward steps. The first fifth is warm-up and may fill caches. Default 10000. */
  steps: option.integer({ min: 1, default: 10_000 }),
});
/** Options of `leakCase`. */
export type LeakOptions = OptionsOf<typeof leakOptions>;

/**
 * Bytes by which resident memory may vary. The sizes of the JavaScript heap and the C allocator fluctuate, and so do
 * their minima.
 */
const MAX_RESIDENT_GROWTH_BYTES = 24 << 20;
const NUM_SAMPLES = 10;
/** Steps that may fill caches, and all steps, of the case in which every step frees its memory. */
const [NUM_WARM_UP_STEPS, NUM_STEPS] = [20, 40];

/**
 * Returns a case of many forward and backward steps. Afterwards, no device may hold more memory than after the first
 * steps.
 */
export function leakCase(options: LeakOptions): Case {
  const { makeWorld, arrangement, steps } = leakOptions.parse(options);
  const { mesh, backend } = arrangement;
  return {
    name: `${steps} forward and backward steps of ${backend.name} on ${formatMesh(mesh)} release all memory`,
    async run() {
      const fifthOfSteps = Math.ceil(steps / 5);
      const usageByRank = await runOnWorld(makeWorld, { size: meshSize(mesh), mesh }, async (ctx) => {
        await runTrainingSteps(ctx, arrangement, fifthOfSteps);
        const usageBefore = await measureMinMemory(ctx, arrangement, fifthOfSteps);
        await runTrainingSteps(ctx, arrangement, Math.max(0, steps - 3 * fifthOfSteps));
        return { before: usageBefore, after: await measureMinMemory(ctx, arrangement, fifthOfSteps) };
      });
      for (const [rank, { before, after }] of usageByRank.entries()) checkNoGrowth(rank, before, after);
    },
  };
}

/** Checks that the device memory after every step is the same, without garbage collection. */
export async function checkStepsFreeMemory(makeWorld: MakeWorld, arrangement: Arrangement): Promise<void> {
  const { mesh } = arrangement;
  const bytesByRank = await runOnWorld(makeWorld, { size: meshSize(mesh), mesh }, async (ctx) => {
    const bytesAfterSteps: string[] = [];
    await runTrainingSteps(ctx, arrangement, NUM_STEPS, async () => {
      await ctx.device.stream.synchronize();
      const { allocated, reserved } = ctx.device.memory();
      bytesAfterSteps.push(`${allocated} bytes allocated and ${reserved} reserved`);
    });
    return bytesAfterSteps;
  });
  for (const [rank, bytesAfterSteps] of bytesByRank.entries()) {
    const expectedBytes = bytesAfterSteps[NUM_WARM_UP_STEPS - 1]!;
    for (const [step, bytes] of bytesAfterSteps.entries()) {
      check(
        step < NUM_WARM_UP_STEPS || bytes === expectedBytes,
        `rank ${rank}, step ${step}: expected ${expectedBytes}, received ${bytes}; ${LEAK_HINT}`,
      );
    }
  }
}

/** Returns the minimum memory usage over several samples of a training. A leak raises the minimum, too. */
async function measureMinMemory(ctx: Context, arrangement: Arrangement, steps: number): Promise<MemoryUsage> {
  let minUsage: MemoryUsage | undefined;
  for (let sample = 0; sample < NUM_SAMPLES; sample++) {
    await runTrainingSteps(ctx, arrangement, Math.ceil(steps / NUM_SAMPLES));
    const usage = readMemoryUsage(ctx);
    const previousMinUsage = minUsage ?? usage;
    minUsage = {
      allocated: Math.min(previousMinUsage.allocated, usage.allocated),
      reserved: Math.min(previousMinUsage.reserved, usage.reserved),
      resident: Math.min(previousMinUsage.resident, usage.resident),
      heap: Math.min(previousMinUsage.heap, usage.heap),
    };
  }
  return minUsage!;
}

type MemoryUsage = Readonly<Record<"allocated" | "reserved" | "resident" | "heap", number>>;

function readMemoryUsage({ device }: Context): MemoryUsage {
  setFlagsFromString("--expose-gc");
  (runInNewContext("gc") as () => void)();
  const { allocated, reserved } = device.memory();
  const { rss, heapUsed } = process.memoryUsage();
  return { allocated, reserved, resident: rss, heap: heapUsed };
}

function checkNoGrowth(rank: number, usageBefore: MemoryUsage, usageAfter: MemoryUsage): void {
  const getGrowth = (name: keyof MemoryUsage) => usageAfter[name] - usageBefore[name];
  for (const name of ["allocated", "reserved"] as const) {
    check(
      getGrowth(name) <= 0,
      `rank ${rank}: expected at most ${usageBefore[name]} bytes of ${name} device memory, received ${usageAfter[name]}; ${LEAK_HINT}`,
    );
  }
  for (const name of ["resident", "heap"] as const) {
    check(
      getGrowth(name) < MAX_RESIDENT_GROWTH_BYTES,
      `expected ${name} memory to grow by less than ${MAX_RESIDENT_GROWTH_BYTES} bytes, received ${getGrowth(name)} from ${usageBefore[name]}`,
    );
  }
}

async function runTrainingSteps(
  ctx: Context,
  { backend }: Arrangement,
  steps: number,
  afterStep = (step: number) => synchronizeSometimes(ctx, step),
): Promise<void> {
  const options = {
    embedDim: 8,
    numHeads: 4,
    numKvHeads: 2,
    attentionAxis: 1,
    mask: masks.causal(),
    placement: "zigzag",
  } as const;
  using attention = new MultiAxisAttention(ctx, { ...options, backend });
  using x = ctx.device.empty([1, 6, 8], "float32");
  ctx.device.write(x, normals(48, ctx.rank));
  x.requiresGrad = true;
  for (let step = 0; step < steps; step++) {
    using out = attention.forward(x);
    using dOut = x.detach();
    out.backward(dOut);
    reduceGradients(ctx, attention);
    attention.zeroGrad();
    x.grad?.dispose();
    x.grad = null;
    await afterStep(step);
  }
  await ctx.device.stream.synchronize();
}

/** Limits the number of enqueued kernels, because the host runs ahead of the device. */
async function synchronizeSometimes({ device }: Context, step: number): Promise<void> {
  if (step % 16 === 15) await device.stream.synchronize();
}
