import { spawnSync } from "node:child_process";
import { chmodSync, mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { describe, expect, it, onTestFinished, vi } from "vitest";
import { countGpus, resolvePlan } from "../src/launch-plan.ts";
import { type Command, nodeCommand, programCommand } from "../src/entry.ts";
import { CLI, testDir } from "./harness.ts";

function createCommand(entry: string, node = { version: "20.19.0", stripsTypes: false }): Command {
  return nodeCommand({ entry, args: ["a"], cwd: testDir(), nodeArgs: ["--trace"], imports: ["./setup.mjs"] }, node);
}

const file = (name: string, text = ""): string => {
  writeFileSync(join(testDir(), name), text);
  return name;
};

/** Returns the arguments between those of the launcher and the script. */
const loaderArgs = ({ args }: Command): readonly string[] => args.slice(3, -2);

describe("a Node entry", () => {
  it("follows the preload, source maps and the user's Node options", () => {
    const { program, args } = createCommand(file("a.mjs"));
    expect(program).toBe(process.execPath);
    expect(args.slice(0, 2)).toEqual(["--enable-source-maps", "--require"]);
    expect(args[2]).toMatch(/preload\.cjs$/);
    expect(args.slice(3)).toEqual(["--import", "./setup.mjs", "--trace", join(testDir(), "a.mjs"), "a"]);
  });

  it("in TypeScript runs directly, with a flag or with the project's tsx, depending on the version of Node", () => {
    const entry = file("a.ts");
    const otherArgs = ["--import", "./setup.mjs", "--trace"];
    expect(loaderArgs(createCommand(entry, { version: "24.1.0", stripsTypes: true }))).toEqual(otherArgs);
    expect(loaderArgs(createCommand(entry, { version: "22.6.0", stripsTypes: false }))).toEqual([
      "--experimental-strip-types",
      ...otherArgs,
    ]);
    const tsx = join(testDir(), "node_modules/tsx");
    mkdirSync(tsx, { recursive: true });
    writeFileSync(join(tsx, "package.json"), '{ "exports": { ".": "./loader.mjs" } }');
    writeFileSync(join(tsx, "loader.mjs"), "");
    const ownLoaderArgs = ["--import", pathToFileURL(join(tsx, "loader.mjs")).href];
    expect(loaderArgs(createCommand(entry))).toEqual([...ownLoaderArgs, ...otherArgs]);
    // Node 22 strips types but does not support `using`.
    expect(loaderArgs(createCommand(entry, { version: "22.18.0", stripsTypes: true }))).toEqual([
      ...ownLoaderArgs,
      ...otherArgs,
    ]);
    expect(loaderArgs(createCommand(entry, { version: "24.1.0", stripsTypes: true }))).toEqual(otherArgs);
    expect(loaderArgs(createCommand(file("a.tsx"), { version: "24.1.0", stripsTypes: true }))).toEqual([
      ...ownLoaderArgs,
      ...otherArgs,
    ]);
  });

  it("is rejected if it cannot be read", () => {
    symlinkSync("loop.mjs", join(testDir(), "loop.mjs"));
    expect(() => createCommand("loop.mjs")).toThrow(/^entry loop\.mjs: cannot be read: ELOOP: /);
    expect(() => createCommand(`${"a".repeat(300)}.mjs`)).toThrow(/^entry a+\.mjs: cannot be read: ENAMETOOLONG: /);
    const entry = join(testDir(), file("private.mjs"));
    chmodSync(entry, 0);
    // Without capabilities, root may not read it either.
    const isRoot = process.getuid?.() === 0;
    const [program, args] = isRoot
      ? ["setpriv", ["--bounding-set", "-all", process.execPath, CLI]]
      : [process.execPath, [CLI]];
    const nodeOptions = ["-N", "2", "--node-rank", "0", "--rdzv-endpoint", "localhost"];
    for (const options of [[], nodeOptions]) {
      const { status, stderr } = spawnSync(program, [...args, ...options, "-n", "1", entry], { encoding: "utf8" });
      expect(stderr).toMatch(
        /^mosaic-run: entry \S+private\.mjs: cannot be read: EACCES: .*; correct its permissions or the path\n$/,
      );
      expect(status).toBe(2);
    }
  });

  it("is rejected with a remedy if it is missing or unsupported", () => {
    expect(() => createCommand("gone.js")).toThrow(/entry gone\.js: no such file \(.*\/gone\.js\)/);
    expect(() => createCommand(".")).toThrow(/entry \.: not a file/);
    expect(() => createCommand(file("a.py"))).toThrow(
      /expected one of \.js, \.mjs, \.cjs, \.ts, \.mts, \.cts, \.tsx, \.jsx, received "\.py"; pass --exec to run other programs/,
    );
    expect(() => createCommand(file("b.ts"))).toThrow(
      /tsx is not installed in this project; run "npm install --save-dev tsx"/,
    );
  });
});

describe("a program for --exec", () => {
  const findCommand = (entry: string): Command =>
    programCommand({ entry, args: ["x"], cwd: testDir(), nodeArgs: [], imports: [] });

  it("is looked up on PATH, or relative to the working directory", () => {
    expect(findCommand("sh")).toEqual({ program: expect.stringMatching(/^\/.*\/sh$/), args: ["x"] });
    chmodSync(join(testDir(), file("tool", "#!/bin/sh\n")), 0o755);
    expect(findCommand("./tool").program).toBe(join(testDir(), "tool"));
    expect(findCommand(join(testDir(), "tool")).program).toBe(join(testDir(), "tool"));
  });

  it("is rejected when it does not exist or is not executable", () => {
    expect(() => findCommand("no-such-program")).toThrow(/--exec no-such-program: not found on PATH/);
    expect(() => findCommand("./gone")).toThrow(/--exec \.\/gone: no such file \(.*\/gone\)/);
    expect(() => findCommand("./")).toThrow(/--exec \.\/: not a file \(.*\)/);
    expect(() => findCommand(`./${file("plain")}`)).toThrow(
      /--exec \.\/plain: (.*\/plain) has no execute permission; run chmod \+x \1$/,
    );
  });

  it("is rejected for a missing execute permission only if PATH has no executable one of that name", () => {
    const [first, second] = ["first", "second"].map((name) => join(testDir(), name)) as [string, string];
    for (const directory of [first, second]) {
      mkdirSync(directory);
      writeFileSync(join(directory, "tool"), "#!/bin/sh\n");
    }
    // A directory with that name is not a program, although its execute bit is set.
    mkdirSync(join(testDir(), "third", "tool"), { recursive: true });
    onTestFinished(() => void vi.unstubAllEnvs());
    vi.stubEnv("PATH", `${join(testDir(), "third")}:${first}:${second}`);
    expect(() => findCommand("tool")).toThrow(`--exec tool: ${first}/tool has no execute permission; run chmod +x`);
    chmodSync(join(second, "tool"), 0o755);
    expect(findCommand("tool").program).toBe(join(second, "tool"));
  });
});

describe("a launch plan", () => {
  it("derives threads and ranks from the cores that SLURM has allocated to the step", () => {
    const plan = resolvePlan({ entry: "sh", exec: true, nprocPerNode: 1 }, { SLURM_CPUS_ON_NODE: "1" });
    expect(plan.threads).toBe("1");
    const all = { entry: "sh", exec: true, nprocPerNode: "cpu" } as const;
    expect(resolvePlan(all, { SLURM_CPUS_ON_NODE: "1" }).nproc).toBe(1);
    expect(resolvePlan(all, { SLURM_CPUS_ON_NODE: "100000" }).nproc).toBe(resolvePlan(all, {}).nproc);
  });

  it("counts GPUs by the rules of CUDA_VISIBLE_DEVICES", () => {
    expect(countGpus({}, 8)).toBe(8);
    expect(countGpus({ CUDA_VISIBLE_DEVICES: "0,2,3" }, 8)).toBe(3);
    expect(countGpus({ CUDA_VISIBLE_DEVICES: "1,-1,3" }, 8)).toBe(1);
    expect(countGpus({ CUDA_VISIBLE_DEVICES: "0,1,2,3" }, 2)).toBe(2);
    expect(countGpus({ CUDA_VISIBLE_DEVICES: "GPU-8932f937,GPU-0c1e" }, 8)).toBe(2);
    expect(countGpus({ CUDA_VISIBLE_DEVICES: "0,1" }, 0)).toBe(2);
    expect(countGpus({ CUDA_VISIBLE_DEVICES: "" }, 8)).toBe(0);
    expect(resolvePlan({ entry: "sh", exec: true }, { CUDA_VISIBLE_DEVICES: "GPU-a,GPU-b" }).nproc).toBe(2);
    expect(resolvePlan({ entry: "sh", exec: true }, { CUDA_VISIBLE_DEVICES: "" }).nproc).toBe(1);
  });

  it("rejects invalid and unknown options", () => {
    const noGpus = { CUDA_VISIBLE_DEVICES: "" };
    expect(() => resolvePlan({ entry: "sh", exec: true, nprocPerNode: "gpu" }, noGpus)).toThrow(/no NVIDIA GPU found/);
    for (const nprocPerNode of [0, 1.5, 65_537])
      expect(() => resolvePlan({ entry: "sh", exec: true, nprocPerNode })).toThrow(
        `nproc-per-node: expected an integer from 1 to 65536, auto, cpu or gpu, received ${nprocPerNode}`,
      );
    expect(() => resolvePlan({ entry: "sh", exec: true, nodeArgs: ["-x"] })).toThrow(/apply only to Node/);
    expect(() => resolvePlan({ entry: "sh", exec: true, rdzvId: "a b" })).toThrow(/--rdzv-id: expected/);
    for (const name of ["graceMs", "failureGraceMs", "timeoutMs", "restartBackoffMs", "restartResetMs", "minUptimeMs"])
      for (const ms of [-1, Number.NaN, 2 ** 31, Number.POSITIVE_INFINITY])
        expect(() => resolvePlan({ entry: "sh", exec: true, [name]: ms })).toThrow(
          `${name}: expected a time from 0 to`,
        );
    symlinkSync("loop", join(testDir(), "loop"));
    expect(() => resolvePlan({ entry: "sh", exec: true, cwd: join(testDir(), "loop") })).toThrow(
      /^cwd: expected an existing directory, received ".*loop"$/,
    );
    const unknown =
      (name: string): (() => unknown) =>
      () =>
        resolvePlan({ entry: "sh", exec: true, [name]: 2 });
    expect(unknown("nproc")).toThrow('launch: unknown option "nproc"; did you mean "nprocPerNode"?');
    expect(unknown("zzzzzzzz")).toThrow(/unknown option "zzzzzzzz"; expected one of entry, args/);
    expect(() => resolvePlan({ entry: "sh", exec: true, masterPort: 70_000 })).toThrow(
      /masterPort: .* 65535, received 70000/,
    );
    expect(() => resolvePlan({ entry: "sh", exec: true, maxRestarts: Number.NaN })).toThrow(
      /maxRestarts: expected an integer/,
    );
  });

  it("requires an existing working directory", () => {
    for (const cwd of [join(testDir(), "gone"), import.meta.filename])
      expect(() => resolvePlan({ entry: "sh", exec: true, cwd })).toThrow(
        `cwd: expected an existing directory, received "${cwd}"`,
      );
  });

  it("has no timeout if timeoutMs is 0", () => {
    expect(resolvePlan({ entry: "sh", exec: true, timeoutMs: 0 }).timeoutMs).toBeUndefined();
    expect(resolvePlan({ entry: "sh", exec: true, timeoutMs: 1 }).timeoutMs).toBe(1);
  });

  it("reads the end of the job from SLURM_JOB_END_TIME if it contains a time", () => {
    const resolveEndTime = (env: NodeJS.ProcessEnv): number => resolvePlan({ entry: "sh", exec: true }, env).jobEndsAt;
    expect(resolveEndTime({ SLURM_JOB_END_TIME: "1700000000" })).toBe(1_700_000_000_000);
    for (const env of [{}, { SLURM_JOB_END_TIME: "" }, { SLURM_JOB_END_TIME: "Unknown" }])
      expect(resolveEndTime(env)).toBe(Number.POSITIVE_INFINITY);
  });

  it("divides the cores among the ranks unless the number of threads is set", () => {
    const resolveThreads = (env: NodeJS.ProcessEnv, options = {}): string =>
      resolvePlan({ entry: "sh", exec: true, nprocPerNode: 1000, ...options }, env).threads;
    expect(resolveThreads({})).toBe("1");
    expect(resolveThreads({ MOSAIC_THREADS: "7" })).toBe("7");
    expect(resolveThreads({ MOSAIC_THREADS: "7" }, { env: { MOSAIC_THREADS: "5" } })).toBe("5");
    expect(resolveThreads({ MOSAIC_THREADS: "7" }, { env: { MOSAIC_THREADS: "5" }, threads: 3 })).toBe("3");
    expect(resolveThreads({ MOSAIC_THREADS: "" }, { env: { MOSAIC_THREADS: "" } })).toBe("1");
  });

  it("rejects invalid numbers of threads from every source", () => {
    const plan = (env: NodeJS.ProcessEnv, options = {}): unknown =>
      resolvePlan({ entry: "sh", exec: true, ...options }, env);
    const expectedThreads = "expected an integer from 1 to 1024, received";
    for (const invalidText of ["abc", "0", "-1", "1.5", "1e3", "1025", " "]) {
      expect(() => plan({ MOSAIC_THREADS: invalidText })).toThrow(
        `MOSAIC_THREADS: ${expectedThreads} "${invalidText}"`,
      );
      expect(() => plan({}, { env: { MOSAIC_THREADS: invalidText } })).toThrow(
        `--env MOSAIC_THREADS: ${expectedThreads} "${invalidText}"`,
      );
      expect(() => plan({ MOSAIC_THREADS: invalidText }, { threads: 1 })).not.toThrow();
    }
    for (const threads of [0, Number.NaN, 1.5])
      expect(() => plan({}, { threads })).toThrow(`threads: ${expectedThreads}`);
  });
});
