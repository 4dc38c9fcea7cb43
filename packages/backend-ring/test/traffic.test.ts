import {
  addTraffic,
  backendTrials,
  batchTrials,
  measureTraffic,
  placements,
  runBackendOnRank,
  runOnWorld,
  type Trial,
} from "@mosaic/conformance";
import { dtypeBytes, layoutOf, type Traffic } from "@mosaic/core";
import { expect, test } from "vitest";
import { ring, ringTraffic } from "../src/index.ts";
import { makeWorld } from "../../../vitest.world.ts";

/** Measures the traffic of one forward and backward of a trial, by rank. */
async function measureTrial(size: number, trial: Trial): Promise<Traffic[]> {
  return runOnWorld(makeWorld, { size, mesh: trial.mesh }, async (ctx) => {
    const [traffic] = await measureTraffic([ctx.mesh.group("sp")], () => runBackendOnRank(ctx, ring(), trial));
    return traffic!;
  });
}

/** Computes the same traffic with the closed form. */
function predictTraffic(trial: Trial): Traffic[] {
  const { mesh, axes, batch, numKvHeads, headDim, dtype, mask, modifiers } = trial;
  const queries = layoutOf({ mesh, axes, ...trial.queries });
  const keys = layoutOf({ mesh, axes, ...trial.keys });
  return Array.from({ length: mesh.sp! }, (_, sp) => {
    const call = { at: { sp }, mask, modifiers, queries, keys };
    const { forward, backward } = ringTraffic({ mesh, call, width: batch * numKvHeads * headDim, dtype });
    return addTraffic(forward, backward);
  });
}

for (const size of [1, 2, 3, 5]) {
  for (const placement of placements()) {
    test(`${size} ranks, ${placement.name}: traffic equals the closed form for every mask`, async () => {
      const options = { placement, dtype: size % 2 ? "float32" : "bfloat16", seed: 1 } as const;
      for (const trial of backendTrials({ mesh: { sp: size }, axes: ["sp"] }, options)) {
        expect(await measureTrial(size, trial), trial.name).toEqual(predictTraffic(trial));
      }
    });
  }
}

test.each([1, 2, 3, 5])("%d ranks: traffic of batches equals the closed form", async (size) => {
  for (const trial of batchTrials({ mesh: { sp: size }, axes: ["sp"] })) {
    expect(await measureTrial(size, trial), trial.name).toEqual(predictTraffic(trial));
  }
});

/** Creates a trial with equal shards of 8 keys, each of 2 · 4 elements. */
function createEvenTrial(size: number, mask: Trial["mask"], dtype: Trial["dtype"] = "float32"): Trial {
  const sequence = { length: 8 * size, placement: placements()[0]! };
  const sizes = { batch: 1, numHeads: 2, numKvHeads: 2, headDim: 4, scale: 0.5 };
  return {
    name: "even",
    mesh: { sp: size },
    axes: ["sp"],
    ...sizes,
    dtype,
    mask,
    maskMod: () => true,
    seed: 1,
    queries: sequence,
    keys: sequence,
  };
}

test.each([2, 3, 4, 8])(
  "a full ring of %d ranks sends p − 1 chunks of K and V in each pass, and p − 1 of dK and dV",
  async (size) => {
    for (const dtype of ["float32", "bfloat16"] as const) {
      const fullSlice = { q0: 0, q1: 8 * size, k0: 0, k1: 8 * size, type: "full" } as const;
      const chunk = 2 * (2 * 8 * 4); // K and V
      const bytes = (size - 1) * chunk * (2 * dtypeBytes[dtype] + 4);
      for (const traffic of await measureTrial(size, createEvenTrial(size, [fullSlice], dtype))) {
        expect(traffic).toEqual({ bytesSent: bytes, bytesReceived: bytes, messagesSent: 6 * (size - 1) });
      }
    }
  },
);

test("a causal mask on contiguous shards sends half the bytes of a full ring", async () => {
  const size = 4;
  const traffic = await measureTrial(size, createEvenTrial(size, [{ q0: 0, q1: 32, k0: 0, k1: 32, type: "causal" }]));
  const chunk = 2 * (2 * 8 * 4) * 4;
  // Rank r receives K and V of the r ranks before it, twice. It receives sums of those of these chunks that its left
  // neighbor also had, and its own sums from the last rank, unless it is the last rank. Sending is the mirror image.
  expect(traffic.map(({ bytesReceived }) => bytesReceived / chunk)).toEqual([
    0 + 0 + 1,
    2 + 0 + 1,
    4 + 1 + 1,
    6 + 2 + 0,
  ]);
  expect(traffic.map(({ bytesSent }) => bytesSent / chunk)).toEqual([2 + 0, 4 + 1, 6 + 2, 0 + 3]);
});

test("a window sends only to the ranks that it reaches", async () => {
  // Each query attends to 8 keys, the last of which is its own.
  const window = { q0: 7, q1: 64, k0: 0, k1: 64, type: "bidirectionalCausal" } as const;
  const traffic = await measureTrial(8, createEvenTrial(8, [window]));
  expect(traffic.map(({ messagesSent }) => messagesSent)).toEqual([4, 6, 6, 6, 6, 6, 6, 2]);
});

test("nothing is sent if each document is on a single rank", async () => {
  const documents = [0, 1, 2, 3].map(
    (i) => ({ q0: 8 * i, q1: 8 * i + 8, k0: 8 * i, k1: 8 * i + 8, type: "full" }) as const,
  );
  const traffic = await measureTrial(4, createEvenTrial(4, documents));
  expect(traffic).toEqual(Array.from({ length: 4 }, () => ({ bytesSent: 0, bytesReceived: 0, messagesSent: 0 })));
});

test("nested rings send the bytes of the closed form along each axis", async () => {
  const mesh = { node: 3, gpu: 2 };
  const axes = ["node", "gpu"];
  const inner = ring({ axis: "gpu" });
  for (const trial of backendTrials({ mesh, axes }, { placement: placements()[0]!, dtype: "float32", seed: 2 })) {
    const queries = layoutOf({ mesh, axes, ...trial.queries });
    const keys = layoutOf({ mesh, axes, ...trial.keys });
    const width = trial.batch * trial.numKvHeads * trial.headDim;
    await runOnWorld(makeWorld, { size: 6, mesh }, async (ctx) => {
      const [nodeTraffic, gpuTraffic] = await measureTraffic(
        axes.map((axis) => ctx.mesh.group(axis)),
        () => runBackendOnRank(ctx, ring({ axis: "node", inner }), trial),
      );

      const at = ctx.mesh.coordinate;
      const options = { mesh, call: { at, mask: trial.mask, queries, keys }, width, dtype: trial.dtype };
      const predictAxisTraffic = (overrides: Partial<Parameters<typeof ringTraffic>[0]>) => {
        const { forward, backward } = ringTraffic({ ...options, ...overrides });
        return addTraffic(forward, backward);
      };
      expect(nodeTraffic, trial.name).toEqual(predictAxisTraffic({ axis: "node", inner }));
      // The inner ring rotates once for each node's keys, with the chunks that the outer ring received.
      const innerTraffic = [0, 1, 2].map((node) => predictAxisTraffic({ axis: "gpu", from: { ...at, node } }));
      expect(gpuTraffic, trial.name).toEqual(innerTraffic.reduce(addTraffic));
    });
  }
});
