import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, masks, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { predict, profiles, estimate } from "../src/index.ts";
import { gatheringBackend } from "./gathering.ts";

const call = { tokens: 65_536, numHeads: 16, numKvHeads: 8, headDim: 128, mask: masks.causal(), placement: zigzag() };
const arrangements: readonly (readonly [string, AttentionBackend, Coordinate])[] = [
  ["ring", ring(), { sp: 16 }],
  ["mesh2d, overlapped", mesh2d({ shape: [4, 4], schedule: "overlapped" }), { sp: 16 }],
  ["mesh2d, fused", mesh2d({ shape: [4, 4], schedule: "fused" }), { sp: 16 }],
  ["ulysses × ring", ulysses({ axis: "head", inner: ring({ axis: "seq" }) }), { seq: 4, head: 4 }],
  ["ring × ring", ring({ axis: "node", inner: ring({ axis: "gpu" }) }), { node: 2, gpu: 8 }],
];

test.each(arrangements)(
  "%s: the estimate is within 5 % of the simulation of all ranks if their work is equal",
  (_, backend, mesh) => {
    for (const profile of [profiles["h100-ib400"], profiles["a100-ib200"]]) {
      const simulated = predict({ ...call, backend, mesh }, profile, { keep: () => false });
      const estimated = estimate({ ...call, backend, mesh }, profile);
      expect(Math.abs(estimated.seconds / simulated.seconds - 1)).toBeLessThan(0.05);
      expect(Math.abs(estimated.forwardSeconds / simulated.forwardSeconds - 1)).toBeLessThan(0.05);
      expect(estimated.sent).toEqual(simulated.sent);
      expect(estimated.peakBytes).toBe(simulated.peakBytes);
    }
  },
);

test("estimate accepts a list of ranks and supports collectives", () => {
  const backend = gatheringBackend();
  const estimated = estimate({ ...call, tokens: 4096, backend, mesh: { sp: 4 } }, profiles["h100-ib400"], [1]);
  expect(estimated.seconds).toBeGreaterThan(0);
  expect(estimated.exposedCommunicationSeconds).toBeGreaterThan(0);
  expect(estimated.sent["intra-node"].bytes).toBeGreaterThan(0);
  expect(() => estimate({ ...call, backend, mesh: { sp: 4 } }, profiles["h100-ib400"], [])).toThrow(
    "estimate: ranks: expected at least one rank, received []",
  );
});
