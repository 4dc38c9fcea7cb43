import { cpSync, mkdirSync, rmSync } from "node:fs";
import { AddonLoadError } from "@mosaic/core";
import { expect, test } from "vitest";
import type * as Package from "../src/index.ts";
import { TestDevice } from "./device.ts";

test("a missing addon is reported with its likely causes and the remedy", async () => {
  const packageWithoutAddon = new URL("../build/without-addon/", import.meta.url);
  rmSync(packageWithoutAddon, { recursive: true, force: true });
  mkdirSync(packageWithoutAddon, { recursive: true });
  cpSync(new URL("../dist/", import.meta.url), new URL("dist/", packageWithoutAddon), { recursive: true });
  const { local } = (await import(new URL("dist/index.js", packageWithoutAddon).href)) as typeof Package;
  using device = new TestDevice();
  const connecting = local({ name: "nobody" }).connect({ device, rank: 0, size: 2 });
  await expect(connecting).rejects.toThrow(AddonLoadError);
  await expect(connecting).rejects.toThrow(
    /cannot load the shared-memory transport.*of @mosaic\/collectives-local is incomplete: .*install again/s,
  );
});
