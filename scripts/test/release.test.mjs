import { spawnSync } from "node:child_process";
import { existsSync, lstatSync, mkdirSync, readFileSync, readlinkSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";
import {
  findAddonFaults,
  SIZE_BUDGETS_KIB,
  findBudgetFaults,
  FOREIGN_LICENSES,
  findLicenseFaults,
  findManifestFaults,
} from "../release/checks.mjs";
import { createBarePath, extractFirstProgram } from "../release/consumers.mjs";
import { compareVersions, readRequirements, isAtMost, MAX_VERSIONS, findPortabilityFaults } from "../release/elf.mjs";
import { countInstalledBytes, listScopePackages, listPrebuilds } from "../release/installed.mjs";
import { listAddons } from "../release/prebuilds.mjs";
import { createLoopbackEnvironment, publish } from "../release/registry.mjs";
import { formatConsumerTable } from "../release/report.mjs";
import { computeNextManifests } from "../release/stage.mjs";
import { createAptOptions, makeLinksRelative } from "../release/sysroot.mjs";
import { root } from "../release/tools.mjs";
import { listPackages } from "../workspace.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

describe("requirements of an addon", () => {
  /** Compiles a shared library that calls `pthread_create`, whose symbol has another version since glibc 2.34. */
  function compileLibrary(options = []) {
    const directory = createRepository({
      "a.cc": '#include <pthread.h>\nextern "C" int f() { return pthread_create(0, 0, 0, 0); }\n',
    });
    const out = join(directory, "a.so");
    const { status, stderr } = spawnSync(
      "g++",
      ["-shared", "-fPIC", "-nostdlib", join(directory, "a.cc"), "-o", out, ...options],
      { encoding: "utf8" },
    );
    if (status !== 0) throw new Error(stderr);
    return out;
  }

  test("are read from the file as machine, libraries and symbol versions", () => {
    const { machine, libraries, versions } = readRequirements(readFileSync(compileLibrary(["-lc"])));
    expect(machine).toBe(process.arch);
    expect(libraries).toEqual(["libc.so.6"]);
    expect(versions).toHaveLength(1);
    expect(versions[0]).toMatch(/^GLIBC_2\.\d+/);
  });

  test("are faults if they have another machine, a newer symbol version or an unexpected library", () => {
    const plainLibrary = compileLibrary(["-lc"]);
    const platform = `linux-${process.arch}`;
    const [version] = readRequirements(readFileSync(plainLibrary)).versions;
    expect(findPortabilityFaults(plainLibrary, platform, { GLIBC: version.split("_")[1] })).toEqual([]);
    expect(findPortabilityFaults(plainLibrary, platform, { GLIBC: "2.1" })).toEqual([
      `expected symbol versions up to GLIBC_2.1, received ${version}`,
    ]);
    expect(findPortabilityFaults(plainLibrary, "linux-riscv64", { GLIBC: "9" })).toEqual([
      `expected a file for linux-riscv64, received one for ${platform}`,
    ]);
    const unportableLibrary = compileLibrary(["-Wl,--no-as-needed", "-lstdc++", "-lc"]);
    expect(findPortabilityFaults(unportableLibrary, platform, { GLIBC: "9" })).toEqual([
      "expected libraries of glibc and libgcc_s, received libstdc++.so.6",
    ]);
  });

  test("have versions that are compared number by number", () => {
    expect(compareVersions("2.9", "2.28")).toBeLessThan(0);
    expect(compareVersions("2.2.5", "2.3")).toBeLessThan(0);
    expect(compareVersions("2.28", "2.28")).toBe(0);
    expect(compareVersions("2.28.1", "2.28")).toBeGreaterThan(0);
    expect(isAtMost("GLIBC_2.28", MAX_VERSIONS)).toBe(true);
    expect(isAtMost("GLIBC_2.29", MAX_VERSIONS)).toBe(false);
    expect(isAtMost("GLIBCXX_3.4", MAX_VERSIONS)).toBe(false);
    expect(isAtMost("GLIBC_PRIVATE", MAX_VERSIONS)).toBe(false);
  });

  test("can only be read from an ELF file", () => {
    expect(() => readRequirements(Buffer.alloc(64))).toThrow("expected a 64-bit little-endian ELF file");
  });
});

describe("the sysroot", () => {
  test("limits apt to one suite and one architecture, and stores its lists in the directory", () => {
    const directory = createRepository({});
    const options = createAptOptions(directory, "arm64");
    expect(readFileSync(join(directory, "sources.list"), "utf8")).toMatch(
      /^deb \[arch=arm64 signed-by=\S+\] \S+ bullseye main\n$/,
    );
    expect(options).toContain(`--option=Dir::State=${join(directory, "state")}`);
    expect(options).toContain("--option=APT::Architecture=arm64");
  });

  test("has its absolute links replaced by relative ones", () => {
    const directory = createRepository({ "lib/libm.so.6": "" });
    symlinkSync("/lib/libm.so.6", join(directory, "lib/libm.so"));
    makeLinksRelative(directory, directory);
    expect(lstatSync(join(directory, "lib/libm.so")).isSymbolicLink()).toBe(true);
    expect(readlinkSync(join(directory, "lib/libm.so"))).toBe("libm.so.6");
  });
});

describe("release checks", () => {
  test("require a size budget for exactly the published packages", () => {
    const publishedPackages = listPackages(root).filter(({ isProgram, manifest }) => !isProgram && !manifest.private);
    const names = publishedPackages.map((one) => String(one.name));
    expect(Object.keys(SIZE_BUDGETS_KIB).toSorted()).toEqual(names.toSorted());
    expect(findBudgetFaults("@mosaic/core", 1, { "@mosaic/core": 1 })).toEqual([]);
    expect(findBudgetFaults("@mosaic/core", 1025, { "@mosaic/core": 1 })).toEqual([
      "the tarball has 2 KiB, the budget is 1 KiB",
    ]);
    expect(findBudgetFaults("@mosaic/new", 1, {})).toHaveLength(1);
  });

  test("find wrong licenses, install hooks and foreign dependencies", () => {
    const directory = createRepository({ LICENSE: "MIT License\n" });
    expect(findLicenseFaults({ directory, manifest: { license: "MIT" } })).toEqual([]);
    expect(findLicenseFaults({ directory, manifest: { license: "ISC" } })).toHaveLength(1);
    writeFileSync(join(directory, "LICENSE"), "All rights reserved\n");
    expect(findLicenseFaults({ directory, manifest: { license: "MIT" } })).toHaveLength(1);
    expect(findManifestFaults({ dependencies: { "@mosaic/core": "1" }, scripts: { test: "x" } })).toEqual([]);
    expect(findManifestFaults({ dependencies: { leftpad: "1" }, scripts: { postinstall: "x" } })).toHaveLength(2);
  });

  test("accept a listed dependency only with its version and license, and without dependencies or hooks", () => {
    const name = "@huggingface/jinja";
    const createModules = (manifest) => createRepository({ [`${name}/package.json`]: manifest });
    const validManifest = { version: "1.2.3", license: FOREIGN_LICENSES[name] };
    const findFaults = (version, manifest) =>
      findManifestFaults({ dependencies: { [name]: version } }, createModules(manifest));
    expect(findFaults("1.2.3", validManifest)).toEqual([]);
    expect(findFaults("^1.2.3", validManifest)).toEqual([
      `dependency ${name}: expected the checked version 1.2.3, received ^1.2.3`,
    ]);
    expect(findFaults("1.2.3", { ...validManifest, license: "GPL-3.0" })).toEqual([
      `dependency ${name}: expected the license MIT, received GPL-3.0`,
    ]);
    expect(findFaults("1.2.3", { ...validManifest, dependencies: { a: "1" }, scripts: { install: "x" } })).toHaveLength(
      2,
    );
  });

  test("find an addon that is missing for a platform", () => {
    expect(findAddonFaults("/nowhere", ["dist/index.js"], ["linux-x64"])).toEqual([]);
    const directory = createRepository({ "a.cc": "" });
    const [path, machine] = [`prebuilds/linux-${process.arch}/a.node`, `linux-${process.arch}`];
    mkdirSync(join(directory, dirname(path)), { recursive: true });
    const { status } = spawnSync("g++", ["-shared", "-nostdlib", join(directory, "a.cc"), "-o", join(directory, path)]);
    expect(status).toBe(0);
    expect(findAddonFaults(directory, [path], [machine])).toEqual([]);
    expect(findAddonFaults(directory, [path], [machine, "linux-riscv64"])).toEqual([
      "the addon for linux-riscv64 is missing",
    ]);
  });

  test("list all addons, with names after their packages", () => {
    const names = listAddons(root).map(({ target }) => target);
    expect(names).toContain("mosaic_kernels_cpu");
    expect(names).toHaveLength(6);
  });

  test("compute versions from changesets without changing the repository", () => {
    const changeset = '---\n"@mosaic/one": minor\n---\n\nA feature.\n';
    const manifestFields = { version: "1.2.3" };
    const config = { changelog: false, commit: false, fixed: [["@mosaic/*"]], access: "public", baseBranch: "main" };
    const directory = createRepository({
      "package.json": { name: "mosaic", private: true, workspaces: ["packages/*"], packageManager: "npm@11.19.1" },
      ".changeset/config.json": config,
      ".changeset/feature.md": changeset,
      ...describePackage("one", manifestFields),
      ...describePackage("two", { ...manifestFields, dependencies: ["one"] }),
    });
    symlinkSync(join(root, "node_modules"), join(directory, "node_modules"));
    const copy = join(directory, "copy");
    const manifests = computeNextManifests(directory, copy);
    expect(["one", "two"].map((name) => manifests.get(`@mosaic/${name}`).manifest.version)).toEqual(["1.3.0", "1.3.0"]);
    expect(existsSync(join(directory, ".changeset/feature.md"))).toBe(true);
    expect(JSON.parse(readFileSync(join(directory, "packages/one/package.json"), "utf8")).version).toBe("1.2.3");
  });
});

describe("the local registry", () => {
  test("is the only destination, so publish() rejects other registries", () => {
    const otherRegistry = { url: "https://registry.example.org/", npmrc: "/dev/null" };
    expect(() => publish({ directory: "/nowhere" }, otherRegistry)).toThrow("expected a loopback registry");
    expect(() =>
      publish({ directory: "/nowhere" }, { ...otherRegistry, url: "http://127.0.0.1.example.org:80/" }),
    ).toThrow("expected a loopback registry");
  });

  test("replaces all registry settings of the environment", () => {
    const baseEnv = {
      npm_config_registry: "https://a",
      NPM_TOKEN: "b",
      YARN_X: "c",
      npm_package_name: "d",
      PATH: "/bin",
    };
    const env = createLoopbackEnvironment({ url: "http://127.0.0.1:1/", npmrc: "/n" }, baseEnv);
    expect(env).toEqual({
      PATH: "/bin",
      NPM_CONFIG_USERCONFIG: "/n",
      NPM_CONFIG_REGISTRY: "http://127.0.0.1:1/",
      YARN_NPM_REGISTRY_SERVER: "http://127.0.0.1:1/",
      YARN_UNSAFE_HTTP_WHITELIST: "127.0.0.1",
    });
  });
});

describe("consumer projects", () => {
  test("count each installed package once, without packages inside of it", () => {
    const directory = createRepository({
      "node_modules/@mosaic/one/a.js": "12345",
      "node_modules/@mosaic/one/node_modules/@mosaic/three/c.js": "1",
      "node_modules/.pnpm/node_modules/@mosaic/two/prebuilds/b.node": "123",
      "node_modules/tool/d.js": "1",
    });
    symlinkSync(
      join(directory, "node_modules/@mosaic/one"),
      join(directory, "node_modules/.pnpm/node_modules/@mosaic/one"),
    );
    expect(listScopePackages(directory, "@mosaic")).toHaveLength(2);
    expect(countInstalledBytes(directory)).toBe(8);
    expect(listPrebuilds(directory)).toEqual([
      join(directory, "node_modules/.pnpm/node_modules/@mosaic/two/prebuilds"),
    ]);
  });

  test("have a shell in the directory that is their PATH", () => {
    const bin = createBarePath(createRepository({ "node/node": "" }), "/node");
    const { stdout } = spawnSync("/bin/sh", ["-c", "for name in sh g++ cc cmake make; do command -v $name; done"], {
      env: { PATH: bin },
      encoding: "utf8",
    });
    expect(stdout.trim()).toBe(join(bin, "sh"));
  });

  test("run the first program of the README", () => {
    expect(extractFirstProgram("# X\n\n```ts ranks=4\nfirst();\n```\n\n```ts\nsecond();\n```\n")).toBe("first();\n");
    expect(() => extractFirstProgram("# X\n")).toThrow("expected a program");
  });

  test("have a table of the steps that failed and of those that did not run", () => {
    const cells = [
      {
        version: "20",
        manager: "npm",
        bytes: 3 * 2 ** 20,
        results: [
          { step: "install", seconds: 1.25 },
          { step: "run", seconds: 2 },
        ],
      },
      { version: "22", manager: "npm", bytes: 0, results: [{ step: "install", seconds: 1, fault: "no" }] },
    ];
    expect(formatConsumerTable(cells).split("\n").slice(2)).toEqual([
      "| 20, npm | 1.3 | 2.0 | 3.0 |",
      "| 22, npm | **failed** | not run | 0.0 |",
    ]);
  });
});
