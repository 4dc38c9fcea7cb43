import { validationSuite } from "@mosaic/conformance";
import {
  type AttentionBackend,
  attention,
  describeBackend,
  init,
  layoutOf,
  local,
  MultiAxisAttention,
  OptionError,
  randn,
} from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { expect, test } from "vitest";
import { flex, type FlexOptions } from "../src/index.ts";
import { makeWorld, register } from "./world.ts";

// Queries may be whole along the axis: they are then the same on every rank.
register(validationSuite({ makeWorld, backend: (axis) => flex({ axis }), sharded: ["keys"] }));

test("two levels of nesting on one axis", () => {
  expect(() => flex({ axis: "sp", inner: flex({ axis: "sp" }) })).toThrow(OptionError);
  expect(() => flex({ axis: "a", inner: flex({ axis: "b", inner: flex({ axis: "a" }) }) })).toThrow(
    /a separate mesh axis/,
  );
});

test("a context that was closed", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const x = randn(ctx, [1, 2, 5, 4]);
  const layout = layoutOf({ mesh: ctx.mesh.shape, axes: ["sp"], length: 5 });
  await ctx.close();
  expect(() => attention(ctx, x, x, x, { backend: flex(), queries: layout, keys: layout })).toThrow(/open context/);
});

test("an inner backend is asked what it needs of the mesh", async () => {
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1 });
  const inner: AttentionBackend = {
    ...local(),
    check({ mesh }) {
      throw new OptionError({ where: "inner", received: mesh.axes.join() });
    },
  };
  expect(() => flex({ inner }).check?.(ctx)).toThrow("inner: received sp");
  expect(() => flex().check?.(ctx)).not.toThrow();
  await ctx.close();
});

test("a module reports at once that the mesh lacks the axis, and no option is ignored", async () => {
  const mesh = { tp: 1 };
  const ctx = await init({ device: cpu({ threads: 1 }), rank: 0, worldSize: 1, mesh, backends: [flex()] });
  const options = { embedDim: 4, numHeads: 1, attentionAxis: 1, backend: "flex" };
  expect(() => new MultiAxisAttention(ctx, options)).toThrow(
    /flex\(sp\), rank 0: expected one of the mesh's axes tp, received "sp"; add the axis to init/,
  );
  expect(() => flex({ axes: "tp" } as object)).toThrow(
    /flex: expected options among axis, stages, cost, queriesTravel, hierarchical, inner, received "axes"/,
  );
  await ctx.close();
});

test.each([
  [{ stages: -1 }, /flex: stages: expected an integer from 0 to 64, or \{ forward, backward \}, received -1/],
  [{ stages: { forward: 1.5 } }, /flex: stages: .*or \{ forward, backward \}, received an object with forward/],
  [{ stages: { tail: 1 } }, /flex: stages: .*tail/],
  [
    { axis: "node", queriesTravel: true, inner: flex({ axis: "gpu" }) },
    /flex\(node\): queriesTravel: .*false with an inner/,
  ],
  [
    { axis: "node", hierarchical: true, inner: flex({ axis: "gpu" }) },
    /flex\(node\): hierarchical: .*false with an inner backend that communicates/,
  ],
  [{ cost: { bandwidth: 0 } }, /flex: cost: bandwidth: .*0/],
  [
    { cost: { alpha: 1 } },
    /flex: cost: expected options among latency, bandwidth, .*memoryBandwidth, received "alpha"/,
  ],
])("%j is refused", (options, message) => {
  expect(() => flex(options as FlexOptions)).toThrow(message);
});

test("ranks whose stages or costs differ have different descriptions", () => {
  const described = [{}, { stages: 1 }, { stages: { backward: 1 } }, { cost: { latency: 1 } }].map((options) =>
    describeBackend(flex(options)),
  );
  expect(describeBackend(flex({ queriesTravel: true }))).toBe("flex(sp, queriesTravel)");
  expect(describeBackend(flex({ queriesTravel: true, hierarchical: true }))).toBe(
    "flex(sp, queriesTravel, hierarchical)",
  );
  expect(described).toEqual(["flex(sp)", "flex(sp, stages 1/1)", "flex(sp, stages auto/1)", "flex(sp, latency 1)"]);
});
