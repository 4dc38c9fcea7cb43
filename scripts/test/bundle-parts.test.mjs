import { spawnSync } from "node:child_process";
import {
  chmodSync,
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { archive } from "../bundle/archive.mjs";
import { runStep } from "../bundle/inside/gpu/run-step.mjs";
import { createSteps } from "../bundle/inside/gpu/steps.mjs";
import { collectModules } from "../bundle/modules.mjs";
import { createRecipe, stageRecipes } from "../bundle/recipes.mjs";
import { listPackages } from "../workspace.mjs";
import { describePackage, createRepository } from "./fixture.mjs";

const scripts = fileURLToPath(new URL("..", import.meta.url));

test("archives of the same contents are identical, whatever their times and modes", () => {
  const createPack = (names, seconds) => {
    const root = createRepository({});
    for (const name of names) {
      const path = join(root, "mosaic", name);
      mkdirSync(dirname(path), { recursive: true });
      writeFileSync(path, name);
      chmodSync(path, seconds % 2 === 0 ? 0o644 : 0o600);
      utimesSync(path, seconds, seconds);
    }
    archive(root, "mosaic", join(root, "out.tar.gz"));
    return readFileSync(join(root, "out.tar.gz"));
  };
  expect(createPack(["b", "a/c", "d"], 1000).equals(createPack(["d", "a/c", "b"], 2001))).toBe(true);
  expect(createPack(["b"], 1000).equals(createPack(["c"], 1000))).toBe(false);
});

describe("collectModules", () => {
  const lock = {
    "node_modules/tool": { dependencies: { a: "1" }, peerDependencies: { peer: "1", maybe: "1" } },
    "node_modules/a": { dependencies: { b: "1" } },
    "node_modules/a/node_modules/b": { optionalDependencies: { a: "1", "not-for-us": "1" } },
    "node_modules/b": {},
    "node_modules/peer": {},
    "node_modules/maybe": {},
    "node_modules/other": {},
  };
  lock["node_modules/tool"].peerDependenciesMeta = { maybe: { optional: true } };
  lock["node_modules/not-for-us"] = {};
  const installed = Object.keys(lock).filter((path) => !path.includes("not-for-us"));
  const files = Object.fromEntries(installed.map((path) => [`${path}/index.js`, ""]));

  test("returns exactly the modules that Node.js resolves for a tool", () => {
    const root = createRepository({ "package-lock.json": { packages: lock }, ...files });
    expect(collectModules(root, ["tool"])).toEqual([
      "node_modules/a",
      "node_modules/a/node_modules/b",
      "node_modules/peer",
      "node_modules/tool",
    ]);
  });
});

const cmakeLists = `cmake_minimum_required(VERSION 3.20)
project(tiny CXX)
include(napi.cmake)
add_library(part STATIC part.cc)
set_target_properties(part PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(objects OBJECT object.cc)
set_target_properties(objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
add_library(tiny MODULE tiny.cc $<TARGET_OBJECTS:objects>)
target_compile_definitions(tiny PRIVATE IMAGE="\${CMAKE_CURRENT_BINARY_DIR}/kernels.fatbin")
target_link_libraries(tiny PRIVATE part)
set_target_properties(tiny PROPERTIES PREFIX "" SUFFIX ".node" LIBRARY_OUTPUT_DIRECTORY \${CMAKE_CURRENT_SOURCE_DIR}/prebuilds)
add_executable(program EXCLUDE_FROM_ALL program.cc)
`;
const tinySource = `extern "C" int part();
extern "C" int object();
asm(".section .rodata\\n.incbin \\"" IMAGE "\\"\\n.previous\\n");
extern "C" __attribute__((visibility("default"))) int answer() { return part() + object(); }
`;

describe("a build recipe", () => {
  const image = "machine code for a GPU";
  const nativeFiles = {
    "packages/tiny/CMakeLists.txt": cmakeLists,
    "packages/tiny/napi.cmake": "",
    "packages/tiny/part.cc": `extern "C" int part() { return 42; }`,
    "packages/tiny/object.cc": `extern "C" int object() { return 1; }`,
    "packages/tiny/tiny.cc": tinySource,
    "packages/tiny/program.cc": "int main() {}",
    "packages/tiny/build-cmake/kernels.fatbin": image,
    "packages/tiny/prebuilds/tiny.node": `the addon, with ${image}, as it came`,
  };

  test("contains no absolute paths of the machine that created it, and omits programs", () => {
    const root = createRepository({ ...describePackage("tiny"), ...nativeFiles });
    const steps = createRecipe(root, "packages/tiny");
    expect(steps.map(({ command }) => /(\w+\.(?:cc|a|node))\b(?!.*\.(?:cc|a|node)\b)/.exec(command)?.[1])).toEqual(
      expect.arrayContaining(["part.cc", "object.cc", "tiny.cc"]),
    );
    expect(JSON.stringify(steps)).not.toMatch(/program\.cc|\/tmp\//);
    expect(steps.every(({ directory }) => directory.startsWith("@root@/packages/tiny/build-cmake"))).toBe(true);
  });

  test("builds an addon with the machine code of the prebuilt addon", () => {
    const root = createRepository({ ...describePackage("tiny"), ...nativeFiles });
    const bareRepository = createRepository({
      ...describePackage("tiny"),
      ...nativeFiles,
      "packages/tiny/build-cmake/kernels.fatbin": "",
    });
    expect(stageRecipes(root, bareRepository, listPackages(root))).toEqual([]);
    cpSync(join(scripts, "bundle"), join(bareRepository, "scripts/bundle"), { recursive: true });
    cpSync(join(scripts, "workspace.mjs"), join(bareRepository, "scripts/workspace.mjs"));
    spawnSync("rm", ["-r", join(bareRepository, "packages/tiny/build-cmake")]);
    const build = spawnSync(process.execPath, [join(bareRepository, "scripts/bundle/inside/build.mjs")], {
      encoding: "utf8",
    });
    expect(build).toMatchObject({ status: 0, stderr: "", stdout: expect.stringMatching(/^tiny: built in \d+ s\n$/) });
    const addon = readFileSync(join(bareRepository, "packages/tiny/prebuilds/tiny.node"), "latin1");
    expect(addon).toMatch(/^\x7fELF/);
    expect(addon).toContain(image);
    expect(addon).toContain("answer");
  });

  test("is omitted if the prebuilt addon has no machine code", () => {
    const root = createRepository({
      ...describePackage("tiny"),
      ...nativeFiles,
      "packages/tiny/prebuilds/tiny.node": "another",
    });
    const notes = stageRecipes(root, root, listPackages(root));
    expect(notes).toEqual([expect.stringMatching(/packages\/tiny: the prebuilt addon contains no fatbin/)]);
  });

  test("reports a missing compiler and the variable that sets it", () => {
    const env = { ...process.env, CXX: "no-such-compiler" };
    const build = spawnSync(process.execPath, [join(scripts, "bundle/inside/build.mjs")], { encoding: "utf8", env });
    expect(build).toMatchObject({ status: 1, stderr: expect.stringMatching(/tried `no-such-compiler`; set CXX/) });
  });
});

describe("a step on a GPU machine", () => {
  const createShellStep = (script) => ({ command: ["sh", "-c", script], directory: "/", env: process.env });
  const runCaptured = async (step, seconds = 60) => {
    let log = "";
    const { outcome } = await runStep(step, seconds, (data) => (log += data));
    return [outcome, log];
  };

  test("returns its outcome as text", async () => {
    expect(await runCaptured(createShellStep("echo out; echo err >&2"))).toEqual([
      "ok",
      expect.stringMatching(/out\n/),
    ]);
    expect(await runCaptured(createShellStep("exit 3"))).toEqual(["exit 3", ""]);
    expect(await runCaptured(createShellStep("kill -SEGV $$"))).toEqual(["ended by SIGSEGV", ""]);
    expect(await runCaptured({ ...createShellStep(""), command: ["/no/such/program"] })).toEqual([
      expect.stringContaining("ENOENT"),
      "",
    ]);
  });

  /** Whether a process is running. A killed process that is not reaped yet is a zombie, which does not count. */
  const isRunning = (pid) =>
    existsSync(`/proc/${pid}`) && !/^\d+ \(.*\) Z/.test(readFileSync(`/proc/${pid}/stat`, "utf8"));

  test("is ended with its child processes when its time limit is reached", async () => {
    const [outcome, log] = await runCaptured(createShellStep("sleep 100 & echo $!; wait"), 1.5);
    expect(outcome).toBe("out of time");
    expect(isRunning(Number(log))).toBe(false);
  });
});

describe("mosaic gpu", () => {
  const runGpuScript = (args, env = {}) =>
    spawnSync(process.execPath, [join(scripts, "bundle/inside/gpu.mjs"), ...args], {
      encoding: "utf8",
      env: { ...process.env, ...env },
    });

  test("rejects unknown arguments, and lists its steps", () => {
    expect(runGpuScript(["--only", "nothing"])).toMatchObject({
      status: 2,
      stderr: expect.stringContaining('received "nothing"'),
    });
    expect(runGpuScript(["--budget", "soon"])).toMatchObject({
      status: 2,
      stderr: expect.stringContaining("as 10m or 540s"),
    });
    expect(runGpuScript(["--list"])).toMatchObject({
      status: 0,
      stdout: expect.stringMatching(/^host[^]*^benchmarks/m),
    });
  });

  test("omits the tests of kernels-cuda that need a compiler, and names only files that exist", () => {
    const root = dirname(scripts);
    const steps = createSteps(root, "results", {});
    const { command, directory } = steps.find(({ name }) => name === "kernels");
    const excludedTests = command.filter((_, i) => command[i - 1] === "--exclude");
    const testsWithCompiler = readdirSync(join(directory, "test"))
      .filter((name) => name.endsWith(".test.ts"))
      .map((name) => `test/${name}`)
      .filter((path) => readFileSync(join(directory, path), "utf8").includes("process.env.CXX"));
    expect(testsWithCompiler.length).toBeGreaterThan(1);
    expect(excludedTests).toEqual(expect.arrayContaining(testsWithCompiler));
    const missingFiles = steps.flatMap((step) =>
      step.command
        .filter((argument) => argument !== undefined) // a program that is not installed
        .map((argument) => (/^test\//.test(argument) ? join(step.directory, argument) : argument))
        .filter((path) => path.startsWith(join(root, "packages")) && !existsSync(path)),
    );
    expect(missingFiles).toEqual([]);
  });

  test("continues after a failed step, and writes a table of results", () => {
    const root = createRepository({ "bin/nvidia-smi": "#!/bin/sh\necho 'a seeded fault'; exit 7\n" });
    chmodSync(join(root, "bin/nvidia-smi"), 0o755);
    for (const name of ["sh", "sleep"]) symlinkSync(`/bin/${name}`, join(root, "bin", name));
    const out = join(root, "results");
    const { status, stdout } = runGpuScript(
      ["--budget", "5.4s", "--only", "host,racecheck,collectives", "--out", out],
      {
        PATH: join(root, "bin"),
      },
    );
    expect(status).toBe(1);
    expect(stdout).toMatch(/a seeded fault\n {3}exit 7\n/);
    const table = readFileSync(join(out, "summary.md"), "utf8");
    expect(table).toContain("| host | nvidia-smi | exit 7 |");
    expect(stdout).toContain(table);
    expect(JSON.parse(readFileSync(join(out, "summary.json"), "utf8")).steps).toHaveLength(3);
    expect(readFileSync(join(out, "log.txt"), "utf8")).toContain("a seeded fault");
  });
});
