import { chmodSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { world } from "@mosaic/collectives-local";
import { randn } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { traceContext } from "../../src/index.ts";
import type { RankTraceData } from "../../src/view/data.ts";
import { decodeTraces, Kinds } from "../../viewer/model.ts";

let directory = "";
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "mosaic-trace-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

const readTrace = (rank: number): RankTraceData =>
  JSON.parse(readFileSync(join(directory, `rank-${rank}.json`), "utf8")) as RankTraceData;

test("each rank writes a trace of its events, bytes and memory, and the viewer page is written beside it", async () => {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
  const traces = await Promise.all(contexts.map((ctx) => traceContext(ctx, { directory, memoryInterval: 1 })));
  await Promise.all(
    contexts.map(async (ctx) => {
      using x = randn(ctx, [256, 256]);
      using y = x.add(x);
      ctx.world.allReduce(y, "sum", { label: "sum(sp)" }).wait();
      await y.read();
    }),
  );
  const paths = await Promise.all(traces.map((trace) => trace.stop()));
  expect(paths).toEqual([0, 1].map((rank) => join(directory, `rank-${rank}.json`)));
  expect(await traces[0]!.stop()).toBe(paths[0]);
  await Promise.all(contexts.map((ctx) => ctx.close()));
  expect(readdirSync(directory).toSorted()).toEqual(["rank-0.json", "rank-1.json", "viewer.html"]);
  const kinds = new Kinds();
  const run = decodeTraces([0, 1].map(readTrace), kinds);
  expect(run.ranks.map(({ rank, at }) => [rank, at])).toEqual([
    [0, { sp: 0 }],
    [1, { sp: 1 }],
  ]);
  for (const { events, memory, computing } of run.ranks) {
    const names = [...events.kind].map((kind) => kinds.allKinds[kind]!);
    expect(names.some(({ lane, name }) => lane === "compute" && name === "binary")).toBe(true);
    expect(names.some(({ lane, label }) => lane === "communication" && label === "sum(sp)")).toBe(true);
    expect(names.some(({ name }) => name.startsWith("collective "))).toBe(false);
    expect(events.sent.reduce((sum, each) => sum + each, 0)).toBeGreaterThan(0);
    expect(Math.max(...memory!.bytes)).toBeGreaterThanOrEqual(0);
    expect(computing).toBeGreaterThan(0);
    expect(Math.min(...events.start)).toBeGreaterThanOrEqual(0);
  }
});

test("a program that runs longer than the limit is traced up to it, and the trace states so", async () => {
  const [ctx] = await world(1, { device: () => cpu({ threads: 1 }) });
  const trace = await traceContext(ctx!, { directory, seconds: 0.001 });
  const writtenTrace = await new Promise<RankTraceData>((resolve) => {
    const pollTimer = setInterval(() => {
      if (!readdirSync(directory).includes("rank-0.json")) return;
      clearInterval(pollTimer);
      resolve(readTrace(0));
    }, 5);
  });
  expect(writtenTrace.note).toBe("Trace truncated after 0.001 s: the program was still running.");
  await trace.stop();
  await ctx!.close();
  expect(readTrace(0).note).toBe(writtenTrace.note);
});

test("a context that is closed without stop() has no timer left and writes no trace", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "setTimeout", "clearTimeout"] });
  try {
    const [ctx] = await world(1, { device: () => cpu({ threads: 1 }) });
    const trace = await traceContext(ctx!, { directory });
    vi.advanceTimersByTime(50);
    await ctx!.close();
    vi.advanceTimersByTime(120_000);
    expect(vi.getTimerCount()).toBe(0);
    await expect(trace.stop()).rejects.toThrow(/expected an open context/);
  } finally {
    vi.useRealTimers();
  }
  expect(readdirSync(directory)).toEqual([]);
});

test("traceContext rejects invalid options and writes no file", async () => {
  const [ctx] = await world(1, { device: () => cpu({ threads: 1 }) });
  await expect(traceContext(ctx!, { directory: "" })).rejects.toThrow(/traceContext: directory/);
  await expect(traceContext(ctx!, { directory, seconds: 0 })).rejects.toThrow(/seconds/);
  await expect(traceContext(undefined as never, { directory })).rejects.toThrow(/Context/);
  expect(readdirSync(directory)).toEqual([]);
  await ctx!.close();
});

/** Runs `body` without the permissions of the superuser. */
async function runUnprivileged(body: () => Promise<void>): Promise<void> {
  const user = process.geteuid!();
  if (user === 0) process.seteuid!(65_534);
  try {
    await body();
  } finally {
    process.seteuid!(user);
  }
}

test("a directory that cannot be created or written is rejected before the trace begins", async () => {
  const [ctx] = await world(1, { device: () => cpu({ threads: 1 }) });
  writeFileSync(join(directory, "file"), "");
  const checkRejected = (path: string, code: string): Promise<void> =>
    expect(traceContext(ctx!, { directory: path })).rejects.toThrow(
      new RegExp(
        `^traceContext: directory: expected a directory that can be created and written, received "${path}" ` +
          String.raw`\(${code}: .*\); pass a different directory$`,
      ),
    );
  await checkRejected(join(directory, "file"), "EEXIST");
  await checkRejected(join(directory, "file", "traces"), "ENOTDIR");
  chmodSync(directory, 0o555);
  await runUnprivileged(() => checkRejected(directory, "EACCES"));
  await ctx!.close();
});

test("a directory that is invalid on one rank is rejected on every rank, and the group remains usable", async () => {
  const contexts = await world(2, { device: () => cpu({ threads: 1 }) });
  writeFileSync(join(directory, "file"), "");
  const errors = await Promise.all(
    contexts.map((ctx) =>
      traceContext(ctx, { directory: ctx.rank === 1 ? join(directory, "file") : directory }).catch(String),
    ),
  );
  expect(errors).toEqual([
    expect.stringMatching(
      /traceContext, rank 0: expected success on every rank, received a failure on rank 1 \(.*EEXIST/,
    ),
    expect.stringMatching(/traceContext: directory: expected a directory that can be created and written/),
  ]);
  for (const work of contexts.map((ctx) => ctx.world.barrier())) work.wait();
  await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
  await Promise.all(contexts.map((ctx) => ctx.close()));
});
