import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { packAll } from "../pack.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

test("published packages are packed with the files of their manifests, into an emptied directory", () => {
  const manifestFields = { version: "1.2.3", files: ["dist"] };
  const root = createRepository({
    ...describePackage("one", manifestFields, { "dist/index.js": "export const x = 1;", "src/index.ts": "" }),
    ...describePackage("two", manifestFields, { "dist/index.js": "export const y = 1;" }),
    ...describePackage("apps/demo", manifestFields, { "dist/index.js": "" }),
    "build/packages/mosaic-old-1.0.0.tgz": "left from before",
  });
  const archives = packAll(root);
  const directory = join(root, "build/packages");
  expect(archives).toEqual(["one", "two"].map((name) => join(directory, `mosaic-${name}-1.2.3.tgz`)));
  expect(existsSync(join(directory, "mosaic-old-1.0.0.tgz"))).toBe(false);
  const { stdout } = spawnSync("tar", ["-tf", archives[0]], { encoding: "utf8" });
  expect(stdout.trim().split("\n").toSorted()).toEqual(["package/dist/index.js", "package/package.json"]);
});
