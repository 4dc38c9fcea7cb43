import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { profiles } from "@mosaic/attention/planner";
import { afterAll, describe, expect, it } from "vitest";
import { run, parseSummary } from "./run.ts";

const directory = mkdtempSync(join(tmpdir(), "quickstart-test-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const smallArgs = ["--tokens", "1001", "--heads", "2", "--dim", "16", "--seed", "5", "--json"];

describe("the program", () => {
  it.each([
    { ranks: 1, options: [] },
    { ranks: 2, options: ["--causal"] },
    { ranks: 3, options: ["--backward"] },
    { ranks: 3, options: ["--causal", "--backward"] },
    { ranks: 2, options: ["--dtype", "bfloat16"] },
    { ranks: 2, options: ["--dtype", "float16", "--backward"] },
    { ranks: 4, options: ["--tokens", "3", "--causal", "--backward"] },
  ])("is as accurate as one device: $ranks ranks, $options", async ({ ranks, options }) => {
    const svg = join(directory, "picture.svg");
    const result = await run([...smallArgs, "--ranks", String(ranks), "--svg", svg, ...options]);
    expect(result).toMatchObject({ code: 0, stdout: expect.stringContaining("✓ as accurate as one device") });
    const summary = parseSummary(result);
    expect(summary).toMatchObject({ ranks, backend: "ring", tokens: options.includes("3") ? 3 : 1001 });
    expect(summary["errorRatio"]).toBeLessThanOrEqual(2);
    expect(summary["bytesSent"]).toBe(summary["bytesSentClosedForm"]);
    expect(summary["seconds"]).toBeGreaterThan(0);
    expect(readFileSync(svg, "utf8")).toContain(`rank ${ranks - 1}`);
    rmSync(svg);
  });

  it.each([
    { backend: "mesh2d", ranks: 4, options: ["--backward"] },
    { backend: "mesh2d", ranks: 3, options: ["--causal", "--backward"] },
    { backend: "ulysses", ranks: 3, options: ["--causal", "--backward", "--dtype", "bfloat16"] },
    { backend: "flex", ranks: 4, options: ["--causal", "--backward"] },
    { backend: "composed", ranks: 4, options: ["--causal", "--backward"] },
    { backend: "hierarchical", ranks: 6, options: ["--mesh", "3x2", "--backward"] },
  ])("sends the planned bytes with $backend on $ranks ranks, $options", async ({ backend, ranks, options }) => {
    const svg = join(directory, "picture.svg");
    const result = await run([...smallArgs, "--backend", backend, "--ranks", String(ranks), "--svg", svg, ...options]);
    expect(result).toMatchObject({ code: 0, stdout: expect.stringContaining("equal to the closed form") });
    const summary = parseSummary(result);
    expect(summary).toMatchObject({ ranks, backend, bytesSentClosedForm: summary["bytesSentPlanned"] });
    expect(summary["bytesSent"]).toBe(summary["bytesSentPlanned"]);
    for (let rank = 0; rank < ranks; rank++) expect(readFileSync(svg, "utf8")).toContain(`>rank ${rank}<`);
  });

  it.each([
    { backend: "flex", mask: "documents:9", ranks: 4, placed: "dispatch", options: [] },
    { backend: "flex", mask: "window:70", ranks: 3, placed: "dispatch", options: [] },
    { backend: "ring", mask: "documents:9", ranks: 3, placed: "dispatch", options: ["--placement", "dispatch"] },
    { backend: "mesh2d", mask: "window:70", ranks: 4, placed: "contiguous", options: [] },
    { backend: "ulysses", mask: "documents:3", ranks: 2, placed: "contiguous", options: [] },
    { backend: "composed", mask: "block-causal:100", ranks: 4, placed: "zigzag", options: [] },
    {
      backend: "hierarchical",
      mask: "documents:20",
      ranks: 4,
      placed: "dispatch",
      options: ["--placement", "dispatch"],
    },
  ])(
    "is as accurate as one device with $backend under the mask $mask, placed $placed",
    async ({ backend, mask, ranks, placed, options }) => {
      const [svg, loadSvg] = [join(directory, "picture.svg"), join(directory, "load.svg")];
      const args = ["--backend", backend, "--mask", mask, "--ranks", String(ranks), ...options];
      const result = await run([...smallArgs, ...args, "--backward", "--svg", svg, "--dispatch", loadSvg]);
      expect(result).toMatchObject({ code: 0, stdout: expect.stringContaining("equal to the closed form") });
      const summary = parseSummary(result);
      expect(summary).toMatchObject({ backend, mask, placement: placed, bytesSent: summary["bytesSentPlanned"] });
      expect(summary["errorRatio"]).toBeLessThanOrEqual(3);
      expect(readFileSync(svg, "utf8")).toContain(`>rank ${ranks - 1}<`);
      const loadDrawing = readFileSync(loadSvg, "utf8");
      for (const expectedText of ["before: contiguous", `after: ${placed}`, "transfers per rank pair"])
        expect(loadDrawing).toContain(expectedText);
      // Bytes that ranks receive in the forward. The backward of flex receives them again, and the same amount of
      // gradients.
      const receivedKb = /received in total [\d.]+ \w+ → ([\d.]+) kB/.exec(loadDrawing)![1];
      if (backend === "flex") expect(Number(summary["bytesSent"]) / 3000).toBeCloseTo(Number(receivedKb), 0);
    },
  );

  it("shows the stages of flex, predicted and measured", async () => {
    const [svg, comparisonSvg] = [join(directory, "picture.svg"), join(directory, "both.svg")];
    const args = ["--backend", "flex", "--mask", "documents:5", "--ranks", "3", "--stages", "2", "--backward"];
    const result = await run([...smallArgs, ...args, "--svg", svg, "--predict", comparisonSvg]);
    expect(result).toMatchObject({ code: 0 });
    expect(parseSummary(result)["secondsPredicted"]).toBeGreaterThan(0);
    expect(readFileSync(svg, "utf8")).toContain("<title>stage 1: queries of rank");
    expect(readFileSync(svg, "utf8")).toMatch(/<title>stage 1: sends .*K, V of rank/);
    const comparison = readFileSync(comparisonSvg, "utf8");
    for (const expectedText of [">predicted<", ">measured<", ">own rows<", ">stage 1<", ">stage 2<", ">other kernels<"])
      expect(comparison).toContain(expectedText);
    expect(comparison).toContain("flex(sp) stage 2: keys, sends");
  });

  it("lets the planner choose, and reports its choice, reason and prediction", async () => {
    const [svg, comparisonSvg] = [join(directory, "picture.svg"), join(directory, "both.svg")];
    const profile = join(directory, "profile.json");
    writeFileSync(profile, JSON.stringify({ ...profiles["cpu-local"], ranksPerNode: 4 }));
    const files = ["--svg", svg, "--predict", comparisonSvg, "--profile", profile];
    const options = ["--backend", "auto", "--ranks", "4", ...files, "--backward"];
    const result = await run([...smallArgs, ...options]);
    expect(result).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/auto chose (.*) on \{.*strategies were compared/s),
    });
    const chosenStrategy = /auto chose (.*?) on/.exec(result.stdout)![1]!;
    const summary = parseSummary(result);
    expect(summary["bytesSent"]).toBe(summary["bytesSentPlanned"]);
    expect(summary["secondsPredicted"]).toBeGreaterThan(0);
    for (const file of [svg, comparisonSvg]) expect(readFileSync(file, "utf8")).toContain(`· ${chosenStrategy} ·`);
    for (const expectedText of ["predicted", "measured", ">rank 3<"])
      expect(readFileSync(comparisonSvg, "utf8")).toContain(expectedText);
  });

  it("sends the bytes of a full ring's closed form, and needs less memory than one device", async () => {
    const summary = parseSummary(await run([...smallArgs, "--ranks", "3", "--backward", "--svg", ""]));
    const keysAndValues = 2 * 1001 * 2 * 16 * 4;
    // K and V twice, dK and dV once, each to the two other ranks.
    expect(summary["bytesSent"]).toBe(2 * 3 * keysAndValues);
    expect(summary["peakBytesPerRank"]).toBeLessThan(Number(summary["peakBytesOneDevice"]));
    expect(summary["overlap"]).toBeGreaterThanOrEqual(0);
    expect(summary["overlap"]).toBeLessThanOrEqual(1);
  });

  it.each([
    { ranks: 1, backend: "ring", env: {} },
    { ranks: 4, backend: "ring", env: { MOSAIC_EMULATED_DEVICES: "4" } },
    { ranks: 4, backend: "mesh2d", env: { MOSAIC_EMULATED_DEVICES: "4" } },
    { ranks: 3, backend: "ring", env: { MOSAIC_SHARE_GPUS: "1" } },
  ])("computes on emulated GPUs: $ranks ranks, $backend, $env", async ({ ranks, backend, env }) => {
    const shape = ["--tokens", "150", "--dtype", "bfloat16", "--backward", "--causal"];
    const args = [
      ...smallArgs,
      ...shape,
      "--ranks",
      String(ranks),
      "--backend",
      backend,
      "--device",
      "cuda",
      "--svg",
      "",
    ];
    const result = await run(args, env);
    expect(result).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/, on GPUs[^]*✓ as accurate as one device/),
    });
    const summary = parseSummary(result);
    expect(summary).toMatchObject({ device: "cuda", bytesSent: summary["bytesSentClosedForm"] });
    expect(summary["bytesSent"]).toBeGreaterThanOrEqual(ranks - 1);
  });

  it("rejects more ranks than GPUs", async () => {
    const result = await run([...smallArgs, "--device", "cuda", "--ranks", "2", "--svg", ""]);
    expect(result).toMatchObject({ code: 1, stderr: expect.stringMatching(/each of the 2 ranks .*MOSAIC_SHARE_GPUS/) });
  });

  it("shows progress on stderr and its result on stdout, and leaves no files", async () => {
    const filesBefore = readdirSync(tmpdir());
    const { code, stdout, stderr } = await run([...smallArgs.slice(0, -1), "--ranks", "2", "--svg", ""]);
    expect(code).toBe(0);
    expect(stderr).toMatch(
      / 50 % .*attention on 2 ranks[^]*100 % .*attention on 2 ranks[^]*100 % .*single-device[^]*float64/,
    );
    expect(stdout).toMatch(/bytes moved .*equal to the closed form/);
    expect(stdout).not.toContain("%  attention on 2 ranks");
    const remainingFiles = readdirSync(tmpdir()).filter(
      (name) => name.startsWith("mosaic-quickstart-") && !filesBefore.includes(name),
    );
    expect(remainingFiles).toEqual([]);
    expect(existsSync("mosaic-quickstart.svg")).toBe(false);
  });

  it.each([
    ["attention on 2 ranks", /cancelled/],
    ["single-device attention", /single-device/],
    ["comparing a sample with float64", /float64/],
  ])("ends at Ctrl-C during: %s, and leaves no files", async (interruptAt, expectedText) => {
    const temporaryDirectory = mkdtempSync(join(directory, "tmp-"));
    const args = ["--tokens", "6000", "--heads", "4", "--dim", "32", "--ranks", "2", "--svg", ""];
    const result = await run(args, { TMPDIR: temporaryDirectory }, interruptAt);
    expect(result).toMatchObject({ code: 130, stderr: expect.stringMatching(expectedText) });
    expect(result.stdout).not.toContain("as accurate as");
    expect(readdirSync(temporaryDirectory).filter((name) => name.startsWith("mosaic-quickstart-"))).toEqual([]);
  });

  it("prints its help, and rejects unknown arguments", async () => {
    expect(await run(["--help"])).toMatchObject({ code: 0, stdout: expect.stringContaining("--tokens N") });
    const stderr = "Unknown option '--bogus'; --help lists all options\n";
    expect(await run(["--bogus"])).toEqual({ code: 2, stdout: "", stderr });
  });
});
