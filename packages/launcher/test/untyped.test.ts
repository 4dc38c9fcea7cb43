import { inspect } from "node:util";
import fc from "fast-check";
import { describe, expect, it } from "vitest";
import { RendezvousError, UsageError } from "../src/errors.ts";
import type { LaunchOptions } from "../src/job.ts";
import { resolvePlan } from "../src/launch-plan.ts";
import { launch, start } from "../src/launch.ts";
import { createDirectory } from "../src/output/rank-log.ts";
import { connectStore } from "../src/store/client.ts";
import { StoreError } from "../src/store/protocol.ts";
import { StoreServer } from "../src/store/server.ts";

const action = (): number => 3;
const list: readonly unknown[] = [];

/** Values that are invalid for all arguments, and values that are valid only for some of them. */
const wrongValues = [
  ...[null, true, 3, 1.5, -1, Number.NaN, 2 ** 40, "x", "", Symbol("s"), 10n, list, [3], {}, { x: 3 }],
  ...[new Uint8Array(2), action, new Map(), new Date(Number.NaN)],
];
const arbitraryWrongValue = fc.constantFrom<unknown>(...wrongValues);

const numbers = wrongValues.filter((value) => typeof value === "number");
const objects = wrongValues.filter(
  (value) => value !== null && value.constructor !== Array && typeof value === "object",
);
const texts = ["x", ""];
const times = [3, 1.5];

/**
 * For each option, those of the values that are valid; all others must be rejected. On one node, options for several
 * nodes accept any number.
 */
const rightValues: Readonly<Record<keyof LaunchOptions, readonly unknown[]>> = {
  ...{ entry: [], args: [list], exec: [true], cwd: [], env: objects, nodeArgs: [list], imports: [list] },
  ...{ nprocPerNode: [3, 2 ** 40], threads: [3], role: texts, rdzvId: ["x"], nnodes: [], nodeRank: numbers },
  ...{ rdzvEndpoint: texts, rdzvTimeoutMs: numbers, lastCallMs: numbers, bindAny: [true], masterPort: [3] },
  ...{ graceMs: times, failureGraceMs: times, timeoutMs: times, maxRestarts: [3, 2 ** 40], restartBackoffMs: times },
  ...{ minUptimeMs: times, logDir: texts, traceDir: texts, color: [true], abort: [], onEvent: [action] },
};

const isExpected = (error: unknown): boolean =>
  error instanceof UsageError ||
  error instanceof StoreError ||
  error instanceof RendezvousError ||
  typeof (error as NodeJS.ErrnoException).syscall === "string";

/**
 * Returns the error of a call, unless it is an error of this package or of the system; undefined without such an error.
 */
async function catchError(call: () => unknown): Promise<unknown> {
  try {
    await call();
    return undefined;
  } catch (error) {
    return isExpected(error) ? undefined : (error ?? "nothing was thrown");
  }
}

describe("callers without types receive the launcher's errors", () => {
  for (const [name, validValues] of Object.entries(rightValues)) {
    it(`for launch({ ${name} })`, () => {
      for (const value of wrongValues.filter((each) => !validValues.includes(each))) {
        const options = {
          entry: "true",
          exec: true,
          nprocPerNode: 1,
          [name]: value,
        } as unknown as LaunchOptions;
        expect(() => resolvePlan(options, {}), inspect(value)).toThrow(UsageError);
      }
    });
  }

  it("for invalid options of launch and start", async () => {
    for (const value of [undefined, ...wrongValues]) {
      await expect(launch(value as LaunchOptions), inspect(value)).rejects.toThrow(UsageError);
    }
    expect(() => start({ entry: "true", args: 3 } as unknown as LaunchOptions)).toThrow(
      "launch: args: expected an array of strings, received 3",
    );
  });

  it("for invalid directories, addresses, tokens and runs", async () => {
    const calls = [
      (value: never) => createDirectory(typeof value === "string" ? (3 as never) : value),
      (value: never) => connectStore(value),
      (value: never) => connectStore({ address: value, token: "t", runId: "r" }),
      (value: never) => connectStore({ address: "127.0.0.1:1", token: value, runId: "r" }),
      (value: never) => connectStore({ address: "127.0.0.1:1", token: "t", runId: value }),
      (value: never) => connectStore({ address: "127.0.0.1:1", token: "t", runId: "r", attempt: value }),
      async (value: never) => (await StoreServer.listen(value)).close(),
      async (value: never) => (await StoreServer.listen({ runId: "r", port: value })).close(),
      async (value: never) => (await StoreServer.listen({ runId: value })).close(),
    ];
    for (const call of calls) {
      for (const value of wrongValues)
        expect(await catchError(() => call(value as never)), inspect(value)).toBeUndefined();
    }
  });

  it("for 1 000 invalid requests, after which the store still replies", async () => {
    await using server = await StoreServer.listen({ runId: "r" });
    const { address, token } = server;
    await using store = await connectStore({ address, token, runId: "r", attempt: 0 });
    const shortTimeout = { timeoutMs: 1 };
    const requests: readonly ((a: never, b: never) => Promise<unknown>)[] = [
      (a, b) => store.set(a, b),
      (a) => store.get(a),
      (a) => store.waitFor("absent", typeof a === "object" && a !== null ? shortTimeout : a),
      (a) => store.waitFor("absent", { timeoutMs: typeof a === "number" ? Math.min(a, 2) : a }),
      (a) => store.waitFor(a, shortTimeout),
      (a, b) => store.add(a, b),
      (a, b) => store.compareAndSet("k", a, b),
      (a) => store.wait(a, shortTimeout),
      (a) => store.delete(a),
      (a, b) => store.barrier("b", a, { member: b, ...shortTimeout }),
      (a, b) => store.request({ op: "set", key: a }, b),
    ];
    const requestProperty = fc.asyncProperty(
      fc.constantFrom(...requests),
      arbitraryWrongValue,
      arbitraryWrongValue,
      async (request, a, b) => {
        expect(await catchError(() => request(a as never, b as never))).toBeUndefined();
      },
    );
    await fc.assert(requestProperty, { numRuns: 1000 });
    await store.set("k", "v");
    expect(String(await store.get("k"))).toBe("v");
  });
});
