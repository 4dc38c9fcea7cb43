import { validationSuite } from "@mosaic/conformance";
import { describeBackend } from "@mosaic/core";
import { expect, test } from "vitest";
import { flex, type FlexOptions } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

// Queries need not be sharded along the axis. If they are not, they are the same on all ranks.
register(
  validationSuite({
    makeWorld,
    backend: (axis) => flex({ axis }),
    nest: (axis, inner) => flex({ axis, inner }),
    sharded: ["keys"],
  }),
);

test("rejects unknown options", () => {
  expect(() => flex({ axes: "tp" } as object)).toThrow(
    /flex: expected options among axis, stages, cost, queriesTravel, hierarchical, inner, received "axes"/,
  );
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
])("rejects %j", (options, message) => {
  expect(() => flex(options as FlexOptions)).toThrow(message);
});

test("describes stages, costs and queriesTravel, so that ranks with different options differ", () => {
  const descriptions = [{}, { stages: 1 }, { stages: { backward: 1 } }, { cost: { latency: 1 } }].map((options) =>
    describeBackend(flex(options)),
  );
  expect(describeBackend(flex({ queriesTravel: true }))).toBe("flex(sp, queriesTravel)");
  expect(describeBackend(flex({ queriesTravel: true, hierarchical: true }))).toBe(
    "flex(sp, queriesTravel, hierarchical)",
  );
  expect(descriptions).toEqual(["flex(sp)", "flex(sp, stages 1/1)", "flex(sp, stages auto/1)", "flex(sp, latency 1)"]);
});
