import { world } from "@mosaic/collectives-local";
import {
  attention,
  type Context,
  type Coordinate,
  fromArray,
  layoutOf,
  type Mask,
  masks,
  randn,
  spansLength,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { formatBytes } from "@mosaic/planner";
import { afterEach, expect, test } from "vitest";
import { composed, hierarchical, type Strategy } from "../src/index.ts";
import { crossesHosts } from "../src/mesh-order.ts";

const warnings: (Error & { code?: string })[] = [];
const collectWarning = (warning: Error): void => void (warning.name === "MosaicWarning" && warnings.push(warning));
process.on("warning", collectWarning);
afterEach(() => void warnings.splice(0));

const tokens = 60;
const [numHeads, numKvHeads, headDim] = [8, 2, 4];

interface HostRunOptions {
  /** The host of each rank; undefined if hosts are not known. */
  readonly hosts: number[] | undefined;
  readonly calls?: number;
  readonly valueHeadDim?: number;
  /** A list contains one mask for each sample, and its length is the batch size. */
  readonly mask?: Mask | readonly Mask[];
}

/**
 * Runs a strategy `calls` times on ranks of this process that report these hosts. Returns what each rank sent along
 * each axis.
 */
async function runOnHosts(
  strategy: Strategy,
  mesh: Coordinate,
  { hosts, calls = 1, valueHeadDim = headDim, mask = masks.causal() }: HostRunOptions,
) {
  const size = Object.values(mesh).reduce((product, length) => product * length, 1);
  const contexts = await world(size, { device: () => cpu({ threads: 1 }), mesh, timeout: 20 });
  const layout = layoutOf({ mesh, axes: strategy.axes, placement: "zigzag", length: tokens });
  const runCall = async (ctx: Context): Promise<void> => {
    const rows = spansLength(layout.spans(ctx.mesh.coordinate));
    const createRandom = (heads: number, size: number) =>
      randn(ctx, [Array.isArray(mask) ? mask.length : 1, heads, rows, size]);
    using q = createRandom(numHeads, headDim);
    using k = createRandom(numKvHeads, headDim);
    using v = createRandom(numKvHeads, valueHeadDim);
    for (const input of [q, k, v]) input.requiresGrad = true;
    const options = { backend: strategy, mask, queries: layout, keys: layout };
    using out = attention(ctx, q, k, v, options);
    using dOut = fromArray(
      ctx,
      Array.from({ length: out.size }, () => 1),
      out.shape,
    );
    out.backward(dOut);
    await q.grad!.read();
    for (const input of [q, k, v]) input.grad![Symbol.dispose]();
  };
  try {
    for (const ctx of contexts) Object.assign(ctx.mesh, { hosts });
    for (let call = 0; call < calls; call++) await Promise.all(contexts.map(runCall));
    return contexts.map(({ mesh: { axes, group } }) => {
      return Object.fromEntries(axes.map((axis) => [axis, group(axis).traffic().bytesSent]));
    });
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
}

/** Waits for a warning, which is emitted once the planner is loaded. */
async function waitForWarning(): Promise<Error & { code?: string }> {
  while (warnings.length === 0) await new Promise((resolve) => process.once("warning", resolve));
  return warnings[0]!;
}

const strategy = composed({ meshShape: { head: 2, seq: 2 } });
const sumBytes = (bytesByRank: readonly Record<string, number>[], axis: string): number =>
  bytesByRank.slice(0, 2).reduce((sum, each) => sum + each[axis]!, 0);

test.each([
  ["a plain call", {}],
  ["values of another size", { valueHeadDim: 3 * headDim }],
  ["a mask for each sample", { mask: [masks.causal(), masks.slidingWindow(5)] }],
])("an inner axis that crosses hosts, with %s, causes one warning that states the bytes sent", async (_, call) => {
  const options = { hosts: [0, 0, 1, 1], ...call };
  const bytesSent = await runOnHosts(strategy, { head: 2, seq: 2 }, { ...options, calls: 2 });
  const { message, code } = await waitForWarning();
  const reorderedBytesSent = await runOnHosts(strategy, { seq: 2, head: 2 }, options);
  const bytes = [...message.matchAll(/([\d.]+) kB/g)].map(([, number]) => Number(number));
  expect(bytes).toHaveLength(4);
  expect(bytes[0]! + bytes[1]!).toBeCloseTo(sumBytes(bytesSent, "head") / 2 / 1000, 0);
  expect(bytes[2]! + bytes[3]!).toBeCloseTo(sumBytes(reorderedBytesSent, "seq") / 1000, 0);
  expect(message).toMatch(
    /^composed: the axis "head" crosses hosts in the mesh \{ head: 2, seq: 2 \}: in this attention call, /,
  );
  expect(message).toMatch(
    /with the mesh \{ seq: 2, head: 2 \} it sends .* and .*; pass init\(\{ mesh: \{ seq: 2, head: 2 \} \}\)$/,
  );
  expect(code).toBe("MOSAIC_MESH_ORDER");
  expect(formatBytes(sumBytes(reorderedBytesSent, "seq"))).toMatch(/kB$/);
  expect(warnings).toHaveLength(1);
});

test.each([
  ["within a host", { seq: 2, head: 2 }, [0, 0, 1, 1]],
  ["of one host", { head: 2, seq: 2 }, [0, 0, 0, 0]],
  ["that no order keeps within a host", { seq: 2, head: 2 }, [0, 1, 2, 3]],
  ["of unknown hosts", { head: 2, seq: 2 }, undefined],
])("an inner axis %s causes no warning", async (_, mesh, hosts) => {
  await runOnHosts(strategy, mesh, { hosts });
  await import("@mosaic/planner");
  for (let eventLoopTurn = 0; eventLoopTurn < 5; eventLoopTurn++) await new Promise((resolve) => setImmediate(resolve));
  expect(warnings).toEqual([]);
});

test("hierarchical accepts ranks of one host as a node even if their numbers are not consecutive", async () => {
  const backend = hierarchical({ intraNodeSize: 2 });
  const contexts = await world(4, { device: () => cpu({ threads: 1 }), mesh: { node: 2, gpu: 2 }, timeout: 20 });
  const [ctx] = contexts as readonly [Context, ...Context[]];
  expect([ctx.mesh.hosts, ctx.mesh.group("gpu").hosts]).toEqual([
    [0, 0, 0, 0],
    [0, 0],
  ]);
  const { group } = ctx.mesh;
  const checkCrossing = (hosts: readonly number[] | undefined): void => {
    const gpu = { ...group("gpu"), ranks: [0, 2], hosts: hosts && [hosts[0]!, hosts[2]!] };
    Object.assign(ctx.mesh, { hosts, group: (axis: string) => (axis === "gpu" ? gpu : group(axis)) });
    backend.check!(ctx);
  };
  try {
    expect(() => checkCrossing(undefined)).toThrow(
      /gpu connects ranks 0, 2, which are not consecutive ranks of one node/,
    );
    expect(() => checkCrossing([0, 0, 1, 1])).toThrow(/which are not consecutive ranks of one node/);
    expect(() => checkCrossing([0, 1, 0, 1])).not.toThrow();
  } finally {
    Object.assign(ctx.mesh, { group });
    await Promise.all(contexts.map((each) => each.close()));
  }
});

test("an axis crosses hosts if neighbors along it are on different hosts", () => {
  const shape = { node: 2, gpu: 2 };
  expect(["node", "gpu"].map((axis) => crossesHosts([0, 0, 1, 1], shape, axis))).toEqual([true, false]);
  expect(["node", "gpu"].map((axis) => crossesHosts([0, 1, 0, 1], shape, axis))).toEqual([false, true]);
  expect(["node", "gpu"].map((axis) => crossesHosts([0, 0, 0, 0], shape, axis))).toEqual([false, false]);
});
