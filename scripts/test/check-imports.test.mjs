import { describe, expect, test } from "vitest";
import { checkImports } from "../check-imports.mjs";
import { pack, repository } from "./fixture.mjs";

const core = pack("core", {}, { "src/index.ts": 'export * from "./tensor.ts";', "src/tensor.ts": "" });
const faultsOf = (...packages) => checkImports(repository(Object.assign({}, core, ...packages)));

test("a sound repository has no fault", () => {
  const faults = faultsOf(
    pack("kernels-cpu", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core";' }),
    pack("conformance", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core";' }),
    pack("launcher", {}, { "src/index.ts": 'import "node:fs";' }),
    pack(
      "collectives-local",
      { dependencies: ["@mosaic/core"], devDependencies: ["@mosaic/kernels-cpu", "@mosaic/conformance"] },
      {
        "src/index.ts": 'import "@mosaic/core";',
        "test/a.test.ts": 'import "@mosaic/kernels-cpu"; import "@mosaic/conformance"; import "../src/index.ts";',
      },
    ),
    pack(
      "apps/demo",
      { dependencies: ["@mosaic/core", "@mosaic/launcher", "@mosaic/program"] },
      { "src/main.ts": 'import "@mosaic/launcher"; import "@mosaic/program";' },
    ),
    pack("apps/program"),
  );
  expect(faults).toEqual([]);
});

test("what is started as a process is a dependency, and not imported", () => {
  const launcher = pack("launcher");
  const manifest = { dependencies: ["@mosaic/core", "@mosaic/launcher"] };
  expect(faultsOf(pack("runtime", manifest, { "src/index.ts": 'import "@mosaic/core";' }), launcher)).toEqual([]);
  expect(faultsOf(pack("runtime", manifest, { "src/index.ts": 'import "@mosaic/launcher";' }), launcher)).toEqual([
    expect.stringMatching(/@mosaic\/launcher is for tests and programs/),
  ]);
  expect(faultsOf(pack("nn", { dependencies: ["@mosaic/launcher"] }), launcher)).toHaveLength(1);
});

const planted = {
  "an upward import": [
    pack("kernels-cpu", { dependencies: ["@mosaic/attention"] }, { "src/index.ts": 'import "@mosaic/attention";' }),
    pack("attention"),
    /may not import upward: @mosaic\/attention/,
  ],
  "a sideways import": [
    pack(
      "collectives-local",
      { dependencies: ["@mosaic/kernels-cpu"] },
      { "src/a.ts": 'import "@mosaic/kernels-cpu";' },
    ),
    pack("kernels-cpu"),
    /may not import sideways/,
  ],
  "a dependency that is forbidden, though unused": [
    pack("backend-ring", { dependencies: ["@mosaic/planner"] }),
    pack("planner"),
    /package.json: @mosaic\/backend-ring .* sideways/,
  ],
  "an undeclared workspace package": [
    pack("kernels-cpu", {}, { "src/index.ts": 'import type { Tensor } from "@mosaic/core";' }),
    /undeclared: add "@mosaic\/core" to the dependencies of packages\/kernels-cpu/,
  ],
  "an undeclared package from npm": [
    pack("nn", {}, { "src/index.ts": 'import "lodash";' }),
    /undeclared: add "lodash"/,
  ],
  "a source that leans on a dev-dependency": [
    pack("nn", { devDependencies: ["vitest"] }, { "src/index.ts": 'import "vitest";' }),
    /undeclared: add "vitest" to the dependencies/,
  ],
  "a deep import by name": [
    pack("nn", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core/dist/tensor.js";' }),
    /deep import: @mosaic\/core does not export ".\/dist\/tensor.js"/,
  ],
  "a deep import by path, from a test": [
    pack("nn", {}, { "test/a.test.ts": 'import "../../core/src/tensor.ts";' }),
    /the path is outside the package/,
  ],
  "a source that imports a test": [
    pack("nn", {}, { "src/index.ts": 'import "../test/data.ts";', "test/data.ts": "" }),
    /may import only published files/,
  ],
  "a package that imports itself by name": [
    pack("nn", {}, { "src/a.ts": 'import "@mosaic/nn";' }),
    /import itself by name/,
  ],
  "a package without a layer": [pack("helpers"), /packages\/helpers has no layer/],
  "conformance as a dependency": [
    pack("nn", { dependencies: ["@mosaic/conformance"] }),
    pack("conformance"),
    /conformance is for tests and programs/,
  ],
  "a launcher that imports tensors": [
    pack("launcher", { dependencies: ["@mosaic/core"] }, { "src/index.ts": 'import "@mosaic/core";' }),
    /@mosaic\/launcher is independent/,
  ],
  "a layer that imports the launcher": [
    pack("backend-ring", { dependencies: ["@mosaic/launcher"] }, { "src/index.ts": 'import "@mosaic/launcher";' }),
    pack("launcher"),
    /launcher is for tests and programs/,
  ],
  "a test that imports upward": [
    pack("nn", { devDependencies: ["@mosaic/attention"] }, { "test/a.test.ts": 'import "@mosaic/attention";' }),
    pack("attention"),
    /a test may not import upward/,
  ],
  "an app that imports an app": [
    pack("apps/one", { dependencies: ["@mosaic/two"] }, { "src/main.ts": 'import "@mosaic/two";' }),
    pack("apps/two"),
    /may not depend on another program/,
  ],
  "what programs share, which imports a program": [
    pack("apps/program", { dependencies: ["@mosaic/two"] }, { "src/main.ts": 'import "@mosaic/two";' }),
    pack("apps/two"),
    /may not depend on another program/,
  ],
  "a built-in without its prefix": [pack("nn", {}, { "src/a.ts": 'import "fs";' }), /write "node:fs"/],
  "a cycle of files": [
    pack("nn", {}, { "src/a.ts": 'import { b } from "./b.ts";', "src/b.ts": 'export { a } from "./a.ts";' }),
    /cycle: src\/a.ts → src\/b.ts → src\/a.ts/,
  ],
  "a cycle of types only": [
    pack("nn", {}, { "src/a.ts": 'import type { B } from "./b.ts";', "src/b.ts": 'type A = import("./a.ts").A;' }),
    /cycle: src\/a.ts → src\/b.ts → src\/a.ts/,
  ],
  "a cycle of packages through dev-dependencies": [
    pack("conformance", { dependencies: ["@mosaic/core"] }),
    pack("core", { devDependencies: ["@mosaic/conformance"] }),
    /packages depend on each other in a cycle/,
  ],
};

test.each(Object.entries(planted))("finds %s", (_, parts) => {
  const faults = faultsOf(...parts.slice(0, -1));
  expect(faults).toContainEqual(expect.stringMatching(parts.at(-1)));
});

describe("a type cycle", () => {
  const cycle = (device, tensor) =>
    checkImports(
      repository(pack("core", {}, { "src/device.ts": device, "src/tensor.ts": tensor, "src/views.ts": "" })),
    );

  test("lets types go round among its files", () => {
    expect(cycle('import type { T } from "./tensor.ts";', 'import type { D } from "./device.ts";')).toEqual([]);
  });

  test("never values", () => {
    const faults = cycle('import { t } from "./tensor.ts";', 'import { d } from "./device.ts";');
    expect(faults).toEqual([expect.stringMatching(/src\/device.ts → src\/tensor.ts → src\/device.ts/)]);
  });
});
