import { cpSync, mkdirSync, rmSync } from "node:fs";
import { AddonLoadError } from "@mosaic/core";
import { expect, test } from "vitest";
import type * as Package from "../src/index.ts";

test("without its addon the package reports what may be wrong and what to do", async () => {
  const bare = new URL("../build/without-addon/", import.meta.url);
  rmSync(bare, { recursive: true, force: true });
  mkdirSync(bare, { recursive: true });
  cpSync(new URL("../dist/", import.meta.url), new URL("dist/", bare), { recursive: true });
  const { ucxSystem } = (await import(new URL("dist/index.js", bare).href)) as typeof Package;
  expect(() => ucxSystem()).toThrow(AddonLoadError);
  expect(() => ucxSystem()).toThrow(/cannot load the UCX transport.*npm run build.*g\+\+ and CMake/s);
});
