import { readFileSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import fc from "fast-check";
import { describe, expect, it, vi } from "vitest";
import { editDistance, findClosestMatch } from "../src/options/closest-match.ts";
import { parseCommandLine } from "../src/options/parse.ts";
import { parseRanks, parseSettings, type Settings } from "../src/options/settings.ts";
import { firstHost, resolveSources } from "../src/options/sources.ts";
import { OPTIONS } from "../src/options/specs.ts";
import { testDir } from "./harness.ts";

type Env = Readonly<Record<string, string>>;

const parseArgs = (argv: readonly string[], env: Env = {}): Settings =>
  parseSettings(resolveSources(parseCommandLine(argv).options, env, testDir()));

describe("a command line", () => {
  it.each([
    [["-n", "4", "a.js"], "4"],
    [["-n4", "a.js"], "4"],
    [["-n=4", "a.js"], "4"],
    [["--nproc-per-node", "4", "a.js"], "4"],
    [["--nproc-per-node=4", "a.js"], "4"],
    [["--nproc_per_node=4", "a.js"], "4"],
    [["-n", "2", "--nproc-per-node", "4", "a.js"], "4"],
  ])("sets --nproc-per-node by %j", (argv, expected) => {
    const { options, entry, args } = parseCommandLine(argv);
    expect(options.get("nproc-per-node")).toBe(expected);
    expect({ entry, args }).toEqual({ entry: "a.js", args: [] });
  });

  it("switches flags on and off, and collects repeated options", () => {
    const { options } = parseCommandLine(["--json", "--no-json", "--no-color", "--env=A=1", "--env", "B=x=y", "e.js"]);
    expect(Object.fromEntries(options)).toEqual({ json: false, color: "never", env: ["A=1", "B=x=y"] });
  });

  it("ends at the first positional argument or at --; all following arguments belong to the script", () => {
    const word = fc.oneof(fc.string(), fc.constantFrom("-n", "--json", "--", "-h", "--no-such", "--x=y"));
    fc.assert(
      fc.property(fc.array(word), fc.boolean(), (args, dashes) => {
        const line = parseCommandLine(["-n", "2", ...(dashes ? ["--", "-entry.js"] : ["entry.js"]), ...args]);
        expect(line.args).toEqual(args);
        expect(line.entry).toBe(dashes ? "-entry.js" : "entry.js");
        expect([...line.options.keys()]).toEqual(["nproc-per-node"]);
      }),
    );
  });

  it.each([
    [["--nprocs", "4"], /unknown option --nprocs; did you mean --nproc-per-node\?/],
    [["--max-restart=1"], /did you mean --max-restarts\?/],
    [["--no-jsn"], /unknown option --no-jsn/],
    [["--lgo-dir", "x"], /did you mean --log-dir\?/],
    [["--zzzzzzzz"], /unknown option --zzzzzzzz \(see mosaic-run --help/],
    [["-x"], /unknown option -x/],
    [["--no_python", "python"], /unknown option --no_python: use --exec/],
    [["-m", "train"], /unknown option -m: use --exec python -m <module>/],
    [["--tee=3"], /unknown option --tee: mosaic-run always shows and logs the output of all ranks/],
    [
      ["--rdzv-conf=timeout=9"],
      /unknown option --rdzv-conf: an option of torchrun without effect in mosaic-run; omit it/,
    ],
    [["-hn"], /unknown option -hn/],
    [["--grace"], /--grace: expected a value \(TIME\)/],
    [["--no-grace"], /--grace takes a value and cannot be switched off/],
    [["--no-json=1"], /--no-json=1: expected no value, received "1"/],
  ])("rejects %j", (argv, message) => {
    expect(() => parseCommandLine(argv)).toThrow(message);
  });
});

describe("the source of an option's value", () => {
  const resolveSource = (argv: readonly string[], env: Env, option = "nproc-per-node"): unknown =>
    resolveSources(parseCommandLine(argv).options, env, testDir()).get(option);
  const slurm = { SLURM_JOB_ID: "1", SLURM_GPUS_ON_NODE: "6" };

  it("is the flag, then MOSAIC_*, then the file, then PET_*, then the scheduler, then the default", () => {
    const allVariables = { MOSAIC_NPROC_PER_NODE: "3", PET_NPROC_PER_NODE: "5", ...slurm };
    const { MOSAIC_NPROC_PER_NODE: _, ...noMosaic } = allVariables;
    expect(resolveSource([], {})).toEqual({ value: "auto", source: "default" });
    expect(resolveSource([], slurm)).toEqual({ value: "6", source: "SLURM_GPUS_ON_NODE" });
    expect(resolveSource([], noMosaic)).toEqual({ value: "5", source: "PET_NPROC_PER_NODE" });
    writeFileSync(join(testDir(), "mosaic.launch.json"), '{ "nprocPerNode": 4 }');
    expect(resolveSource([], noMosaic)).toEqual({ value: "4", source: "mosaic.launch.json" });
    expect(resolveSource([], allVariables)).toEqual({ value: "3", source: "MOSAIC_NPROC_PER_NODE" });
    expect(resolveSource(["-n", "2"], allVariables)).toEqual({ value: "2", source: "--nproc-per-node" });
  });

  it("is the step's number of nodes inside a SLURM step, and the job's outside", () => {
    const job = { SLURM_JOB_ID: "1", SLURM_JOB_NUM_NODES: "3", SLURM_STEP_NUM_NODES: "1" };
    expect(resolveSource([], job, "nnodes")).toEqual({ value: "3", source: "SLURM_JOB_NUM_NODES" });
    expect(resolveSource([], { ...job, SLURM_STEP_ID: "0" }, "nnodes")).toMatchObject({ value: "1" });
    expect(resolveSource([], { SLURM_JOB_NUM_NODES: "3" }, "nnodes")).toMatchObject({ source: "default" });
  });

  it("is the number of tasks on the node in a SLURM step with several tasks and no GPUs", () => {
    const step = { SLURM_JOB_ID: "1", SLURM_STEP_ID: "0", SLURM_STEP_TASKS_PER_NODE: "3(x2),1" };
    const source = "SLURM_STEP_TASKS_PER_NODE";
    expect(resolveSource([], { ...step, SLURM_NODEID: "1" })).toEqual({ value: "3", source });
    expect(resolveSource([], { ...step, SLURM_NODEID: "2" })).toEqual({ value: "auto", source: "default" });
    expect(resolveSource([], { ...step, SLURM_NODEID: "1", SLURM_GPUS_ON_NODE: "6" })).toMatchObject({ value: "6" });
    const { SLURM_STEP_ID: _, ...batch } = step;
    for (const env of [batch, { ...step, SLURM_STEP_ID: "4294967290" }])
      expect(resolveSource([], env)).toMatchObject({ source: "default" });
  });

  it("can be a file with lists, objects and switches, in which unknown options are rejected", () => {
    const writeConfig = (text: string): void => writeFileSync(join(testDir(), "mosaic.launch.json"), text);
    writeConfig('{ "env": { "A": 1 }, "node_arg": ["--x"], "exec": false, "color": false, "max-restarts": 2 }');
    const { launch, console } = parseArgs([]);
    expect(launch).toMatchObject({ env: { A: "1" }, nodeArgs: ["--x"], exec: false, maxRestarts: 2 });
    expect(console.color).toBe("never");
    writeConfig('{ "nproc": 2 }');
    expect(() => parseArgs([])).toThrow(/unknown option "nproc"; did you mean "nproc-per-node"\?/);
    writeConfig('{ "grace": [] }');
    expect(() => parseArgs([])).toThrow(/"grace": expected TIME, received \[\]/);
    writeConfig('{ "grace": true }');
    expect(() => parseArgs([])).toThrow(/"grace": expected TIME, received true/);
    writeConfig("[]");
    expect(() => parseArgs([])).toThrow(/expected an options object/);
    writeConfig("{");
    expect(() => parseArgs([])).toThrow(/invalid JSON/);
  });
});

describe("option values", () => {
  it("turn a flag on or off by a word, in any case", () => {
    const isJson = (value: string) => parseArgs([`--json=${value}`]).console.json;
    expect(["1", "true", "YES", "On"].map(isJson)).toEqual([true, true, true, true]);
    expect(["0", "False", "no", "OFF"].map(isJson)).toEqual([false, false, false, false]);
  });

  it("are parsed to their types", () => {
    const timeArgs = [
      "--grace",
      "1.5s",
      "--failure-grace=20ms",
      "--min-uptime",
      "2m",
      "--restart-backoff",
      "3",
      "--restart-reset",
      "5m",
    ];
    expect(parseArgs([...timeArgs, "--timeout", "1h", "-n", "cpu"]).launch).toMatchObject({
      graceMs: 1500,
      failureGraceMs: 20,
      minUptimeMs: 120_000,
      restartBackoffMs: 3000,
      restartResetMs: 300_000,
      timeoutMs: 3_600_000,
      nprocPerNode: "cpu",
    });
    expect(parseArgs(["--timeout", "1h", "--no-timeout"]).launch).not.toHaveProperty("timeoutMs");
    expect(parseArgs(["--threads=3"], { MOSAIC_THREADS: "8" }).launch).toMatchObject({ threads: 3 });
    // Otherwise --env MOSAIC_THREADS=5 would have no effect.
    expect(parseArgs([], { MOSAIC_THREADS: "8" }).launch).not.toHaveProperty("threads");
    const prefix = "{host}/{rank}/{attempt}/{stream} } { ";
    expect(parseArgs(["--log-prefix", prefix]).console.logPrefix).toBe(prefix);
    expect(parseArgs([], { MOSAIC_JSON: "1" }).console.json).toBe(true);
    expect(parseArgs([], { MOSAIC_JSON: "no" }).console.json).toBe(false);
  });

  it.each([
    [["--grace", "soon"], {}, /--grace: expected a time such as 500ms, 30s or 2m, received "soon"$/],
    [[], { MOSAIC_GRACE: "-1" }, /--grace: .* received "-1" \(from MOSAIC_GRACE\)$/],
    [["--timeout", "600h"], {}, /--timeout: expected a time of at most 596h, received "600h"/],
    [["--grace", "off"], {}, /--grace: expected a time/],
    [["--min-uptime", "off"], {}, /--min-uptime: expected a time/],
    [["-n", "0"], {}, /--nproc-per-node: expected an integer from 1 to 65536, auto, cpu or gpu, received "0"/],
    [["-n", "65537"], {}, /--nproc-per-node: expected an integer from 1 to 65536, auto, cpu or gpu, received "65537"/],
    [["-n", "1.5"], {}, /--nproc-per-node/],
    [[], { PET_MAX_RESTARTS: "many" }, /--max-restarts: expected an integer ≥ 0, .*from PET_MAX_RESTARTS/],
    [["--threads", "0"], {}, /--threads: expected an integer from 1 to 1024, received "0"/],
    [["--master-port", "65536"], {}, /--master-port: expected an integer from 0 to 65535/],
    [["--rdzv-endpoint", "localhost:70000"], {}, /--rdzv-endpoint: expected a port up to 65535, .*"localhost:70000"/],
    [
      ["--rdzv-endpoint=localhost:1", "--master-port=2"],
      {},
      /--rdzv-endpoint: expected port 2 as in --master-port, or no port, received "localhost:1"/,
    ],
    [["--color", "pink"], {}, /--color: expected auto, always, never/],
    [["--json=perhaps"], {}, /--json: expected true or false/],
    [["--env", "1A=2"], {}, /--env: expected NAME=VALUE/],
    [
      ["--log-prefix", "{rnak} "],
      {},
      /--log-prefix: expected text with the fields \{rank\}, \{host\}, \{attempt\}, \{stream\} and no other braces, received "\{rnak\} "$/,
    ],
    [[], { MOSAIC_LOG_PREFIX: "{rank}{}" }, /--log-prefix: .* received "\{rank\}\{\}" \(from MOSAIC_LOG_PREFIX\)/],
    [["--log-prefix={local-rank}"], {}, /--log-prefix: expected/],
    [["--standalone=perhaps"], {}, /--standalone: expected true or false/],
  ] as [string[], Env, RegExp][])("are rejected if invalid: %j %j", (argv, env, message) => {
    expect(() => parseArgs(argv, env)).toThrow(message);
  });

  it("specify the nodes of a job with torchrun's option names", () => {
    const twoNodeArgs = ["-N", "2", "--node-rank=1"];
    const parseNodeOptions = (...otherArgs: string[]): unknown => parseArgs([...twoNodeArgs, ...otherArgs]).launch;
    const launch = { nnodes: "2", nodeRank: 1, rdzvEndpoint: "node0:29400", rdzvTimeoutMs: 300_000, bindAny: false };
    expect(parseNodeOptions("--rdzv-endpoint", "node0")).toMatchObject(launch);
    expect(parseNodeOptions("--rdzv-endpoint=node0:5", "--bind-any", "--rdzv-timeout=2m")).toMatchObject({
      ...{ ...launch, rdzvEndpoint: "node0:5", bindAny: true, rdzvTimeoutMs: 120_000 },
    });
    expect(parseNodeOptions("--rdzv-endpoint=[fe80::1]:5")).toMatchObject({ rdzvEndpoint: "[fe80::1]:5" });
    expect(parseNodeOptions("--master-addr=10.0.0.1")).toMatchObject({ rdzvEndpoint: "10.0.0.1:29400" });
    expect(parseNodeOptions("--master-addr=10.0.0.1", "--master-port=29500")).toMatchObject({
      rdzvEndpoint: "10.0.0.1:29500",
    });
    expect(parseArgs(["-N", "1:4", "--node-rank=3", "--rdzv-endpoint=a"]).launch).toMatchObject({ nnodes: "1:4" });
  });

  it("include the nodes of a SLURM step, read from its variables", () => {
    const step = { SLURM_JOB_ID: "7", SLURM_STEP_ID: "0", SLURM_STEP_NUM_NODES: "3", SLURM_NODEID: "2" };
    const nodeListEnv = { SLURM_STEP_NODELIST: "gpu[007-009,12],x1" };
    const launch = { nnodes: "3", nodeRank: 2, rdzvEndpoint: "gpu007:29400" };
    expect(parseArgs([], { ...step, ...nodeListEnv }).launch).toMatchObject(launch);
    expect(parseArgs(["--rdzv-endpoint=b:1"], { ...step, ...nodeListEnv }).launch).toMatchObject({
      rdzvEndpoint: "b:1",
    });
    const oneNodeEnv = { ...step, ...nodeListEnv, SLURM_STEP_NUM_NODES: "1", SLURM_NODEID: "0" };
    expect(parseArgs([], oneNodeEnv).launch).toEqual(parseArgs([]).launch);
    // A batch script runs on the first node only, so that its SLURM_NODEID is not that of the launcher's node.
    const batchScriptEnv = { SLURM_JOB_ID: "7", SLURM_JOB_NUM_NODES: "3", SLURM_NODEID: "0" };
    expect(() => parseArgs(["-N", "3", "--rdzv-endpoint=a"], batchScriptEnv)).toThrow(
      "--node-rank: expected the rank of this node, 0 to 2, received nothing",
    );
    for (const [hosts, first] of [
      ["n1", "n1"],
      ["n[1-2]", "n1"],
      ["r[1-2]n[03,05]", "r1n03"],
      ["a-b,c[1-2]", "a-b"],
      ["n[1-2].example", "n1.example"],
    ] as const)
      expect(firstHost(hosts)).toBe(first);
  });

  it("are rejected in a SLURM batch script with a message that contains the job's srun command", () => {
    const batch = { SLURM_JOB_ID: "7", SLURM_JOB_NUM_NODES: "3" };
    const argv = ["-n", "2", "train.ts", "it's"];
    const parseBatchSettings = (): unknown =>
      parseSettings(resolveSources(parseCommandLine(argv).options, batch, testDir()), argv);
    expect(parseBatchSettings).toThrow(
      /; start the launcher on each node with srun --ntasks-per-node=1 --kill-on-bad-exit=0 \S+ -n 2 train\.ts 'it'\\''s', or pass --nnodes 1/,
    );
    vi.stubEnv("SLURM_NTASKS", "6");
    expect(parseBatchSettings).toThrow(/each node with srun --kill-on-bad-exit=0 \S+ -n 2/);
    vi.unstubAllEnvs();
  });

  it.each([
    [["--nnodes", "two"], {}, /--nnodes: expected N or MIN:MAX with at most 4096 nodes, received "two"$/],
    [["--nnodes", "3:2"], {}, /--nnodes: expected N or MIN:MAX/],
    [["-N", "2"], {}, /--node-rank: expected the rank of this node, 0 to 1, received nothing$/],
    [["-N", "2", "--node-rank=2"], {}, /--node-rank: expected an integer from 0 to 1, received "2"/],
    [["-N", "2", "--node-rank=1"], {}, /--rdzv-endpoint: expected the address of node 0, .*received nothing$/],
    [["-N2", "--node-rank=1", "--standalone"], {}, /--standalone: expected false, because --nnodes is 2/],
    [["--node-rank=1"], {}, /--node-rank: expected 0, because --nnodes is 1, received "1"/],
    [["--rdzv-backend", "etcd"], {}, /--rdzv-backend: expected static or c10d \(both select/],
    [
      ["--rdzv-endpoint", "node0:29400"],
      {},
      /--rdzv-endpoint: expected an address of this node, because --nnodes is 1/,
    ],
    [["--master-addr", "10.0.0.1"], {}, /--master-addr: expected an address of this node, because --nnodes is 1/],
    [
      [],
      { SLURM_JOB_ID: "7", SLURM_JOB_NUM_NODES: "3" },
      /batch script of a job with 3 nodes \(SLURM_JOB_NUM_NODES\).*; start the launcher on each node with srun --ntasks-per-node=1/,
    ],
  ] as [string[], Env, RegExp][])("are rejected for invalid nodes: %j %j", (argv, env, message) => {
    expect(() => parseArgs(argv, env)).toThrow(message);
  });

  it("include torchrun's options for one node", () => {
    const oneNodeArgs = [
      "--nnodes=1:1",
      "--node-rank=0",
      "--standalone",
      "--rdzv-backend=c10d",
      "--master-addr=127.0.0.1",
    ];
    expect(parseArgs([...oneNodeArgs, "--rdzv-endpoint=localhost:29400"]).launch).toMatchObject({ masterPort: 29_400 });
    expect(parseArgs([...oneNodeArgs, "--rdzv-endpoint=[::1]"]).launch).not.toHaveProperty("masterPort");
    expect(parseArgs([...oneNodeArgs, "--no-standalone"]).launch).toEqual(parseArgs(oneNodeArgs).launch);
    expect(parseArgs([], { PET_STANDALONE: "0" }).launch).toEqual(parseArgs([]).launch);
    const named = [
      `--rdzv-endpoint=${hostname()}:29400`,
      `--master-addr=${hostname()}.jobs.svc`,
      "--master-port=29400",
    ];
    expect(parseArgs(named).launch).toMatchObject({ masterPort: 29_400 });
  });

  it("select ranks by lists, ranges, all or none", () => {
    expect([...parseRanks("0,2-3", 4)]).toEqual([0, 2, 3]);
    expect([...parseRanks(undefined, 8)]).toHaveLength(8);
    expect([...parseRanks(undefined, 9)]).toEqual([0]);
    expect([...parseRanks("all", 9)]).toHaveLength(9);
    expect([...parseRanks("none", 9)]).toEqual([]);
    for (const invalidRanks of ["4", "3-2", "x", "", "1,"])
      expect(() => parseRanks(invalidRanks, 4)).toThrow(/ranks from 0 to 3/);
  });
});

describe("the closest match", () => {
  it("uses a metric that counts a swap of adjacent letters as one edit", () => {
    expect(editDistance("lgo-dir", "log-dir")).toBe(1);
    expect(editDistance("", "abc")).toBe(3);
    const word = fc.string({ maxLength: 8 });
    fc.assert(
      fc.property(word, word, (a, b) => {
        expect(editDistance(a, b)).toBe(editDistance(b, a));
        expect(editDistance(a, b) === 0).toBe(a === b);
        expect(editDistance(a, b)).toBeLessThanOrEqual(Math.max(a.length, b.length));
      }),
    );
  });

  it("is found for every option with a missing or doubled letter", () => {
    const names = OPTIONS.map(({ name }) => name);
    for (const name of names.filter(({ length }) => length > 4)) {
      const splitIndex = Math.floor(name.length / 2);
      expect(findClosestMatch(name.slice(0, splitIndex) + name.slice(splitIndex + 1), names)).toBe(name);
      expect(findClosestMatch(name.slice(0, splitIndex) + name[splitIndex] + name.slice(splitIndex), names)).toBe(name);
    }
  });
});

it("the README has a row for every option except --agent-stdin", () => {
  const readme = readFileSync(join(import.meta.dirname, "../README.md"), "utf8");
  const table = readme.slice(readme.indexOf("## Options"), readme.indexOf("## Watching a job"));
  // --agent-stdin is passed only by --hosts.
  const names = OPTIONS.map(({ name }) => name).filter((name) => name !== "agent-stdin");
  const shortNames: Readonly<Record<string, string>> = { help: "`-h`", version: "`-V`" };
  expect(names.filter((name) => !table.includes(shortNames[name] ?? `--${name}`))).toEqual([]);
});
