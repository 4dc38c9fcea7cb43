import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { AddonLoadError } from "@mosaic/core";
import { afterEach, expect, onTestFinished, test, vi } from "vitest";
import { findAddon, loadAddon } from "../src/addon.ts";

afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

const name = "mosaic_test";
const file = join(`${process.platform}-${process.arch}`, `${name}.node`);

/** Creates a directory with an empty addon at each of these paths. It is removed when the test ends. */
function createDirectoryWith(...paths: string[]): string {
  const directory = mkdtempSync(join(tmpdir(), "mosaic-addon-"));
  onTestFinished(() => rmSync(directory, { recursive: true }));
  for (const path of paths) {
    mkdirSync(join(directory, path, ".."), { recursive: true });
    writeFileSync(join(directory, path), "");
  }
  return directory;
}

const loadFrom = (path: string) =>
  loadAddon({
    packageName: "@mosaic/test",
    description: "the addon of this test",
    path,
    protocol: 1,
    requirements: "nothing",
  });

/** Makes this process appear to run on another host. */
function overrideHost(platform: string, arch: string, glibc?: string): void {
  const [ownPlatform, ownArch] = [process.platform, process.arch];
  const overrideProperty = (key: string, value: string) =>
    Object.defineProperty(process, key, { value, configurable: true });
  overrideProperty("platform", platform);
  overrideProperty("arch", arch);
  onTestFinished(() => {
    overrideProperty("platform", ownPlatform);
    overrideProperty("arch", ownArch);
  });
  vi.spyOn(process.report, "getReport").mockReturnValue({ header: { glibcVersionRuntime: glibc } });
}

test("findAddon returns the addon of the package, or else the one beside a bundle", () => {
  const packageDirectory = createDirectoryWith(join("prebuilds", file));
  const url = (directory: string) => pathToFileURL(join(directory, "dist/index.js")).href;
  expect(findAddon(name, url(packageDirectory))).toBe(join(packageDirectory, "prebuilds", file));
  const bundleDirectory = createDirectoryWith(join("dist/prebuilds", file));
  expect(findAddon(name, url(bundleDirectory))).toBe(join(bundleDirectory, "dist/prebuilds", file));
  const emptyDirectory = createDirectoryWith();
  expect(findAddon(name, url(emptyDirectory))).toBe(join(emptyDirectory, "prebuilds", file));
});

test("findAddon uses only the directory in MOSAIC_PREBUILDS if it is set", () => {
  const directory = createDirectoryWith(join("prebuilds", file));
  vi.stubEnv("MOSAIC_PREBUILDS", "/elsewhere");
  expect(findAddon(name, pathToFileURL(join(directory, "dist/index.js")).href)).toBe(join("/elsewhere", file));
});

test("unsupported hosts get an error that lists the supported ones", () => {
  const hosts = [
    ["darwin", "arm64", undefined, "darwin-arm64"],
    ["win32", "x64", undefined, "win32-x64"],
    ["linux", "riscv64", "2.36", "linux-riscv64"],
    ["linux", "x64", undefined, "linux-x64 with musl"],
    ["linux", "arm64", "2.17", "linux-arm64 with glibc 2.17"],
  ] as const;
  for (const [platform, arch, glibc, received] of hosts) {
    overrideHost(platform, arch, glibc);
    expect(() => loadFrom("/nowhere/addon.node")).toThrow(AddonLoadError);
    expect(() => loadFrom("/nowhere/addon.node")).toThrow(
      `expected linux-x64 or linux-arm64 with glibc 2.28 or newer, received ${received}; use a host`,
    );
  }
});

test("supported hosts get an error that states why the addon cannot be loaded", () => {
  for (const glibc of ["2.28", "2.31", "3.0"]) {
    overrideHost("linux", "x64", glibc);
    expect(() => loadFrom("/nowhere/addon.node")).toThrow(/does not exist[\s\S]*MOSAIC_PREBUILDS/);
  }
});

test("the remedies are those of an installation, or in a checkout those of a build", () => {
  const listCauses = (directory: string) => {
    try {
      loadFrom(join(directory, "prebuilds", file));
    } catch (error) {
      return (error as Error).message.split("\n").flatMap((line) => /^ {2}- (.*)/.exec(line)?.[1] ?? []);
    }
    throw new Error("the addon was loaded");
  };
  const [reinstall, build] = [
    "delete node_modules and install again",
    "`npm run build:native` in packages/test (needs nothing)",
  ];
  expect(listCauses(createDirectoryWith())).toEqual([
    `the installation of @mosaic/test is incomplete: ${reinstall}`,
    expect.stringMatching(/^a bundler moved the JavaScript .*, or set MOSAIC_PREBUILDS/),
  ]);
  process.env.MOSAIC_PREBUILDS = "/elsewhere";
  expect(listCauses(createDirectoryWith())[0]).toMatch(/^MOSAIC_PREBUILDS is \/elsewhere: set it to .*, or unset it$/);
  delete process.env.MOSAIC_PREBUILDS;
  expect(listCauses(createDirectoryWith(join("prebuilds", file)))).toEqual([
    expect.stringContaining("which `npm ls @mosaic/runtime @mosaic/test` lists: install the same version of all"),
    expect.stringContaining("copy the prebuilds directory of the installed package"),
    `the addon file is damaged: ${reinstall}`,
  ]);
  const source = join("native", "addon.cc");
  expect(listCauses(createDirectoryWith(source))).toEqual([`the addon was not built: run ${build}`]);
  expect(listCauses(createDirectoryWith(source, join("prebuilds", file)))).toEqual([
    `the addon and this JavaScript were built from different sources: rebuild it with ${build}`,
    expect.stringMatching(/^the addon was built for a different platform, .*: rebuild it on this host$/),
  ]);
});

test("a process without addons gets an error that names the options of Node", () => {
  const index = fileURLToPath(new URL("../dist/index.js", import.meta.url));
  const path = join(createDirectoryWith("addon.node"), "addon.node");
  const addon = { packageName: "@mosaic/test", description: "an example", path, protocol: 1, requirements: "nothing" };
  const script = `import { loadAddon } from ${JSON.stringify(index)};
    try { loadAddon(${JSON.stringify(addon)}); } catch ({ name, message }) { console.log(name, message); }`;
  const { stdout } = spawnSync(process.execPath, ["--no-addons", "--input-type=module", "-e", script], {
    encoding: "utf8",
  });
  expect(stdout).toMatch(
    /^AddonLoadError @mosaic\/test: an example: expected a process that may load native addons, .*; omit --no-addons/,
  );
});
