import type { Context } from "@mosaic/core";
import { collectivesSuite } from "../collectives/suite.ts";

/** How long a rank has patience: seconds. */
export interface Patience {
  /** That a collective may take. */
  readonly timeout: number;
  /** To wait for the other ranks. */
  readonly connectTimeout: number;
}

/** What a scenario tells the test that has started its rank. */
export interface Player {
  /** Prints a line of JSON. */
  say(event: string, details?: object): void;
  /** Resolves when the test writes a line. */
  told(): Promise<void>;
}

/** What a rank does once it has met the others. */
export type Scenario = (ctx: Context, player: Player) => unknown;

export interface PlayOptions {
  /** Meets the other ranks of the job. */
  readonly open: (patience: Patience) => Promise<Context>;
  /** Scenarios of your own, beside those of `processSuite`. */
  readonly scenarios?: Readonly<Record<string, Scenario>>;
}

/**
 * The whole of a program that a test starts as a rank, with `startRank`: meets the others, plays the scenario named on the
 * command line, closes; and says what happens: "connecting", then what the scenario says, then "closed"; or "failed", with the
 * name and the message of the error.
 *
 * @example
 * ```ts no-run
 * import { local } from "@mosaic/collectives-local";
 * import { playRank } from "@mosaic/conformance";
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await playRank({
 *   open: ({ timeout, connectTimeout }) =>
 *     init({ device: cpu({ threads: 1 }), collectives: local({ connectTimeout }), timeout }),
 * });
 * ```
 */
export async function playRank({ open, scenarios }: PlayOptions): Promise<void> {
  const player: Player = { say, told };
  try {
    say("connecting");
    const [name = ""] = process.argv.slice(2);
    const ctx = await open(patience());
    await { ...suiteScenarios, ...scenarios }[name]!(ctx, player);
    await ctx.close();
    say("closed");
  } catch (error) {
    const { name, message } = error as Error;
    say("failed", { name, message });
  } finally {
    process.stdin.destroy();
  }
}

/** How `processSuite` tells a rank what it shall do: environment variables. */
export const roles = { odd: "MOSAIC_TEST_ODD", limit: "MOSAIC_TEST_LIMIT", patience: "MOSAIC_TEST_PATIENCE" } as const;

function patience(): Patience {
  const { [roles.limit]: limit = "20", [roles.patience]: connecting = "20" } = process.env;
  return { timeout: Number(limit), connectTimeout: Number(connecting) };
}

function isOdd(ctx: Context): boolean {
  return ctx.rank === Number(process.env[roles.odd] ?? -1);
}

function say(event: string, details: object = {}): void {
  process.stdout.write(`${JSON.stringify({ event, rank: Number(process.env.RANK), ...details })}\n`);
}

function told(): Promise<void> {
  return new Promise((resolve) => process.stdin.once("data", () => resolve()));
}

const suiteScenarios: Readonly<Record<string, Scenario>> = {
  conforms,
  differs,
  "is killed": without(() => process.kill(process.pid, "SIGKILL")),
  exits: without(() => process.exit(0)),
  leaves: without((ctx) => ctx.close()),
  "is late": without((_, player) => player.told()),
  throws: without(() => {
    throw new Error("bad loss");
  }),
};

/** Every case of the suite on the one world that there is. */
async function conforms(ctx: Context, player: Player): Promise<void> {
  const lasting = new Proxy(ctx, {
    get: (target, name) => {
      if (name === "close") return async () => {};
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
  });
  const cases = collectivesSuite(async () => [lasting], { sizes: [ctx.size] });
  for (const { name, run } of cases) {
    try {
      await run();
    } catch (error) {
      throw new Error(`${name}: ${(error as Error).message}`, { cause: error });
    }
  }
  player.say("conforms", { cases: cases.length });
}

/** A collective that the odd rank never joins; `then` is what it does instead, when it is told. */
function without(then: Scenario): Scenario {
  return async (ctx, player) => {
    const { world, device } = ctx;
    // Everybody is there, and everybody knows.
    world.barrier().wait();
    await device.stream.synchronize();
    player.say("ready", { pid: process.pid });
    if (isOdd(ctx)) {
      await player.told();
      await then(ctx, player);
      return;
    }
    const x = device.empty([1], "float32");
    world.allReduce(x, "sum", { label: "step 3" }).wait();
    await x.read();
  };
}

/** Calls with another shape than the others; those whom their transport lets go on hear of it at the barrier. */
async function differs(ctx: Context): Promise<void> {
  const { world, device } = ctx;
  const x = device.empty([2, isOdd(ctx) ? 4 : 3], "float32");
  world.allReduce(x).wait();
  world.barrier().wait();
  await x.read();
}
