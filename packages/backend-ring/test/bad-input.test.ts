import { validationSuite } from "@mosaic/conformance";
import { local } from "@mosaic/core";
import { expect, test } from "vitest";
import { ring } from "../src/index.ts";
import { makeWorld, register } from "../../../vitest.world.ts";

// Queries need not be sharded along the axis. If they are not, they are the same on all ranks.
register(
  validationSuite({
    makeWorld,
    backend: (axis) => ring({ axis }),
    nest: (axis, inner) => ring({ axis, inner }),
    sharded: ["keys"],
  }),
);

test("rejects unknown options", () => {
  expect(() => ring({ axes: "tp" } as object)).toThrow(/ring: expected options among axis, inner, received "axes"/);
});

test("the description names the axis, and an inner backend unless it is local()", () => {
  const descriptions = [{}, { inner: local() }, { axis: "node", inner: ring({ axis: "gpu" }) }].map(
    (options) => ring(options).description,
  );
  expect(descriptions).toEqual(["ring(sp)", "ring(sp)", "ring(node, ring(gpu))"]);
});
