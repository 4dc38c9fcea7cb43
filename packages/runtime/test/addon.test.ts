import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { AddonLoadError } from "@mosaic/core";
import { afterEach, expect, onTestFinished, test, vi } from "vitest";
import { findAddon, loadAddon } from "../src/addon.ts";

afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

const name = "mosaic_test";
const file = join(`${process.platform}-${process.arch}`, `${name}.node`);

/** A directory with an empty addon at each of these paths; gone when the test ends. */
function directoryWith(...paths: string[]): string {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-addon-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  for (const path of paths) {
    mkdirSync(join(directory, path, ".."), { recursive: true });
    writeFileSync(join(directory, path), "");
  }
  return directory;
}

const load = (path: string) =>
  loadAddon({
    packageName: "@mosaic/test",
    description: "the addon of this test",
    path,
    protocol: 1,
    requirements: "nothing",
  });

/** Makes this process look as if it ran elsewhere. */
function pretend(platform: string, arch: string, glibc?: string): void {
  const [ownPlatform, ownArch] = [process.platform, process.arch];
  const define = (key: string, value: string) => Object.defineProperty(process, key, { value, configurable: true });
  define("platform", platform);
  define("arch", arch);
  onTestFinished(() => {
    define("platform", ownPlatform);
    define("arch", ownArch);
  });
  vi.spyOn(process.report, "getReport").mockReturnValue({ header: { glibcVersionRuntime: glibc } });
}

test("an addon is that of the package, or lies beside a bundle", () => {
  const inPackage = directoryWith(join("prebuilds", file));
  const url = (directory: string) => pathToFileURL(join(directory, "dist/index.js")).href;
  expect(findAddon(name, url(inPackage))).toBe(join(inPackage, "prebuilds", file));
  const besideBundle = directoryWith(join("dist/prebuilds", file));
  expect(findAddon(name, url(besideBundle))).toBe(join(besideBundle, "dist/prebuilds", file));
  const nowhere = directoryWith();
  expect(findAddon(name, url(nowhere))).toBe(join(nowhere, "prebuilds", file));
});

test("MOSAIC_PREBUILDS names the directory, and nothing else is looked at", () => {
  const directory = directoryWith(join("prebuilds", file));
  vi.stubEnv("MOSAIC_PREBUILDS", "/elsewhere");
  expect(findAddon(name, pathToFileURL(join(directory, "dist/index.js")).href)).toBe(join("/elsewhere", file));
});

test("hosts without an addon get an error that names those that have", () => {
  const hosts = [
    ["darwin", "arm64", undefined, "darwin-arm64"],
    ["win32", "x64", undefined, "win32-x64"],
    ["linux", "riscv64", "2.36", "linux-riscv64"],
    ["linux", "x64", undefined, "linux-x64 with musl"],
    ["linux", "arm64", "2.17", "linux-arm64 with glibc 2.17"],
  ] as const;
  for (const [platform, arch, glibc, received] of hosts) {
    pretend(platform, arch, glibc);
    expect(() => load("/nowhere/addon.node")).toThrow(AddonLoadError);
    expect(() => load("/nowhere/addon.node")).toThrow(
      `expected linux-x64 or linux-arm64 with glibc 2.28 or newer, received ${received}; use a host`,
    );
  }
});

test("on hosts with an addon, the error states why this one did not load", () => {
  for (const glibc of ["2.28", "2.31", "3.0"]) {
    pretend("linux", "x64", glibc);
    expect(() => load("/nowhere/addon.node")).toThrow(/does not exist[\s\S]*MOSAIC_PREBUILDS/);
  }
});
