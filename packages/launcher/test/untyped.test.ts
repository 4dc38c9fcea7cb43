import { inspect } from "node:util";
import { describe, expect, it } from "vitest";
import { UsageError } from "../src/errors.ts";
import type { LaunchOptions } from "../src/job.ts";
import { resolvePlan } from "../src/launch-plan.ts";
import { launch, start } from "../src/launch.ts";
import { createDirectory } from "../src/output/rank-log.ts";
import { connectStore } from "../src/store/client.ts";
import { StoreError } from "../src/store/protocol.ts";
import { StoreServer } from "../src/store/server.ts";

const action = (): number => 3;
const list: readonly unknown[] = [];
const bytes = new Uint8Array(2);

/** Values that are invalid for all arguments, and values that are valid only for some of them. */
const wrongValues = [
  ...[null, true, 3, 1.5, -1, Number.NaN, 2 ** 40, "x", "", Symbol("s"), 10n, list, [3], {}, { x: 3 }],
  ...[bytes, action, new Map(), new Date(Number.NaN)],
];

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
  ...{
    restartResetMs: times,
    minUptimeMs: times,
    logDir: texts,
    traceDir: texts,
    color: [true],
    abort: [],
    onEvent: [action],
  },
};

/** A call, with those of the values that are valid; all others must be rejected. */
type UntypedCall = readonly [name: string, call: (value: never) => unknown, validValues: readonly unknown[]];

/** Checks that a call rejects every value that is not valid, with an error of this package that states the reason. */
async function checkRejections([name, call, validValues]: UntypedCall): Promise<void> {
  for (const value of wrongValues.filter((each) => !validValues.includes(each))) {
    const error = await Promise.resolve(value as never)
      .then(call)
      .catch((reason: unknown) => reason);
    const received = `${name}, ${inspect(value)}: ${String(error)}`;
    expect(error instanceof UsageError || error instanceof StoreError, received).toBe(true);
    expect((error as Error).message, received).toMatch(/expected .*, received |cannot encode the .* request as JSON/s);
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

  const address = "127.0.0.1:1";
  const connection = { address, token: "t", runId: "r" };
  const calls: readonly UntypedCall[] = [
    ["createDirectory(path)", (path) => createDirectory(path), texts],
    ["connectStore(options)", (options) => connectStore(options), []],
    ["connectStore({ address })", (value) => connectStore({ ...connection, address: value }), []],
    ["connectStore({ token })", (token) => connectStore({ ...connection, token }), ["x", ""]],
    ["connectStore({ runId })", (runId) => connectStore({ ...connection, runId }), ["x", ""]],
    ["connectStore({ attempt })", (attempt) => connectStore({ ...connection, attempt }), [null, ...numbers]],
    ["StoreServer.listen(options)", (options) => StoreServer.listen(options), []],
    ["StoreServer.listen({ port })", (port) => StoreServer.listen({ runId: "r", port }), [3]],
    ["StoreServer.listen({ runId })", (runId) => StoreServer.listen({ runId }), texts],
  ];

  it.each(calls)("for %s", async (...call) => checkRejections(call));

  it("for invalid requests, after which the store still replies", async () => {
    await using server = await StoreServer.listen({ runId: "r" });
    await using store = await connectStore({ address: server.address, token: server.token, runId: "r", attempt: 0 });
    const timeout = { timeoutMs: 1 };
    const values = [...texts, bytes];
    const optionObjects = wrongValues.filter(
      (value) => value !== null && !Array.isArray(value) && typeof value === "object",
    );
    const requests: readonly UntypedCall[] = [
      ["set(key)", (key) => store.set(key, "v"), ["x"]],
      ["set(value)", (value) => store.set("x", value), values],
      ["get(key)", (key) => store.get(key), ["x"]],
      ["waitFor(key)", (key) => store.waitFor(key, timeout), ["x"]],
      ["waitFor(options)", (options) => store.waitFor("x", options), optionObjects],
      ["waitFor({ timeoutMs })", (timeoutMs) => store.waitFor("absent", { timeoutMs }), [3, 1.5, 2 ** 40]],
      ["add(key)", (key) => store.add(key, 1), ["x"]],
      ["add(delta)", (delta) => store.add("n", delta), [3, -1, 2 ** 40]],
      ["compareAndSet(key)", (key) => store.compareAndSet(key, "a", "b"), ["x"]],
      ["compareAndSet(expected)", (expected) => store.compareAndSet("x", expected, "b"), values],
      ["compareAndSet(value)", (value) => store.compareAndSet("x", "a", value), values],
      ["wait(keys)", (keys) => store.wait(keys, timeout), [list]],
      ["wait(options)", (options) => store.wait(["x"], options), optionObjects],
      ["delete(key)", (key) => store.delete(key), ["x"]],
      ["barrier(key)", (key) => store.barrier(key, 2, timeout), ["x"]],
      ["barrier(count)", (count) => store.barrier("b", count, timeout), [3, 2 ** 40]],
      ["barrier({ member })", (member) => store.barrier("b", 2, { member, ...timeout }), texts],
      ["request(payload)", (payload) => store.request({ op: "set", key: "x" }, payload), [bytes]],
    ];
    for (const request of requests) await checkRejections(request);
    await store.set("k", "v");
    expect(String(await store.get("k"))).toBe("v");
  });
});
