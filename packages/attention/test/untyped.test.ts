import { inspect } from "node:util";
import { MosaicError } from "@mosaic/core";
import { UsageError } from "@mosaic/strategies/command-line";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Fixture, openFixture, openShared, type SharedFixture } from "./untyped/fixture.ts";
import { type Target, listTargets } from "./untyped/targets.ts";
import { mutateArguments, createRandom } from "./untyped/wrong.ts";

const modules = {
  core: "@mosaic/core",
  "context-parallel": "@mosaic/core/context-parallel",
  nn: "@mosaic/nn",
  meta: "@mosaic/meta-attention",
  models: "@mosaic/models",
  strategies: "@mosaic/strategies",
  plan: "@mosaic/strategies/plan",
  "command-line": "@mosaic/strategies/command-line",
  planner: "@mosaic/planner",
  svg: "@mosaic/planner/svg",
  "backend-ring": "@mosaic/backend-ring",
  "backend-mesh2d": "@mosaic/backend-mesh2d",
  "backend-ulysses": "@mosaic/backend-ulysses",
  "backend-flex": "@mosaic/backend-flex",
  "collectives-local": "@mosaic/collectives-local",
  "collectives-nccl": "@mosaic/collectives-nccl",
  "collectives-ucx": "@mosaic/collectives-ucx",
  "kernels-cpu": "@mosaic/kernels-cpu",
  "kernels-cuda": "@mosaic/kernels-cuda",
  conformance: "@mosaic/conformance",
  attention: "@mosaic/attention",
};

// @mosaic/runtime is excluded: authors of devices and transports call it with handles of their addons, whose protocol
// it checks.

const CALLS = 10_000;
const SEED = Number(process.env.MOSAIC_TEST_SEED ?? 20_261_122);
const MIB = 2 ** 20;
/** A call that takes longer counts as hanging. A valid call of `calibrate` takes seconds on a loaded machine. */
const LIMIT_MS = 30_000;

/** Excluded targets, each with the reason. */
const EXCLUDED_TARGETS: readonly (readonly [name: RegExp, why: string])[] = [
  [/Unchecked$/, "of what was checked before: called for every tile"],
  [/\.(SelfAttention|CheckedGroup|Optimizer|Module)$/, "abstract"],
  [
    /Attention(2D)?\.(layout|attend|attendCached)$|CheckedGroup\.|Group\.(post|postRows|record|checkSplit|checkOpen)$/,
    "protected: for subclasses",
  ],
  [/(AdamW|SGD)\.(checkState|numbers|setNumbers|updateParameter|publishParameters)$/, "protected: for subclasses"],
  [
    /^conformance\.(?!\w+Suite$|alongOneAxis$|broadcastSteps$|leakCase$|RankProcesses$|arrangementOptions)/,
    "assertions, oracles and draws: they throw AssertionErrors, and are called by the cases of suites",
  ],
  [/FinalizedStorage\.(releaseMemory|adoptMemory)$/, "always refused: of native storages alone"],
];

/** Targets whose valid call is rejected if there is no GPU or no UCX. */
const needsSystem =
  /^(kernels-cuda\.(cuda|cudaSystem|CudaDevice)|collectives-(nccl|ucx)\.world|collectives-nccl\.ncclSystem|collectives-ucx\.ucxSystem)$/;

/** Runs a call and disposes its result. Resolves to its error, or to undefined if it succeeds. */
async function getOutcome(call: () => unknown, limitMs = LIMIT_MS): Promise<unknown> {
  try {
    const result = await failAfterLimit(call(), limitMs);
    await release(result);
    return undefined;
  } catch (error) {
    return error ?? new Error("nothing was thrown");
  }
}

async function failAfterLimit(result: unknown, limitMs: number): Promise<unknown> {
  if (typeof (result as PromiseLike<unknown> | null | undefined)?.then !== "function") return result;
  let timer: NodeJS.Timeout | undefined;
  const timeoutPromise = new Promise((_, reject) => {
    const seconds = limitMs / 1000;
    timer = setTimeout(() => reject(new Error(`neither resolved nor rejected within ${seconds} s`)), limitMs);
  });
  try {
    return await Promise.race([result, timeoutPromise]);
  } finally {
    clearTimeout(timer);
  }
}

async function release(value: unknown): Promise<void> {
  if (typeof value !== "object" || value === null) return;
  const releasedValues = Array.isArray(value) ? (value as readonly unknown[]) : [value];
  for (const releasedValue of releasedValues) {
    const { [Symbol.asyncDispose]: asyncDispose, [Symbol.dispose]: dispose } = (releasedValue ?? {}) as Partial<
      AsyncDisposable & Disposable
    >;
    if (asyncDispose) await asyncDispose.call(releasedValue);
    else dispose?.call(releasedValue);
  }
}

/** Returns whether an error is expected: an error of Mosaic, or a system error of a file operation. */
function isExpected(error: unknown): boolean {
  if (error === undefined || error instanceof MosaicError || error instanceof UsageError) return true;
  return error instanceof Error && typeof (error as NodeJS.ErrnoException).syscall === "string";
}

function formatStack(error: unknown): string {
  return error instanceof Error ? (error.stack ?? "").split("\n").slice(0, 4).join("\n") : String(error);
}

/**
 * Makes invalid calls of a target. Returns those with unexpected errors. Each call has its own seed, so that it can be
 * repeated.
 */
async function findFaults(
  target: Target,
  fixture: Fixture,
  { firstSeed, count, limitMs }: { firstSeed: number; count: number; limitMs?: number },
): Promise<string[]> {
  const faults: string[] = [];
  for (let seed = firstSeed; seed < firstSeed + count; seed++) {
    const random = createRandom(seed);
    let args: readonly unknown[] = [];
    const error = await getOutcome(async () => {
      args = mutateArguments(random, fixture, await target.getValidArgs(fixture));
      return target.call(fixture, args);
    }, limitMs);
    if (isExpected(error)) continue;
    const formattedArgs = args.map((arg) => inspect(arg, { depth: 2, breakLength: Infinity }).slice(0, 200)).join(", ");
    faults.push(`${target.name}(${formattedArgs}), seed ${seed}: ${formatStack(error)}`);
  }
  return faults;
}

async function runOnFixture<T>(sharedFixture: SharedFixture, body: (fixture: Fixture) => Promise<T>): Promise<T> {
  const fixture = await openFixture(sharedFixture);
  try {
    return await body(fixture);
  } finally {
    // A call may have closed the context, or caused a device error.
    await getOutcome(() => fixture[Symbol.asyncDispose]());
  }
}

describe("callers without types", { timeout: 120_000 }, () => {
  let sharedFixture: SharedFixture;
  let targets: readonly Target[];
  beforeAll(async () => {
    sharedFixture = await openShared();
    const allTargets = await runOnFixture(sharedFixture, (fixture) => listTargets(modules, fixture));
    targets = allTargets.filter(({ name }) => !EXCLUDED_TARGETS.some(([pattern]) => pattern.test(name)));
  });
  afterAll(() => sharedFixture[Symbol.asyncDispose]());

  test("every public function has a valid call, from which invalid calls are derived", async () => {
    const targetsWithoutCall: string[] = [];
    for (const target of targets) {
      const error = await runOnFixture(sharedFixture, (fixture) =>
        getOutcome(async () => target.call(fixture, await target.getValidArgs(fixture))),
      );
      if (needsSystem.test(target.name) && error instanceof MosaicError) continue;
      if (error !== undefined) targetsWithoutCall.push(`${target.name}: ${String(error)}`);
    }
    expect(targets.length).toBeGreaterThan(300);
    expect(targetsWithoutCall).toEqual([]);
  });

  test("10 000 invalid calls throw only errors of Mosaic, and memory does not grow", async () => {
    const callsPerTarget = Math.ceil(CALLS / targets.length);
    const faults: string[] = [];
    const residentBytes: number[] = [];
    for (const [i, target] of targets.entries()) {
      const seeds = { firstSeed: SEED + i * callsPerTarget, count: callsPerTarget };
      faults.push(...(await runOnFixture(sharedFixture, (fixture) => findFaults(target, fixture, seeds))));
      residentBytes.push(process.memoryUsage().rss);
    }
    expect(faults).toEqual([]);
    // The first half is warm-up: code is compiled, and the allocator grows.
    const [earlyMedian, lateMedian] = [
      residentBytes.slice(residentBytes.length / 2, (residentBytes.length * 3) / 4),
      residentBytes.slice((residentBytes.length * 3) / 4),
    ];
    expect(computeMedian(lateMedian) - computeMedian(earlyMedian)).toBeLessThan(64 * MIB);
  });

  test("detects functions that do not check their arguments, and calls that hang", async () => {
    const plantedFaults: Readonly<Record<string, (...args: readonly never[]) => unknown>> = {
      "reads a field": ({ spans }: { spans: unknown }) => spans,
      "rejects with another's error": async () => Promise.reject(new RangeError("no")),
      "calls a method": (text: string) => text.trim(),
    };
    for (const [name, f] of Object.entries(plantedFaults)) {
      const target: Target = { name, getValidArgs: () => [3], call: (_, args) => f(...(args as never[])) };
      expect(
        await runOnFixture(sharedFixture, (fixture) => findFaults(target, fixture, { firstSeed: SEED, count: 100 })),
        name,
      ).not.toEqual([]);
    }
    const hangingTarget: Target = { name: "hangs", getValidArgs: () => [1], call: () => new Promise(() => {}) };
    const singleCallOptions = { firstSeed: SEED, count: 1, limitMs: 100 };
    expect(
      (await runOnFixture(sharedFixture, (fixture) => findFaults(hangingTarget, fixture, singleCallOptions)))[0],
    ).toMatch(/neither resolved/);
  });
});

const computeMedian = (values: readonly number[]): number => values.toSorted((a, b) => a - b)[values.length >> 1]!;
