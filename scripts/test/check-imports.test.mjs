import { describe, expect, test } from "vitest";
import { checkImports } from "../check-imports.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

const core = describePackage("core", {}, { "src/index.ts": 'export * from "./tensor.ts";', "src/tensor.ts": "" });
const findFaults = (...packages) => checkImports(createRepository(Object.assign({}, core, ...packages)));

test("a valid repository has no faults", () => {
  const faults = findFaults(
    describePackage("kernels-cpu", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core";' }),
    describePackage("conformance", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core";' }),
    describePackage("launcher", {}, { "src/index.ts": 'import "node:fs";' }),
    describePackage(
      "collectives-local",
      { dependencies: ["@mosaic/core"], devDependencies: ["@mosaic/kernels-cpu", "@mosaic/conformance"] },
      {
        "src/index.ts": 'import "@mosaic/core";',
        "test/a.test.ts": 'import "@mosaic/kernels-cpu"; import "@mosaic/conformance"; import "../src/index.ts";',
      },
    ),
    describePackage(
      "apps/demo",
      { dependencies: ["@mosaic/core", "@mosaic/launcher", "@mosaic/program"] },
      { "src/main.ts": 'import "@mosaic/launcher"; import "@mosaic/program";' },
    ),
    describePackage("apps/program"),
  );
  expect(faults).toEqual([]);
});

test("a package that is only started as a process may be a dependency, but not imported", () => {
  const launcher = describePackage("launcher");
  const manifest = { dependencies: ["@mosaic/core", "@mosaic/launcher"] };
  expect(
    findFaults(describePackage("runtime", manifest, { "src/index.ts": 'import "@mosaic/core";' }), launcher),
  ).toEqual([]);
  expect(
    findFaults(describePackage("runtime", manifest, { "src/index.ts": 'import "@mosaic/launcher";' }), launcher),
  ).toEqual([expect.stringMatching(/@mosaic\/launcher is for tests and programs/)]);
  expect(findFaults(describePackage("nn", { dependencies: ["@mosaic/launcher"] }), launcher)).toHaveLength(1);
});

const plantedFaults = {
  "an upward import": [
    describePackage(
      "kernels-cpu",
      { dependencies: ["@mosaic/attention"] },
      { "src/index.ts": 'import "@mosaic/attention";' },
    ),
    describePackage("attention"),
    /may not import @mosaic\/attention \(layer \d+\): expected a package of a lower layer/,
  ],
  "a sideways import": [
    describePackage(
      "collectives-local",
      { dependencies: ["@mosaic/kernels-cpu"] },
      { "src/a.ts": 'import "@mosaic/kernels-cpu";' },
    ),
    describePackage("kernels-cpu"),
    /may not import @mosaic\/kernels-cpu .*: expected a package of a lower layer/,
  ],
  "a dependency that is forbidden, though unused": [
    describePackage("backend-ring", { dependencies: ["@mosaic/planner"] }),
    describePackage("planner"),
    /package.json: @mosaic\/backend-ring .* expected a package of a lower layer/,
  ],
  "an undeclared workspace package": [
    describePackage("kernels-cpu", {}, { "src/index.ts": 'import type { Tensor } from "@mosaic/core";' }),
    /undeclared: add "@mosaic\/core" to the dependencies of packages\/kernels-cpu/,
  ],
  "an undeclared package from npm": [
    describePackage("nn", {}, { "src/index.ts": 'import "lodash";' }),
    /undeclared: add "lodash"/,
  ],
  "a source that leans on a dev-dependency": [
    describePackage("nn", { devDependencies: ["vitest"] }, { "src/index.ts": 'import "vitest";' }),
    /undeclared: add "vitest" to the dependencies/,
  ],
  "a deep import by name": [
    describePackage(
      "nn",
      { dependencies: ["@mosaic/core"] },
      { "src/index.ts": 'import "@mosaic/core/dist/tensor.js";' },
    ),
    /deep import: @mosaic\/core does not export ".\/dist\/tensor.js"/,
  ],
  "a deep import by path, from a test": [
    describePackage("nn", {}, { "test/a.test.ts": 'import "../../core/src/tensor.ts";' }),
    /the path is outside the package/,
  ],
  "a source that imports a test": [
    describePackage("nn", {}, { "src/index.ts": 'import "../test/data.ts";', "test/data.ts": "" }),
    /may import only published files/,
  ],
  "a package that imports itself by name": [
    describePackage("nn", {}, { "src/a.ts": 'import "@mosaic/nn";' }),
    /import itself by name/,
  ],
  "a package without a layer": [describePackage("helpers"), /packages\/helpers has no layer/],
  "conformance as a dependency": [
    describePackage("nn", { dependencies: ["@mosaic/conformance"] }),
    describePackage("conformance"),
    /conformance is for tests and programs/,
  ],
  "a launcher that imports tensors": [
    describePackage("launcher", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core";' }),
    /@mosaic\/launcher is independent/,
  ],
  "a layer that imports the launcher": [
    describePackage(
      "backend-ring",
      { dependencies: ["@mosaic/launcher"] },
      { "src/index.ts": 'import "@mosaic/launcher";' },
    ),
    describePackage("launcher"),
    /launcher is for tests and programs/,
  ],
  "a test that imports upward": [
    describePackage(
      "nn",
      { devDependencies: ["@mosaic/attention"] },
      { "test/a.test.ts": 'import "@mosaic/attention";' },
    ),
    describePackage("attention"),
    /a test may not import @mosaic\/attention, a package of a higher layer/,
  ],
  "an app that imports an app": [
    describePackage("apps/one", { dependencies: ["@mosaic/two"] }, { "src/main.ts": 'import "@mosaic/two";' }),
    describePackage("apps/two"),
    /may not depend on another program/,
  ],
  "what programs share, which imports a program": [
    describePackage("apps/program", { dependencies: ["@mosaic/two"] }, { "src/main.ts": 'import "@mosaic/two";' }),
    describePackage("apps/two"),
    /may not depend on another program/,
  ],
  "a built-in without its prefix": [describePackage("nn", {}, { "src/a.ts": 'import "fs";' }), /write "node:fs"/],
  "a cycle of files": [
    describePackage("nn", {}, { "src/a.ts": 'import { b } from "./b.ts";', "src/b.ts": 'export { a } from "./a.ts";' }),
    /cycle: src\/a.ts → src\/b.ts → src\/a.ts/,
  ],
  "a cycle of types only": [
    describePackage(
      "nn",
      {},
      { "src/a.ts": 'import type { B } from "./b.ts";', "src/b.ts": 'type A = import("./a.ts").A;' },
    ),
    /cycle: src\/a.ts → src\/b.ts → src\/a.ts/,
  ],
  "a cycle of packages through dev-dependencies": [
    describePackage("conformance", { dependencies: ["@mosaic/core"] }),
    describePackage("core", { devDependencies: ["@mosaic/conformance"] }),
    /packages depend on each other in a cycle/,
  ],
};

test.each(Object.entries(plantedFaults))("finds %s", (_, testCase) => {
  const faults = findFaults(...testCase.slice(0, -1));
  expect(faults).toContainEqual(expect.stringMatching(testCase.at(-1)));
});

describe("the files that may form a type cycle", () => {
  const findCycleFaults = (device, tensor) =>
    checkImports(
      createRepository(
        describePackage("core", {}, { "src/device.ts": device, "src/tensor.ts": tensor, "src/views.ts": "" }),
      ),
    );

  test("may import types from each other", () => {
    expect(findCycleFaults('import type { T } from "./tensor.ts";', 'import type { D } from "./device.ts";')).toEqual(
      [],
    );
  });

  test("may not import values from each other", () => {
    const faults = findCycleFaults('import { t } from "./tensor.ts";', 'import { d } from "./device.ts";');
    expect(faults).toEqual([expect.stringMatching(/src\/device.ts → src\/tensor.ts → src\/device.ts/)]);
  });
});
