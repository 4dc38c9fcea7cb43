import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { profiles } from "@mosaic/planner";
import { afterAll, describe, expect, test } from "vitest";

const root = join(import.meta.dirname, "..");
const bin = join(root, "bin/mosaic-plan.js");
const directory = mkdtempSync(join(tmpdir(), "mosaic-plan-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** Runs the command in the way that npm links it. */
function runMosaicPlan(...args: string[]) {
  const { status, stdout, stderr } = spawnSync(process.execPath, [bin, ...args], {
    cwd: root,
    encoding: "utf8",
  });
  return { status, stdout, stderr };
}

const callOptions = ["--tokens", "16k", "--heads", "8", "--kv-heads", "2", "--head-dim", "64", "--gpus-per-node", "4"];
const quickOptions = [...callOptions, "--simulate", "1"];

test("--help lists options and profiles", () => {
  const { status, stdout } = runMosaicPlan("--help");
  expect(status).toBe(0);
  for (const option of ["tokens", "kv-heads", "profile", "memory-limit", "backend", "prove", "json"]) {
    expect(stdout).toContain(`--${option}`);
  }
  expect(stdout).toContain("h100-ib400");
  for (const line of stdout.split("\n")) expect(line.length).toBeLessThanOrEqual(120);
});

test("--version prints the version of the package", () => {
  const { version } = JSON.parse(readFileSync(new URL("../package.json", import.meta.url), "utf8")) as {
    version: string;
  };
  for (const flag of ["--version", "-V"]) {
    expect(runMosaicPlan(flag)).toMatchObject({ status: 0, stdout: `${version}\n` });
  }
});

test("the output has a table, a legend for its marks and the code to paste", () => {
  const { status, stdout, stderr } = runMosaicPlan(...quickOptions, "--simulate", "2", "--top", "4");
  expect(status).toBe(0);
  expect(stderr).toMatch(/^mosaic-plan: estimating \d+\nmosaic-plan: simulating 2\n$/);
  const lines = stdout.split("\n");
  expect(lines[0]).toBe(
    "16 384 tokens, 8 heads (2 KV heads) of size 64, bfloat16, causal, zigzag; 1 × 4 ranks, h100-ib400",
  );
  expect(lines[2]).toMatch(/step time +forward +exposed comm +intra-node +inter-node +memory +strategy +mesh$/);
  const rows = lines.slice(3, lines.indexOf("", 3));
  expect(rows.length).toBeGreaterThanOrEqual(4);
  expect(rows[0]).toMatch(/^ *1 .* (ms|µs) .* \{ .* \}$/);
  expect(rows.some((row) => row.includes("≈"))).toBe(true);
  expect(rows.some((row) => row.includes("ring 4 "))).toBe(true);
  expect(stdout).toContain("≈ estimated from two ranks");
  expect(stdout).toContain(`import * as mosaic from "@mosaic/attention";`);
  expect(stdout).toContain("numKvHeads: 2,");
});

test("on several nodes, the table shows the axes between nodes and marks strategies as fast as the best", () => {
  const { stdout } = runMosaicPlan(...quickOptions, "--nodes", "2", "--gpus-per-node", "2", "--simulate", "3", "--all");
  const lines = stdout.split("\n");
  expect(lines[2]).toMatch(/mesh +axes between nodes$/);
  const rows = lines.slice(3, lines.indexOf("", 3));
  const [best] = rows.filter((row) => row.includes("= "));
  expect(best).toMatch(/^ *1 += [\d.]+ (ms|µs) /);
  expect(rows.find((row) => / ring 4 /.test(row))).toMatch(/\{ sp: 4 \} +sp$/);
  expect(rows.find((row) => /\{ node: 2, gpu: 2 \}/.test(row))).toMatch(/\} +node$/);
  expect(stdout).toContain("= within 1 % of the shortest time.");
});

test("--json prints one object with the whole plan", () => {
  const { status, stdout } = runMosaicPlan(
    ...quickOptions,
    "--json",
    "--mask",
    "slidingWindow:1k",
    "--dtype",
    "float16",
    "--prove",
  );
  expect(status).toBe(0);
  const planJson = JSON.parse(stdout);
  expect(planJson).toMatchObject({
    tokens: 16_384,
    numHeads: 8,
    numKvHeads: 2,
    mask: "slidingWindow(1024)",
    placement: "contiguous",
    dtype: "float16",
    ranks: 4,
    profile: { name: "h100-ib400" },
    refused: [],
    violations: [],
    violationCount: 0,
  });
  expect(planJson.best).toEqual(planJson.ranking[0]);
  for (const planned of planJson.ranking) {
    expect(planned.seconds).toBeGreaterThan(0);
    expect(Object.values(planned.mesh as Record<string, number>).reduce((a, b) => a * b, 1)).toBe(4);
    expect(planned.code).toContain("mask: mosaic.masks.slidingWindow(1024),");
  }
});

test("--prove, --svg, --tiles, --trace and --html apply to the best strategy", () => {
  const [svg, tiles, trace, html] = ["a.svg", "b.svg", "c.json", "d.html"].map((name) => join(directory, name)) as [
    string,
    string,
    string,
    string,
  ];
  const pictureOptions = ["--svg", svg, "--tiles", tiles, "--trace", trace, "--html", html];
  const { status, stdout } = runMosaicPlan(...quickOptions, "--prove", ...pictureOptions);
  expect(status).toBe(0);
  expect(stdout).toMatch(/is proved on all 4 ranks/);
  expect(readFileSync(svg, "utf8")).toContain("computing");
  expect(readFileSync(tiles, "utf8")).toContain("computed by rank");
  expect(JSON.parse(readFileSync(trace, "utf8")).traceEvents.length).toBeGreaterThan(40);
  const [, data = ""] = /class="viewer-data">(.*?)<\/script>/s.exec(readFileSync(html, "utf8")) ?? [];
  const { runs, tiles: tileMap, links, load } = JSON.parse(data);
  expect([runs[0].ranks.length, tileMap.layers.length > 0, links.nodes.length, load.pairs.length > 0]).toEqual([
    4,
    true,
    4,
    true,
  ]);
});

test("files that cannot be written are reported before planning begins", () => {
  const duplicatePath = join(directory, "twice.svg");
  for (const [args, message] of [
    [["--svg", join(directory, "nowhere/a.svg")], /--svg .*nowhere.*ENOENT/],
    [["--trace", directory], /--trace .*expected a file, received a directory/],
    [["--svg", duplicatePath, "--tiles", duplicatePath], /--tiles .*expected a different file from --svg/],
  ] as const) {
    const { status, stdout, stderr } = runMosaicPlan(...quickOptions, ...args);
    expect(status).toBe(2);
    expect(stdout).toBe("");
    expect(stderr).toMatch(message);
    expect(stderr).not.toContain("estimating");
  }
});

test("a reader that closes its end causes no error, and a full disk does", () => {
  const runShell = (redirection: string) =>
    spawnSync("bash", ["-c", `set -o pipefail; "$@" ${redirection}`, "bash", process.execPath, bin, ...quickOptions], {
      encoding: "utf8",
    });
  expect(runShell("2>/dev/null | true").status).toBe(0);
  expect(runShell("2>&1 >/dev/null | true").status).toBe(0);
  const fullDeviceRun = runShell("> /dev/full");
  expect(fullDeviceRun.stderr).toMatch(/mosaic-plan: cannot write the result: ENOSPC/);
  expect(fullDeviceRun.status).toBe(1);
});

test("--profile accepts a file and --memory-limit an amount of memory", () => {
  const file = join(directory, "mine.json");
  writeFileSync(file, JSON.stringify({ ...profiles["cpu-local"], name: "mine" }));
  const profileRun = runMosaicPlan(...quickOptions, "--profile", file, "--memory-limit", "1GB");
  expect(profileRun.status).toBe(0);
  expect(profileRun.stdout).toContain("; 1 × 4 ranks, mine");
  expect(profileRun.stdout).toContain("await mosaic.init({ mesh:");
  const tightMemoryRun = runMosaicPlan(...quickOptions, "--memory-limit", "1MB");
  expect(tightMemoryRun.status).toBe(1);
  expect(tightMemoryRun.stderr).toMatch(/memoryLimit of at least \d+ bytes \(.* MB\), received 1000000 bytes/);
});

describe("--backend", () => {
  test.each([
    ["third-party.mjs", "circle (third-party.mjs)"],
    ["third-party.ts", "circle of 8 (third-party.ts)"],
  ])("compares %s with the other strategies and returns its code", (module, name) => {
    const { status, stdout } = runMosaicPlan(
      ...quickOptions,
      "--json",
      "--backend",
      join(root, "test/programs", module),
    );
    expect(status).toBe(0);
    const { ranking } = JSON.parse(stdout);
    const ownStrategy = ranking.find((planned: { name: string }) => planned.name === name);
    expect(ownStrategy.mesh).toEqual({ circle: 4 });
    expect(ownStrategy.code).toContain(
      `import makeBackend from ${JSON.stringify(join(root, "test/programs", module))};`,
    );
    expect(ownStrategy.code).toContain("await makeBackend({ ranks: 4, nodes: 1, gpusPerNode: 4, tokens: 16384,");
  });

  test.each([
    ["test/programs/third-party.mjs", "./test/programs/third-party.mjs"],
    ["./test/programs/third-party.mjs", "./test/programs/third-party.mjs"],
    ["../strategies/test/programs/third-party.mjs", "../strategies/test/programs/third-party.mjs"],
  ])("imports %s in the code as a relative file and not as a package", (module, specifier) => {
    const { stdout } = runMosaicPlan(...quickOptions, "--json", "--backend", module);
    const { ranking } = JSON.parse(stdout);
    const { code } = ranking.find(({ name }: { name: string }) => name === "circle (third-party.mjs)");
    expect(code).toContain(`\nimport makeBackend from "${specifier}";\n`);
  });

  test("always shows the given backend in the table and numbers the rows as shown", () => {
    const { status, stdout } = runMosaicPlan(
      ...quickOptions,
      "--top",
      "1",
      "--backend",
      join(root, "test/programs/third-party.mjs"),
    );
    expect(status).toBe(0);
    const lines = stdout.split("\n");
    const rows = lines.slice(3, lines.indexOf("", 3));
    expect(rows.filter((row) => row.includes("circle (third-party.mjs)"))).toHaveLength(1);
    expect(rows.map((row) => Number.parseInt(row, 10))).toEqual(rows.map((_, i) => i + 1));
  });

  test("reports violations of an incorrect backend with --prove", () => {
    const { status, stdout } = runMosaicPlan(
      ...quickOptions,
      "--prove",
      "--backend",
      join(root, "test/programs/wrong.mjs"),
    );
    expect(status).toBe(1);
    expect(stdout).toMatch(/forgetful \(wrong\.mjs\) has \d+ violations/);
  });

  test.each([
    ["nowhere.mjs", /--backend nowhere\.mjs: Cannot find module/],
    [
      "test/programs/nothing.mjs",
      /--backend test\/programs\/nothing\.mjs: expected its default export to return a backend/,
    ],
    ["test/programs/throwing.mjs", /--backend test\/programs\/throwing\.mjs: 4 ranks are too few/],
    ["test/programs/name.mjs", /--backend test\/programs\/name\.mjs: expected its default export to return a backend/],
    ["test/programs/misspelt.mjs", /misspelt\.mjs: candidate: expected options among backend, .* received "mehs"/],
    ["src/strategy.ts", /--backend src\/strategy\.ts: expected a default export/],
  ])("rejects %s and states what is wrong with it", (module, message) => {
    const { status, stderr } = runMosaicPlan(...quickOptions, "--backend", module);
    expect(status).toBe(2);
    expect(stderr).toMatch(message);
    expect(stderr).not.toContain("    at ");
  });
});

test.each([
  [["--tokens", "128k"], /--heads: expected an integer ≥ 1, such as 32, received nothing; mosaic-plan --help/],
  [["--heads", "8"], /--tokens: expected an integer ≥ 1, such as 128k, received nothing; mosaic-plan --help/],
  [
    ["--tokens", "lots", "--heads", "8"],
    /--tokens: expected an integer ≥ 1, such as 4096, 128k or 1M, received "lots"/,
  ],
  [[...quickOptions, "--kv-heads", "3"], /--kv-heads: expected a divisor of --heads 8, received 3/],
  [[...quickOptions, "--profile", "h100"], /--profile: expected one of h100-ib400, .* received "h100"/],
  [[...quickOptions, "--profile", "missing.json"], /--profile missing\.json: ENOENT/],
  [[...quickOptions, "--mask", "diagonal"], /--mask: expected one of full, causal, .* received "diagonal"/],
  [[...quickOptions, "--mask", "slidingWindow"], /--mask: expected one of .*slidingWindow:N/],
  [
    [...quickOptions, "--mask", "slidingWindow:4:5:6"],
    /--mask: expected one of .*slidingWindow:LEFT:RIGHT.* "slidingWindow:4:5:6"/,
  ],
  [
    [...quickOptions, "--mask", "slidingWindow:1k:-1"],
    /--mask slidingWindow: expected an integer ≥ 0, .* received "-1"/,
  ],
  [[...quickOptions, "--mask", "causal:4"], /--mask: expected one of .* received "causal:4"/],
  [[...quickOptions, "--mask", "causal+"], /--mask: expected one of .* received ""/],
  [[...quickOptions, "--mask", "causal&windows:4"], /--mask: expected one of .* received "windows:4"/],
  [[...quickOptions, "--mask", "globalTokens:4:keys"], /--mask: expected one of .* received "globalTokens:4:keys"/],
  [[...quickOptions, "--mask", "documents"], /--mask: expected one of .*documents:LENGTHS:MASK/],
  [[...quickOptions, "--mask", "documents:8k,none"], /--mask documents: expected an integer ≥ 1, .* received "none"/],
  [
    [...quickOptions, "--mask", "documents:2x2x4k"],
    /--mask documents: expected lengths such as 8k,512,4x2k, received "2x2x4k"/,
  ],
  [[...quickOptions, "--mask", "documents:4kx1"], /a sequence of length 4096, .*received 16384 queries and 16384 keys/],
  [[...quickOptions, "--mask", "documents:1Gx1"], /--mask documents: expected lengths such as .* received "1Gx1"/],
  [
    [...quickOptions, "--mask", "documents:8k,4k"],
    /--mask documents:8k,4k: documents\(2, full\): expected a sequence of length 12288/,
  ],
  [
    [...quickOptions, "--mask", "documents:2x8k:prefix:9k"],
    /--mask documents:2x8k:prefix:9k: prefix\(9216\): .* 9216 keys/,
  ],
  [[...quickOptions, "--mask", "shareQuestion:4k"], /--mask: expected one of .*shareQuestion:N:LENGTHS/],
  [
    [...quickOptions, "--dtype", "float32"],
    /plan: dtype: expected a data type with speeds in profile h100-ib400: bfloat16, float16, received float32; choose/,
  ],
  [[...quickOptions, "--dtype", "int8"], /--dtype: expected one of float32, bfloat16, float16, received "int8"/],
  [[...quickOptions, "--memory-limit", "80 bananas"], /--memory-limit: expected an amount of memory/],
  [[...quickOptions, "--memory-limit", `${"9".repeat(309)}GB`], /--memory-limit: expected an amount of memory/],
  [
    [...quickOptions, "--heads", "64k", "--kv-heads", "64k", "--nodes", "64k"],
    /expected at most 65536 ranks, .* 65536 nodes/,
  ],
  [[...quickOptions, "--heads", "65k"], /numHeads: expected an integer from 1 to 65536, received 66560/],
  [
    [...quickOptions, "--nodes", "257", "--tiles", "tiles.svg"],
    /--tiles: expected at most 1024 ranks, .* received 1028; use --svg/,
  ],
  [[...quickOptions, "--token", "3"], /Unknown option '--token'.*; mosaic-plan --help lists all options/],
  [[...quickOptions, "ring"], /Unexpected argument 'ring'/],
])("%j exits with code 2 and states what was expected", (args, message) => {
  const { status, stdout, stderr } = runMosaicPlan(...args);
  expect(status).toBe(2);
  expect(stdout).toBe("");
  expect(stderr).toMatch(/^mosaic-plan: /);
  expect(stderr).toMatch(message);
  expect(stderr).not.toContain("    at ");
});
