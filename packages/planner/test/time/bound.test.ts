import { mesh2d } from "@mosaic/backend-mesh2d";
import { expect, test } from "vitest";
import { count, predict, type Profile, record } from "../../src/index.ts";
import { profileWithLink, toyProfile } from "./toy.ts";

const sizes = { numHeads: 1, headDim: 8, dtype: "float32" } as const;

/**
 * Returns the seconds of a rank's tiles and messages, forward and backward, on a machine where both have a rate of 1.
 */
function countWork(shape: readonly [number, number]) {
  const [rows, columns] = shape;
  const mesh = { sp: rows * columns };
  const tokens = 16 * mesh.sp;
  const attentionRecord = record({ ...sizes, backend: mesh2d({ shape, schedule: "overlapped" }), mesh, tokens });
  const [{ forward, backward }] = count(attentionRecord).ranks as [ReturnType<typeof count>["ranks"][number]];
  const pairs = (tokens / rows) * (tokens / columns);
  return {
    mesh,
    tokens,
    forward: { compute: 4 * sizes.headDim * pairs, transfer: forward.sent.bytes },
    backward: { compute: 10 * sizes.headDim * pairs, transfer: backward.sent.bytes },
  };
}

const grids = [
  [4, 4],
  [2, 8],
  [3, 6],
] as const;

test.each(grids)("an overlapped schedule of %d × %d takes at most 1.15 times the lower bound", (...shape) => {
  const { mesh, tokens, ...phases } = countWork(shape);
  for (const phase of ["forward", "backward"] as const) {
    for (const ratio of [0.25, 0.5, 1, 2]) {
      const { compute, transfer } = phases[phase];
      const speed = { flops: 1, halfSpeedRows: 0, halfSpeedKeys: 0, halfSpeedHeadDim: 0 };
      const profile: Profile = {
        ...profileWithLink({ bandwidth: (ratio * transfer) / compute }),
        kernels: { ...toyProfile.kernels, attend: { float32: speed }, attendBackward: { float32: speed } },
      };
      const backend = mesh2d({ shape, schedule: "overlapped", computeToTransfer: ratio });
      const prediction = predict({ ...sizes, backend, mesh, tokens }, profile, { keep: () => false });
      const seconds = phase === "forward" ? prediction.forwardSeconds : prediction.backwardSeconds;
      const bound = Math.max(compute, compute / ratio);
      expect(seconds / bound, `${phase}, compute / transfer ${ratio}`).toBeGreaterThan(1 - 1e-9);
      expect(seconds / bound, `${phase}, compute / transfer ${ratio}`).toBeLessThan(1.15);
    }
  }
});
