import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { profiles } from "@mosaic/attention/planner";
import { afterAll, describe, expect, it } from "vitest";
import { run, parseSummary } from "./run.ts";

const directory = mkdtempSync(join(tmpdir(), "quickstart-test-"));
afterAll(() => rmSync(directory, { recursive: true, force: true }));

const small = ["--tokens", "1001", "--heads", "2", "--dim", "16", "--seed", "5", "--json"];

describe("the program", () => {
  it.each([
    { ranks: 1, options: [] },
    { ranks: 2, options: ["--causal"] },
    { ranks: 3, options: ["--backward"] },
    { ranks: 3, options: ["--causal", "--backward"] },
    { ranks: 2, options: ["--dtype", "bfloat16"] },
    { ranks: 2, options: ["--dtype", "float16", "--backward"] },
    { ranks: 4, options: ["--tokens", "3", "--causal", "--backward"] },
  ])("is as exact as one device: $ranks ranks, $options", async ({ ranks, options }) => {
    const svg = join(directory, "picture.svg");
    const ran = await run([...small, "--ranks", String(ranks), "--svg", svg, ...options]);
    expect(ran).toMatchObject({ code: 0, stdout: expect.stringContaining("✓ as accurate as one device") });
    const summary = parseSummary(ran);
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
  ])("does so with $backend on $ranks ranks, $options", async ({ backend, ranks, options }) => {
    const svg = join(directory, "picture.svg");
    const ran = await run([...small, "--backend", backend, "--ranks", String(ranks), "--svg", svg, ...options]);
    expect(ran).toMatchObject({ code: 0, stdout: expect.stringContaining("equal to the closed form") });
    const summary = parseSummary(ran);
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
    "is as exact with $backend under the mask $mask, placed $placed",
    async ({ backend, mask, ranks, placed, options }) => {
      const [svg, load] = [join(directory, "picture.svg"), join(directory, "load.svg")];
      const args = ["--backend", backend, "--mask", mask, "--ranks", String(ranks), ...options];
      const ran = await run([...small, ...args, "--backward", "--svg", svg, "--dispatch", load]);
      expect(ran).toMatchObject({ code: 0, stdout: expect.stringContaining("equal to the closed form") });
      const summary = parseSummary(ran);
      expect(summary).toMatchObject({ backend, mask, placement: placed, bytesSent: summary["bytesSentPlanned"] });
      expect(summary["errorRatio"]).toBeLessThanOrEqual(3);
      expect(readFileSync(svg, "utf8")).toContain(`>rank ${ranks - 1}<`);
      const drawn = readFileSync(load, "utf8");
      for (const words of ["before: contiguous", `after: ${placed}`, "transfers per rank pair"])
        expect(drawn).toContain(words);
      // What ranks receive, forward: in backward of flex as much again, and as many gradients.
      const received = /received in total [\d.]+ \w+ → ([\d.]+) kB/.exec(drawn)![1];
      if (backend === "flex") expect(Number(summary["bytesSent"]) / 3000).toBeCloseTo(Number(received), 0);
    },
  );

  it("shows flex's stages, predicted beside measured", async () => {
    const [svg, both] = [join(directory, "picture.svg"), join(directory, "both.svg")];
    const args = ["--backend", "flex", "--mask", "documents:5", "--ranks", "3", "--stages", "2", "--backward"];
    const ran = await run([...small, ...args, "--svg", svg, "--predict", both]);
    expect(ran).toMatchObject({ code: 0 });
    expect(parseSummary(ran)["secondsPredicted"]).toBeGreaterThan(0);
    expect(readFileSync(svg, "utf8")).toContain("<title>stage 1: queries of rank");
    expect(readFileSync(svg, "utf8")).toMatch(/<title>stage 1: sends .*K, V of rank/);
    const drawn = readFileSync(both, "utf8");
    for (const words of [">predicted<", ">measured<", ">own rows<", ">stage 1<", ">stage 2<", ">other kernels<"])
      expect(drawn).toContain(words);
    expect(drawn).toContain("flex(sp) stage 2: keys, sends");
  });

  it("lets the planner choose, reports why, and shows what it predicted", async () => {
    const [svg, both] = [join(directory, "picture.svg"), join(directory, "both.svg")];
    const profile = join(directory, "profile.json");
    writeFileSync(profile, JSON.stringify({ ...profiles["cpu-local"], ranksPerNode: 4 }));
    const files = ["--svg", svg, "--predict", both, "--profile", profile];
    const options = ["--backend", "auto", "--ranks", "4", ...files, "--backward"];
    const ran = await run([...small, ...options]);
    expect(ran).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/auto chose (.*) on \{.*strategies were compared/s),
    });
    const chosen = /auto chose (.*?) on/.exec(ran.stdout)![1]!;
    const summary = parseSummary(ran);
    expect(summary["bytesSent"]).toBe(summary["bytesSentPlanned"]);
    expect(summary["secondsPredicted"]).toBeGreaterThan(0);
    for (const file of [svg, both]) expect(readFileSync(file, "utf8")).toContain(`· ${chosen} ·`);
    for (const word of ["predicted", "measured", ">rank 3<"]) expect(readFileSync(both, "utf8")).toContain(word);
  });

  it("moves what the formula of a full ring states, and needs less memory than one device", async () => {
    const summary = parseSummary(await run([...small, "--ranks", "3", "--backward", "--svg", ""]));
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
  ])("computes on GPUs, here emulated ones: $ranks ranks, $backend, $env", async ({ ranks, backend, env }) => {
    const shape = ["--tokens", "150", "--dtype", "bfloat16", "--backward", "--causal"];
    const args = [...small, ...shape, "--ranks", String(ranks), "--backend", backend, "--device", "cuda", "--svg", ""];
    const ran = await run(args, env);
    expect(ran).toMatchObject({ code: 0, stdout: expect.stringMatching(/, on GPUs[^]*✓ as accurate as one device/) });
    const summary = parseSummary(ran);
    expect(summary).toMatchObject({ device: "cuda", bytesSent: summary["bytesSentClosedForm"] });
    expect(summary["bytesSent"]).toBeGreaterThanOrEqual(ranks - 1);
  });

  it("rejects a GPU for more ranks than there are", async () => {
    const ran = await run([...small, "--device", "cuda", "--ranks", "2", "--svg", ""]);
    expect(ran).toMatchObject({ code: 1, stderr: expect.stringMatching(/each of the 2 ranks .*MOSAIC_SHARE_GPUS/) });
  });

  it("shows progress beside its result, and leaves nothing behind", async () => {
    const before = readdirSync(tmpdir());
    const { code, stdout, stderr } = await run([...small.slice(0, -1), "--ranks", "2", "--svg", ""]);
    expect(code).toBe(0);
    expect(stderr).toMatch(/ 50 % .*2 ranks attend[^]*100 % .*2 ranks attend[^]*100 % .*single-device[^]*float64/);
    expect(stdout).toMatch(/bytes moved .*equal to the closed form/);
    expect(stdout).not.toContain("%  2 ranks attend");
    const left = readdirSync(tmpdir()).filter(
      (name) => name.startsWith("mosaic-quickstart-") && !before.includes(name),
    );
    expect(left).toEqual([]);
    expect(existsSync("mosaic-quickstart.svg")).toBe(false);
  });

  it.each([
    ["ranks attend", 143, /cancelled/],
    ["single-device attention", 130, /single-device/],
    ["comparing a sample with float64", 130, /float64/],
  ])("ends at Ctrl-C during: %s, and leaves nothing behind", async (moment, code, words) => {
    const temporary = mkdtempSync(join(directory, "tmp-"));
    const args = ["--tokens", "6000", "--heads", "4", "--dim", "32", "--ranks", "2", "--svg", ""];
    const ran = await run(args, { TMPDIR: temporary }, moment);
    expect(ran).toMatchObject({ code, stderr: expect.stringMatching(words) });
    expect(ran.stdout).not.toContain("as accurate as");
    expect(readdirSync(temporary).filter((name) => name.startsWith("mosaic-quickstart-"))).toEqual([]);
  });

  it("prints its help, and rejects unknown arguments", async () => {
    expect(await run(["--help"])).toMatchObject({ code: 0, stdout: expect.stringContaining("--tokens N") });
    const refused = { code: 2, stdout: "", stderr: expect.stringMatching(/--bogus[^]*npm run demo/) };
    expect(await run(["--bogus"])).toMatchObject(refused);
  });
});
