import { expect, test } from "vitest";
import { checkPackages } from "../check-packages.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

const manifest = {
  version: "1.0.0",
  description: "A package",
  keywords: ["mosaic", "attention", "ring"],
  license: "MIT",
  type: "module",
  sideEffects: false,
  engines: { node: ">=20.19" },
  exports: { ".": { types: "./dist/index.d.ts", default: "./dist/index.js" }, "./package.json": "./package.json" },
  files: ["dist", "prebuilds"],
};
const files = {
  "README.md": "# A package",
  LICENSE: "MIT",
  "dist/index.js": "export const x = 1;",
  "dist/index.d.ts": "export declare const x: number;",
};
const addon = `prebuilds/${process.platform}-${process.arch}/a.node`;

const validPackages = [
  ["nothing native", {}, {}],
  [
    "an example",
    {},
    {
      "README.md":
        '```sh\nnpm install @mosaic/a @mosaic/b   # once\n```\n```ts\nimport { b } from "@mosaic/b/core";\n```\n',
    },
  ],
  ["an addon", {}, { "CMakeLists.txt": "", [addon]: "" }],
  ["a command", { bin: { run: "./bin/run.js" }, files: ["dist", "bin"] }, { "bin/run.js": "#!/usr/bin/env node\n" }],
];
const EXAMPLE = '```ts\nimport { ring } from "@mosaic/ring";\nimport { svg } from "@mosaic/planner/svg";\n```\n';
const faultyPackages = [
  [
    "an example of a package that is not installed",
    {},
    { "README.md": `# A package\n\n\`\`\`sh\nnpm install @mosaic/ring\n\`\`\`\n\n${EXAMPLE}` },
    /the first example imports @mosaic\/planner, which npm install does not name/,
  ],
  ["an install script", { scripts: { postinstall: "node x" } }, {}, /install script "postinstall"/],
  [
    "a command that the lockfile lacks",
    { bin: { other: "./bin/run.js" }, files: ["dist", "bin"] },
    { "bin/run.js": "#!/usr/bin/env node\n" },
    /package-lock\.json lacks the command "other"/,
  ],
  ["another license", { license: "ISC" }, {}, /expected license MIT/],
  ["no keywords", { keywords: undefined }, {}, /expected the keywords mosaic and attention/],
  ["no words of its own", { keywords: ["mosaic", "attention"] }, {}, /and package-specific keywords/],
  ["a word that stands twice", { keywords: ["mosaic", "attention", "ring", "ring"] }, {}, /a keyword is duplicated/],
  ["an older Node", { engines: { node: ">=18" } }, {}, /engines.node/],
  ["a build that is not shipped", { files: ["prebuilds"] }, {}, /dist\/index.js is not in the tarball/],
  ["an addon that was not built", {}, { "CMakeLists.txt": "" }, /addon is not in the tarball/],
  ["tests in the tarball", { files: ["dist", "test"] }, { "test/a.test.ts": "" }, /test\/a.test.ts should not be/],
  ["an entry point that is not there", { exports: { ".": "./dist/other.js" } }, {}, /other.js/],
];

/** Result for one repository with a package for each case. npm packs all of them at once. */
let checkPromise;
async function findFaults(name) {
  const packages = [...validPackages, ...faultyPackages].map(([name, changes, moreFiles]) => {
    return describePackage(toFolder(name), { ...manifest, ...changes }, { ...files, ...moreFiles });
  });
  const lockfile = { "package-lock.json": { packages: { "packages/a-command": { bin: { run: "bin/run.js" } } } } };
  checkPromise ??= checkPackages(createRepository(Object.assign(lockfile, ...packages)));
  return (await checkPromise).filter((fault) => fault.startsWith(`@mosaic/${toFolder(name)}: `));
}

const toFolder = (name) => name.replaceAll(" ", "-");

test("valid packages have no faults", async () => {
  for (const [name] of validPackages) expect(await findFaults(name)).toEqual([]);
});

test.each(faultyPackages)("finds %s", async (name, _changes, _more, fault) => {
  expect(await findFaults(name)).toContainEqual(expect.stringMatching(fault));
});
