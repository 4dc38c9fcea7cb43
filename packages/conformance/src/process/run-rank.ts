import { setTimeout } from "node:timers/promises";
import type { Context } from "@mosaic/core";
import { collectivesSuite } from "../collectives/suite.ts";

/** Timeouts of one rank, in seconds. */
export interface Timeouts {
  /** Timeout of one collective. */
  readonly timeout: number;
  /** Timeout of the rendezvous. */
  readonly connectTimeout: number;
}

/** The pipe between a scenario and the test that has started its rank. */
export interface ScenarioIo {
  /** Prints an event as a line of JSON. */
  report(event: string, details?: object): void;
  /** Resolves when the test writes a line. */
  waitForLine(): Promise<void>;
}

/** What a rank runs once its process group is connected. */
export type Scenario = (ctx: Context, io: ScenarioIo) => unknown;

/** Options of `runRank`. */
export interface RunRankOptions {
  /** Joins the rendezvous of the job. */
  readonly open: (timeouts: Timeouts) => Promise<Context>;
  /** Custom scenarios, in addition to those of `processSuite`. */
  readonly scenarios?: Readonly<Record<string, Scenario>>;
}

/**
 * Runs the complete program of a rank that a test starts with `startRank`: joins the rendezvous, runs the scenario
 * named on the command line, and closes. Prints the events "connecting", those of the scenario, and then "closed", or
 * "failed" with the name and the message of the error.
 *
 * @example
 * ```ts no-run
 * import { local } from "@mosaic/collectives-local";
 * import { runRank } from "@mosaic/conformance";
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await runRank({
 *   open: ({ timeout, connectTimeout }) =>
 *     init({ device: cpu({ threads: 1 }), collectives: local({ connectTimeout }), timeout }),
 * });
 * ```
 */
export async function runRank({ open, scenarios }: RunRankOptions): Promise<void> {
  const io: ScenarioIo = { report: reportEvent, waitForLine };
  try {
    reportEvent("connecting");
    const [name = ""] = process.argv.slice(2);
    const ctx = await open(readTimeouts());
    await { ...suiteScenarios, ...scenarios }[name]!(ctx, io);
    await ctx.close();
    reportEvent("closed");
  } catch (error) {
    const { name, message } = error as Error;
    reportEvent("failed", { name, message });
  } finally {
    process.stdin.destroy();
  }
}

/** Environment variables through which `processSuite` configures a rank. */
export const scenarioVariables = {
  /** The rank that fails. */
  failingRank: "MOSAIC_TEST_FAILING_RANK",
  timeout: "MOSAIC_TEST_TIMEOUT",
  connectTimeout: "MOSAIC_TEST_CONNECT_TIMEOUT",
} as const;

function readTimeouts(): Timeouts {
  const { timeout, connectTimeout } = scenarioVariables;
  return { timeout: Number(process.env[timeout] ?? 20), connectTimeout: Number(process.env[connectTimeout] ?? 20) };
}

function isFailingRank(ctx: Context): boolean {
  return ctx.rank === Number(process.env[scenarioVariables.failingRank] ?? -1);
}

function reportEvent(event: string, details: object = {}): void {
  process.stdout.write(`${JSON.stringify({ event, rank: Number(process.env.RANK), ...details })}\n`);
}

function waitForLine(): Promise<void> {
  return new Promise((resolve) => process.stdin.once("data", () => resolve()));
}

const suiteScenarios: Readonly<Record<string, Scenario>> = {
  conforms: runSuite,
  differs: postMismatchedShapes,
  "records a mismatched call": recordMismatchedCall,
  "records a mismatched call and closes": recordMismatchAndWait,
  "is killed": skipCollective(() => process.kill(process.pid, "SIGKILL")),
  exits: skipCollective(() => process.exit(0)),
  leaves: skipCollective((ctx) => ctx.close()),
  "is late": skipCollective((_, io) => io.waitForLine()),
  throws: skipCollective(() => {
    throw new Error("the loss is NaN");
  }),
};

/** Runs every case of the suite on the world of this process, which cases must not close. */
async function runSuite(ctx: Context, io: ScenarioIo): Promise<void> {
  const unclosableContext = new Proxy(ctx, {
    get: (target, name) => {
      if (name === "close") return async () => {};
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
  const cases = collectivesSuite(async () => [unclosableContext], { sizes: [ctx.size] });
  for (const { name, run } of cases) {
    try {
      await run();
    } catch (error) {
      throw new Error(`${name}: ${(error as Error).message}`, { cause: error });
    }
  }
  io.report("conforms", { cases: cases.length });
}

/**
 * Returns a scenario with a collective that the failing rank never joins. Once the test writes a line, that rank runs
 * `alternative` instead.
 */
function skipCollective(alternative: Scenario): Scenario {
  return async (ctx, io) => {
    const { world, device } = ctx;
    // Wait until all ranks have joined.
    world.barrier().wait();
    await device.stream.synchronize();
    io.report("ready", { pid: process.pid });
    if (isFailingRank(ctx)) {
      await io.waitForLine();
      await alternative(ctx, io);
      return;
    }
    const x = device.empty([1], "float32");
    world.allReduce(x, "sum", { label: "step 3" }).wait();
    await x.read();
  };
}

/**
 * Records a call in a subgroup that differs on the failing rank, and calls barriers of the world until the failure is
 * reported.
 */
async function recordMismatchedCall(ctx: Context): Promise<void> {
  const { world, device } = ctx;
  const pair = await world.split(Math.floor(ctx.rank / 2), "pair");
  pair.recordCall(`attention, mask ${isFailingRank(ctx) ? "causal" : "full"}`);
  for (const deadline = performance.now() + 10_000; performance.now() < deadline; ) {
    world.barrier().wait();
    await device.stream.synchronize();
    // The call log contains the last 32 calls. A report that takes longer could not describe the calls that differ.
    await setTimeout(20);
  }
}

/** Records a call that differs on the failing rank, sends nothing, and closes once the test writes a line. */
async function recordMismatchAndWait(ctx: Context, io: ScenarioIo): Promise<void> {
  ctx.world.recordCall(`attention, mask ${isFailingRank(ctx) ? "causal" : "full"}`);
  io.report("recorded");
  await io.waitForLine();
}

/** Calls allReduce with another shape on the failing rank. If the transport executes it, ranks fail at the barrier. */
async function postMismatchedShapes(ctx: Context): Promise<void> {
  const { world, device } = ctx;
  const x = device.empty([2, isFailingRank(ctx) ? 4 : 3], "float32");
  world.allReduce(x).wait();
  world.barrier().wait();
  await x.read();
}
