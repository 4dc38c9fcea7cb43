import { spawnSync } from "node:child_process";
import { existsSync, lstatSync, mkdirSync, readFileSync, readlinkSync, symlinkSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { describe, expect, test } from "vitest";
import {
  addonFaults,
  BUDGETS,
  budgetFaults,
  FOREIGN_LICENSES,
  licenceFaults,
  manifestFaults,
} from "../release/checks.mjs";
import { createBarePath, firstProgram } from "../release/consumers.mjs";
import { compareVersions, readRequirements, isAtMost, MAX_VERSIONS, portabilityFaults } from "../release/elf.mjs";
import { installedBytes, packagesOfScope, listPrebuilds } from "../release/installed.mjs";
import { listAddons } from "../release/prebuilds.mjs";
import { loopbackEnvironment, publish } from "../release/registry.mjs";
import { consumerTable } from "../release/report.mjs";
import { nextManifests } from "../release/stage.mjs";
import { aptOptions, makeLinksRelative } from "../release/sysroot.mjs";
import { root } from "../release/tools.mjs";
import { listPackages } from "../workspace.mjs";
import { pack, repository } from "./fixture.mjs";

describe("what an addon demands", () => {
  /** A shared library that calls `pthread_create`, which moved to another version of glibc at 2.34. */
  function library(options = []) {
    const at = repository({
      "a.cc": '#include <pthread.h>\nextern "C" int f() { return pthread_create(0, 0, 0, 0); }\n',
    });
    const out = join(at, "a.so");
    const { status, stderr } = spawnSync(
      "g++",
      ["-shared", "-fPIC", "-nostdlib", join(at, "a.cc"), "-o", out, ...options],
      { encoding: "utf8" },
    );
    if (status !== 0) throw new Error(stderr);
    return out;
  }

  test("is read from the file: libraries, versions, machine", () => {
    const { machine, libraries, versions } = readRequirements(readFileSync(library(["-lc"])));
    expect(machine).toBe(process.arch);
    expect(libraries).toEqual(["libc.so.6"]);
    expect(versions).toHaveLength(1);
    expect(versions[0]).toMatch(/^GLIBC_2\.\d+/);
  });

  test("another machine, a newer version and a strange library are faults", () => {
    const plain = library(["-lc"]);
    const platform = `linux-${process.arch}`;
    const [version] = readRequirements(readFileSync(plain)).versions;
    expect(portabilityFaults(plain, platform, { GLIBC: version.split("_")[1] })).toEqual([]);
    expect(portabilityFaults(plain, platform, { GLIBC: "2.1" })).toEqual([`it demands ${version}`]);
    expect(portabilityFaults(plain, "linux-riscv64", { GLIBC: "9" })).toEqual([`the file is for ${platform}`]);
    const strange = library(["-Wl,--no-as-needed", "-lstdc++", "-lc"]);
    expect(portabilityFaults(strange, platform, { GLIBC: "9" })).toEqual(["the file links with libstdc++.so.6"]);
  });

  test("versions are compared number by number", () => {
    expect(compareVersions("2.9", "2.28")).toBeLessThan(0);
    expect(compareVersions("2.2.5", "2.3")).toBeLessThan(0);
    expect(compareVersions("2.28", "2.28")).toBe(0);
    expect(compareVersions("2.28.1", "2.28")).toBeGreaterThan(0);
    expect(isAtMost("GLIBC_2.28", MAX_VERSIONS)).toBe(true);
    expect(isAtMost("GLIBC_2.29", MAX_VERSIONS)).toBe(false);
    expect(isAtMost("GLIBCXX_3.4", MAX_VERSIONS)).toBe(false);
    expect(isAtMost("GLIBC_PRIVATE", MAX_VERSIONS)).toBe(false);
  });

  test("what is no ELF file is rejected", () => {
    expect(() => readRequirements(Buffer.alloc(64))).toThrow("expected a 64-bit little-endian ELF file");
  });
});

describe("the sysroot", () => {
  test("apt reads one suite of one architecture, and keeps its lists there", () => {
    const at = repository({});
    const options = aptOptions(at, "arm64");
    expect(readFileSync(join(at, "sources.list"), "utf8")).toMatch(
      /^deb \[arch=arm64 signed-by=\S+\] \S+ bullseye main\n$/,
    );
    expect(options).toContain(`--option=Dir::State=${join(at, "state")}`);
    expect(options).toContain("--option=APT::Architecture=arm64");
  });

  test("links stay within it", () => {
    const at = repository({ "lib/libm.so.6": "" });
    symlinkSync("/lib/libm.so.6", join(at, "lib/libm.so"));
    makeLinksRelative(at, at);
    expect(lstatSync(join(at, "lib/libm.so")).isSymbolicLink()).toBe(true);
    expect(readlinkSync(join(at, "lib/libm.so"))).toBe("libm.so.6");
  });
});

describe("before publishing", () => {
  test("every published package has a budget, and no other", () => {
    const published = listPackages(root).filter(({ isProgram, manifest }) => !isProgram && !manifest.private);
    const names = published.map((one) => String(one.name));
    expect(Object.keys(BUDGETS).toSorted()).toEqual(names.toSorted());
    expect(budgetFaults("@mosaic/core", 1, { "@mosaic/core": 1 })).toEqual([]);
    expect(budgetFaults("@mosaic/core", 1025, { "@mosaic/core": 1 })).toEqual([
      "the tarball has 2 KiB, the budget is 1 KiB",
    ]);
    expect(budgetFaults("@mosaic/new", 1, {})).toHaveLength(1);
  });

  test("licences, hooks and foreign dependencies are found", () => {
    const at = repository({ LICENSE: "MIT License\n" });
    expect(licenceFaults({ directory: at, manifest: { license: "MIT" } })).toEqual([]);
    expect(licenceFaults({ directory: at, manifest: { license: "ISC" } })).toHaveLength(1);
    writeFileSync(join(at, "LICENSE"), "All rights reserved\n");
    expect(licenceFaults({ directory: at, manifest: { license: "MIT" } })).toHaveLength(1);
    expect(manifestFaults({ dependencies: { "@mosaic/core": "1" }, scripts: { test: "x" } })).toEqual([]);
    expect(manifestFaults({ dependencies: { leftpad: "1" }, scripts: { postinstall: "x" } })).toHaveLength(2);
  });

  test("a listed dependency has one version, its license, and nothing that it brings along", () => {
    const name = "@huggingface/jinja";
    const modules = (manifest) => repository({ [`${name}/package.json`]: manifest });
    const right = { version: "1.2.3", license: FOREIGN_LICENSES[name] };
    const faults = (version, manifest) => manifestFaults({ dependencies: { [name]: version } }, modules(manifest));
    expect(faults("1.2.3", right)).toEqual([]);
    expect(faults("^1.2.3", right)).toEqual([
      `dependency ${name}: expected the checked version 1.2.3, received ^1.2.3`,
    ]);
    expect(faults("1.2.3", { ...right, license: "GPL-3.0" })).toEqual([
      `dependency ${name}: expected the license MIT, received GPL-3.0`,
    ]);
    expect(faults("1.2.3", { ...right, dependencies: { a: "1" }, scripts: { install: "x" } })).toHaveLength(2);
  });

  test("an addon for one platform only is a fault", () => {
    expect(addonFaults("/nowhere", ["dist/index.js"], ["linux-x64"])).toEqual([]);
    const at = repository({ "a.cc": "" });
    const [path, machine] = [`prebuilds/linux-${process.arch}/a.node`, `linux-${process.arch}`];
    mkdirSync(join(at, dirname(path)), { recursive: true });
    const { status } = spawnSync("g++", ["-shared", "-nostdlib", join(at, "a.cc"), "-o", join(at, path)]);
    expect(status).toBe(0);
    expect(addonFaults(at, [path], [machine])).toEqual([]);
    expect(addonFaults(at, [path], [machine, "linux-riscv64"])).toEqual(["the addon for linux-riscv64 is missing"]);
  });

  test("addons are named after their packages", () => {
    const names = listAddons(root).map(({ target }) => target);
    expect(names).toContain("mosaic_kernels_cpu");
    expect(names).toHaveLength(6);
  });

  test("versions come from changesets, and the repository stays as it is", () => {
    const change = '---\n"@mosaic/one": minor\n---\n\nA feature.\n';
    const shipped = { version: "1.2.3" };
    const config = { changelog: false, commit: false, fixed: [["@mosaic/*"]], access: "public", baseBranch: "main" };
    const at = repository({
      "package.json": { name: "mosaic", private: true, workspaces: ["packages/*"], packageManager: "npm@11.19.1" },
      ".changeset/config.json": config,
      ".changeset/feature.md": change,
      ...pack("one", shipped),
      ...pack("two", { ...shipped, dependencies: ["one"] }),
    });
    symlinkSync(join(root, "node_modules"), join(at, "node_modules"));
    const copy = join(at, "copy");
    const manifests = nextManifests(at, copy);
    expect(["one", "two"].map((name) => manifests.get(`@mosaic/${name}`).manifest.version)).toEqual(["1.3.0", "1.3.0"]);
    expect(existsSync(join(at, ".changeset/feature.md"))).toBe(true);
    expect(JSON.parse(readFileSync(join(at, "packages/one/package.json"), "utf8")).version).toBe("1.2.3");
  });
});

describe("the registry on this machine", () => {
  test("nothing is published elsewhere", () => {
    const elsewhere = { url: "https://registry.example.org/", npmrc: "/dev/null" };
    expect(() => publish({ directory: "/nowhere" }, elsewhere)).toThrow("expected a loopback registry");
    expect(() => publish({ directory: "/nowhere" }, { ...elsewhere, url: "http://127.0.0.1.example.org:80/" })).toThrow(
      "expected a loopback registry",
    );
  });

  test("no setting of the environment leads elsewhere", () => {
    const base = { npm_config_registry: "https://a", NPM_TOKEN: "b", YARN_X: "c", npm_package_name: "d", PATH: "/bin" };
    const env = loopbackEnvironment({ url: "http://127.0.0.1:1/", npmrc: "/n" }, base);
    expect(env).toEqual({
      PATH: "/bin",
      NPM_CONFIG_USERCONFIG: "/n",
      NPM_CONFIG_REGISTRY: "http://127.0.0.1:1/",
      YARN_NPM_REGISTRY_SERVER: "http://127.0.0.1:1/",
      YARN_UNSAFE_HTTP_WHITELIST: "127.0.0.1",
    });
  });
});

describe("projects that install", () => {
  test("each installed package is counted once, without those inside of it", () => {
    const at = repository({
      "node_modules/@mosaic/one/a.js": "12345",
      "node_modules/@mosaic/one/node_modules/@mosaic/three/c.js": "1",
      "node_modules/.pnpm/node_modules/@mosaic/two/prebuilds/b.node": "123",
      "node_modules/tool/d.js": "1",
    });
    symlinkSync(join(at, "node_modules/@mosaic/one"), join(at, "node_modules/.pnpm/node_modules/@mosaic/one"));
    expect(packagesOfScope(at, "@mosaic")).toHaveLength(2);
    expect(installedBytes(at)).toBe(8);
    expect(listPrebuilds(at)).toEqual([join(at, "node_modules/.pnpm/node_modules/@mosaic/two/prebuilds")]);
  });

  test("have a Node and a shell on the PATH, and no compiler", () => {
    const bin = createBarePath(repository({ "node/node": "" }), "/node");
    const { stdout } = spawnSync("/bin/sh", ["-c", "command -v sh g++ cc cmake make"], {
      env: { PATH: bin },
      encoding: "utf8",
    });
    expect(stdout.trim()).toBe(join(bin, "sh"));
  });

  test("the README's first program is what they run", () => {
    expect(firstProgram("# X\n\n```ts ranks=4\nfirst();\n```\n\n```ts\nsecond();\n```\n")).toBe("first();\n");
    expect(() => firstProgram("# X\n")).toThrow("expected a program");
  });

  test("a table shows what failed and what did not run", () => {
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
    expect(consumerTable(cells).split("\n").slice(2)).toEqual([
      "| 20, npm | 1.3 | 2.0 | 3.0 |",
      "| 22, npm | **failed** | not run | 0.0 |",
    ]);
  });
});
