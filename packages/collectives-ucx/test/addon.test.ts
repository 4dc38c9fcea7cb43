import { cpSync, mkdirSync, rmSync } from "node:fs";
import { AddonLoadError } from "@mosaic/core";
import { expect, test } from "vitest";
import type * as Package from "../src/index.ts";

test("a missing addon is reported with its likely causes and the remedy", async () => {
  const packageWithoutAddon = new URL("../build/without-addon/", import.meta.url);
  rmSync(packageWithoutAddon, { recursive: true, force: true });
  mkdirSync(packageWithoutAddon, { recursive: true });
  cpSync(new URL("../dist/", import.meta.url), new URL("dist/", packageWithoutAddon), { recursive: true });
  const { ucxSystem } = (await import(new URL("dist/index.js", packageWithoutAddon).href)) as typeof Package;
  expect(() => ucxSystem()).toThrow(AddonLoadError);
  expect(() => ucxSystem()).toThrow(
    /cannot load the UCX transport.*of @mosaic\/collectives-ucx is incomplete: .*install again/s,
  );
});
