import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { meanTable } from "../papers/attention2d.ts";
import { computeStepSeconds } from "../papers/attention2d-fit.ts";
import { minimizeScalar, createProfile, simulateTiming, type Topology } from "../papers/clusters.ts";
import { fitBandwidth, fitMeshTimes } from "../papers/mesh-times.ts";
import { meshVolumeTables } from "../papers/mesh-attention.ts";
import { compare } from "../papers/plans.ts";
import { rankChart } from "../papers/rank-chart.ts";
import { rankTable } from "../papers/ranks.ts";
import { lengths, models, panels, stepSeconds } from "../papers/published.ts";
import { formatJsonLines, formatMarkdown, type Table } from "../papers/table.ts";
import { formulas, recordProblem, ringStrategy, tileStrategy, countVolumes } from "../papers/volumes.ts";

const nodesOf2: Topology = { name: "nodes of 2", ranksPerNode: 2, ports: 2, intraNodeSpeedup: 10 };

describe("communication volumes", () => {
  it("match the published formulas, except for the statistics that are sent with queries", () => {
    const problem = { tokens: 256, numHeads: 4, numKvHeads: 2, headDim: 32 };
    const ring = countVolumes(recordProblem(ringStrategy(8), problem), 2);
    expect(ring.forward.chunks).toBeCloseTo(formulas.ring(8, 2).forward, 12);
    expect(ring.backward.chunks).toBeCloseTo(formulas.ring(8, 2).backward, 12);
    // The ring has four nodes of two ranks. One rank in two sends to another node.
    expect(ring.betweenNodes.chunks).toBeCloseTo(ring.both.chunks / 2, 12);
    const mesh = countVolumes(recordProblem(tileStrategy([2, 4]), problem), 2);
    const { forward, backward } = formulas.tile([2, 4], 2);
    expect(mesh.forward.chunks).toBeCloseTo(forward + 1 / 32, 12);
    expect(mesh.backward.chunks).toBeCloseTo(backward + 2 / 32, 12);
    // Rows are within nodes. Keys, dk and dv are sent between nodes.
    expect(mesh.betweenNodes.chunks).toBeCloseTo(3 * (1 + 2), 12);
  });

  it("are reduced relative to the ring as the formulas state", () => {
    const [reductions] = meshVolumeTables({ ranks: 16, tiles: [[4, 4]], groups: [1, 2] });
    for (const row of reductions!.rows)
      expect(Math.abs(Number(row["both"]) - Number(row["formula"]))).toBeLessThan(0.005);
    expect(reductions!.rows).toHaveLength(2);
  });

  it("include the transposes of Attention2D", () => {
    expect(formulas.tile([4, 4], 1, 1)).toEqual({ forward: 14, backward: 23 });
    expect(formulas.ring(16, 1, 16)).toEqual({ forward: 30, backward: 62 });
  });
});

describe("fitted networks", () => {
  it("reproduce the share of time for which the ring waits", () => {
    const ring = recordProblem(ringStrategy(8), { tokens: 65_536, numHeads: 8, headDim: 128 });
    const bandwidth = fitBandwidth(ring, nodesOf2, 0.9);
    expect(simulateTiming(ring, createProfile({ gpu: "h100", topology: nodesOf2, bandwidth })).waitShare).toBeCloseTo(
      0.9,
      3,
    );
  });

  it("give the mesh a smaller speedup when nodes have fewer ports", () => {
    const fittedProblem = { ranks: 16, tokens: 65_536, share: 0.9 };
    const { tables } = fitMeshTimes({
      fittedProblem,
      ranks: 16,
      tiles: [[8, 2]],
      tokens: [],
      closestTopology: "",
    });
    const rows = tables.find(({ id }) => id === "mesh.speedup")!.rows;
    const speedups = rows
      .filter(({ wiring }) => String(wiring).startsWith("nodes"))
      .map(({ speedup }) => Number(speedup));
    expect(speedups).toHaveLength(4);
    expect(speedups).toEqual(speedups.toSorted((a, b) => b - a));
  });

  it("are found by minimizeScalar, which returns the minimum of a function", () => {
    expect(minimizeScalar((x) => (Math.log(x) - 2) ** 2, [1, 100])).toBeCloseTo(Math.exp(2), 0);
  });
});

describe("compare", () => {
  it("compares the ring, the paper's plan and ulysses × ring with the best plan, which is the fastest", () => {
    const problem = { tokens: 16_384, numHeads: 4, headDim: 64 };
    const cluster = { gpu: "a100", topology: nodesOf2, bandwidth: 1e9 } as const;
    const publishedPlans = [tileStrategy([4, 2])];
    const { rows } = compare({ id: "x", title: "x", problem, cluster, ranks: 8, publishedPlans });
    expect(rows.map(({ kind }) => kind)).toEqual([
      "ring attention",
      "the paper's",
      "fastest ulysses × ring",
      "our best",
    ]);
    const seconds = rows.map((row) => Number(row["seconds"]));
    expect(Math.min(...seconds)).toBe(seconds[3]);
    expect(Number(rows[3]!["overRing"])).toBeGreaterThan(1);
  });
});

describe("published figures", () => {
  it("have a speedup for each length, and step times that match the panels of their model best", () => {
    for (const { notOverlappedSpeedups, overlappedSpeedups } of panels) {
      expect([notOverlappedSpeedups.length, overlappedSpeedups.length]).toEqual([lengths.length, lengths.length]);
    }
    for (const ranks of [16, 64] as const) {
      const ratios = stepSeconds.ring[ranks].map((seconds, i) => seconds / stepSeconds.notOverlapped[ranks][i]!);
      const squaredLogError = (bars: readonly number[]) =>
        bars.reduce((sum, bar, i) => sum + Math.log(ratios[i]! / bar) ** 2, 0);
      const panelsOfRanks = panels.filter((panel) => panel.ranks === ranks);
      const nearestPanel = panelsOfRanks.toSorted(
        (a, b) => squaredLogError(a.notOverlappedSpeedups) - squaredLogError(b.notOverlappedSpeedups),
      )[0]!;
      expect(nearestPanel.model).toBe(stepSeconds.model);
    }
  });

  it("are for whole steps, so computeStepSeconds adds the layers around attention", () => {
    const width = models["13B"].numHeads * models["13B"].headDim;
    expect(computeStepSeconds(1, models["13B"], { tokens: 16, ranks: 2, matmul: 72 })).toBe(1 + width ** 2 * 8);
  });
});

describe("strategies by ranks", () => {
  const readCommitted = (path: string) => readFileSync(new URL(`../../${path}`, import.meta.url), "utf8");
  const rows = readCommitted("benchmarks/results/2026-11-24-ranks.jsonl").trim().split("\n");

  it("have a committed chart that equals the one drawn from the committed rows, byte for byte", () => {
    expect(rankChart(rows.join("\n")) === readCommitted("docs/images/strategies-by-ranks.svg")).toBe(true);
  });

  it("have committed rows for 16 ranks that equal the current predictions", () => {
    const rowsOf16Ranks = rows.filter((row) => JSON.parse(row).ranks === 16);
    expect(rowsOf16Ranks).toHaveLength(7);
    expect(formatJsonLines(rankTable([16])).split("\n")).toEqual(rowsOf16Ranks);
  });
});

describe("tables", () => {
  const table: Table = {
    id: "t",
    title: "A table",
    columns: [
      { key: "name", head: "name" },
      { key: "share", head: "share", format: "percent" },
      { key: "none", head: "none", format: 1 },
    ],
    rows: [{ name: "a", share: 0.85435 }],
  };

  it("are formatted as Markdown or JSON lines", () => {
    expect(formatMarkdown(table)).toBe(
      "### A table\n\n| name | share | none |\n| --- | --: | --: |\n| a | 85.4 % | – |",
    );
    expect(formatJsonLines(table)).toBe('{"table":"t","name":"a","share":0.8544}');
  });

  it("summarize bars by their geometric means", () => {
    const bar = { model: "13B", ranks: 16, fused: 2, statedOverlapped: 1, overlapped: 1 };
    const { rows } = meanTable({
      ...table,
      rows: [
        { ...bar, stated: 1 },
        { ...bar, stated: 4 },
      ],
    });
    expect(rows).toEqual([expect.objectContaining({ stated: 2, off: 0 })]);
  });
});

describe("the papers command", () => {
  const papers = fileURLToPath(new URL("../dist/papers.js", import.meta.url));
  const runPapers = (...args: string[]) => spawnSync(process.execPath, [papers, ...args], { encoding: "utf8" });

  it("prints its help, and rejects unknown papers and options", () => {
    expect(runPapers("--help")).toMatchObject({ status: 0, stdout: expect.stringContaining("--only") });
    const unknownPaperError = { status: 2, stderr: expect.stringContaining("mesh-attention, attention2d, ranks") };
    expect(runPapers("--only", "ring")).toMatchObject(unknownPaperError);
    expect(runPapers("--fast")).toMatchObject({ status: 2, stderr: expect.stringContaining("npm run bench:papers") });
  });
});
