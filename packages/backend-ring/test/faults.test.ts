import { type Arrangement, backendSuite, type Case } from "@mosaic/conformance";
import { type AttentionBackend, local, type ProcessGroup, type Tensor } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { ring } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

// Tests that the suite detects faults. Each of these rings has one small fault.

/** Faults of a minimal ring of two or three ranks that forwards both keys and sums. The defaults are correct. */
interface RingFault {
  /** Whether a transfer is waited for. */
  readonly wait?: boolean;
  /** Whether sums are initialized to zero. */
  readonly clear?: boolean;
  /** The assumed source rank of the keys of a step; by default the actual one. */
  readonly label?: (source: number, size: number) => number;
  /** Whether this rank's own keys are folded twice. */
  readonly twice?: boolean;
  /** Whether the final sums are added at their owner. */
  readonly home?: boolean;
  /** Factor by which a rank scales the gradients that it forwards. */
  readonly scale?: number;
}

function createPlainRing({
  wait = true,
  clear = true,
  label = (x) => x,
  twice = false,
  home = true,
  scale = 1,
}: RingFault): AttentionBackend {
  const inner = local();
  const wrapRank = (rank: number, size: number) => (rank + size) % size;
  const exchangeWithNeighbors = (group: ProcessGroup, tensors: readonly Tensor[], templates: readonly Tensor[]) => {
    const receiveBuffers = templates.map(({ device, shape, dtype }) => device.empty(shape, dtype));
    const [right, left] = [wrapRank(group.rank + 1, group.size), wrapRank(group.rank - 1, group.size)];
    const sends = tensors.map((tensor) => ({ tensor, to: right }));
    const work = group.sendRecv([...sends, ...receiveBuffers.map((tensor) => ({ tensor, from: left }))]);
    if (wait) work.wait();
    return receiveBuffers;
  };
  const copyDense = (x: Tensor) => {
    const copy = x.device.empty(x.shape, x.dtype);
    x.device.kernels.copy(copy, x);
    return copy;
  };
  const createZeros = (x: Tensor) => {
    const tensor = x.device.empty(x.shape, "float32");
    if (clear) x.device.kernels.fill(tensor, 0);
    return tensor;
  };
  return {
    name: "plain ring",
    axes: ["sp"],
    attend(ctx, call, state, keys) {
      const group = ctx.mesh.group("sp");
      let [k, v] = [copyDense(keys.k), copyDense(keys.v)];
      for (let step = 0; step < group.size; step++) {
        const from = { sp: label(wrapRank(group.rank - step, group.size), group.size) };
        inner.attend(ctx, call, state, { k, v, from });
        if (twice && step === 0) inner.attend(ctx, call, state, { k, v, from });
        if (step + 1 < group.size) [k, v] = exchangeWithNeighbors(group, [k, v], [k, v]) as [Tensor, Tensor];
      }
    },
    attendBackward(ctx, call, grads, keys) {
      const group = ctx.mesh.group("sp");
      const { kernels } = ctx.device;
      let [k, v] = [copyDense(keys.k), copyDense(keys.v)];
      let [dk, dv] = [createZeros(k), createZeros(v)];
      for (let step = 0; step < group.size; step++) {
        const from = { sp: label(wrapRank(group.rank - step, group.size), group.size) };
        inner.attendBackward(ctx, call, { dq: grads.dq, dk, dv }, { k, v, from });
        [k, v] = exchangeWithNeighbors(group, [k, v], [k, v]) as [Tensor, Tensor];
        [dk, dv] = exchangeWithNeighbors(group, [dk, dv], [dk, dv]) as [Tensor, Tensor];
        kernels.scalar("mul", dk, dk, scale);
      }
      if (!home) return;
      kernels.binary("add", grads.dk, grads.dk, dk);
      kernels.binary("add", grads.dv, grads.dv, dv);
    },
  };
}

/** The suite's cases on three equal shards, the only ones that the plain ring supports. */
function createCases(backend: AttentionBackend): Case[] {
  const arrangement: Arrangement = { mesh: { sp: 3 }, axes: ["sp"], backend };
  const suite = backendSuite({
    makeWorld,
    arrangements: [arrangement],
    dtypes: ["float32"],
    extents: [{ queries: 12, keys: 12 }],
  });
  return suite.filter(({ name }) => /zigzag|striped|contiguous/.test(name));
}

async function collectFailures(backend: AttentionBackend): Promise<string[]> {
  const messages: string[] = [];
  for (const { run } of createCases(backend)) await run().catch((error: Error) => messages.push(error.message));
  return messages;
}

test("the plain ring without faults and ring() pass the suite", async () => {
  expect(await collectFailures(createPlainRing({}))).toEqual([]);
  expect(await collectFailures(ring())).toEqual([]);
});

describe("the suite detects", () => {
  const faults: Record<string, RingFault> = {
    "a missing wait for transfers": { wait: false },
    "gradients that are not zero at the start": { clear: false },
    "keys with the positions of another rank": { label: (source, size) => (source + 1) % size },
    "keys that are counted twice": { twice: true },
    "gradients that are not returned to their rank": { home: false },
    "a gradient that is one part in ten thousand too small": { scale: 0.9999 },
    "a gradient that is one part in a million too small": { scale: 0.999999 },
  };
  test.each(Object.keys(faults))("%s", async (name) => {
    expect(await collectFailures(createPlainRing(faults[name]!))).not.toEqual([]);
  });
});
