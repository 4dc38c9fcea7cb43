import { describe, expect, it } from "vitest";
import { closedFormTraffic, predictRun } from "../src/prediction.ts";
import type { RankSchedule } from "../src/rank-schedule.ts";
import { parseSettings } from "../src/args.ts";
import type { Settings } from "../src/job.ts";
import { formatPayloads } from "../src/format.ts";

function createSettings(line: string): Settings {
  return parseSettings(`--tokens 64 --heads 2 --dim 4 ${line}`.split(" ")) as Settings;
}

function createSchedules(line: string, rank: number): RankSchedule {
  return predictRun(createSettings(line)).schedules[rank]!;
}

/** Lists what a rank attends to, in order and with heads merged, and what it sends. */
function summarizeSchedule({ tiles, batches }: RankSchedule): { attends: readonly string[]; sends: readonly string[] } {
  const attends = tiles.map(({ queries, keys, isBackward }) => `${isBackward ? "∇ " : ""}${queries} · ${keys}`);
  return {
    attends: attends.filter((each, i) => each !== attends[i - 1]),
    sends: batches.map(({ label, payloads }) => `${label}: ${formatPayloads(payloads, 4)}`),
  };
}

describe("predicted schedule of a rank", () => {
  it("ring: passes keys and values to the next rank, and returns gradients at the end", () => {
    expect(summarizeSchedule(createSchedules("--backend ring --ranks 3 --backward", 1))).toEqual({
      attends: ["1 · 1", "1 · 0", "1 · 2", "∇ 1 · 1", "∇ 1 · 0", "∇ 1 · 2"],
      sends: [
        "ring(sp): K, V of rank 1 to rank 2",
        "ring(sp): K, V of rank 0 to rank 2",
        "ring(sp): K, V of rank 1 to rank 2",
        "ring(sp): K, V of rank 0 to rank 2",
        "ring(sp): dK, dV of rank 0 to rank 2",
        "ring(sp): dK, dV returned to rank 2",
      ],
    });
  });

  it("mesh2d: sends queries along rows and keys along columns, and returns results", () => {
    // The backend may compute so few tokens block by block or all at once.
    const { tiles, batches } = createSchedules("--backend mesh2d --mesh 2x2 --backward", 0);
    for (const phase of [false, true]) {
      const blocks = tiles.filter(({ isBackward }) => isBackward === phase);
      expect(new Set(blocks.flatMap(({ queries }) => queries))).toEqual(new Set([0, 1]));
      expect(new Set(blocks.flatMap(({ keys }) => keys))).toEqual(new Set([0, 2]));
    }
    expect(batches.flatMap(({ payloads }) => formatPayloads(payloads, 4).split("; ")).toSorted()).toEqual([
      "K, V of rank 0 to rank 2",
      "K, V of rank 0 to rank 2",
      "Q of rank 0 to rank 1",
      "Q, dOut of rank 0 to rank 1",
      "dK, dV returned to rank 2",
      "dQ returned to rank 1",
      "out returned to rank 1",
    ]);
  });

  it("ulysses: sends rows to the rank of each head, and returns results", () => {
    expect(summarizeSchedule(createSchedules("--backend ulysses --ranks 4", 1))).toEqual({
      attends: ["0,1,2,3 · 0,1,2,3"],
      sends: ["ulysses(sp): Q, K, V of rank 1 to rank 0", "ulysses(sp): out returned to ranks 0, 2, 3"],
    });
    expect(summarizeSchedule(createSchedules("--backend ulysses --ranks 4", 3)).attends).toEqual([]);
  });

  it("flex: sends the required rows at once, and returns their gradients", () => {
    expect(summarizeSchedule(createSchedules("--backend flex --ranks 3 --backward", 1))).toEqual({
      attends: ["1 · 1", "1 · 0,2", "∇ 1 · 1", "∇ 1 · 0,2"],
      sends: [
        "flex(sp) stage 1: keys: K, V of rank 1 to ranks 0, 2",
        "flex(sp) stage 1: keys: K, V of rank 1 to ranks 0, 2",
        "flex(sp) stage 1: gradients: dK, dV returned to ranks 0, 2",
      ],
    });
  });

  it("flex with stages: assigns keys and gradients to stages", () => {
    const line = "--backend flex --ranks 2 --stages 3 --heads 1 --backward --placement contiguous";
    const { tiles, batches } = createSchedules(line, 0);
    const stages = tiles.map(({ keys, stage, isBackward }) => `${isBackward ? "∇ " : ""}${keys}: ${stage ?? "own"}`);
    const count = Math.max(...batches.map(({ stage }) => stage!));
    expect(count).toBe(3);
    const remoteStages = (sign: string, degree: number): string[] =>
      Array.from({ length: degree }, (_, i) => `${sign}1: ${i + 1}`);
    const forward = batches.filter(({ isBackward }) => !isBackward).length;
    const backward = batches.filter(({ label }) => label.endsWith("gradients")).length;
    expect(stages.slice(0, forward + 1)).toEqual(["0: own", ...remoteStages("", forward)]);
    const ownBackward = stages.length > forward + 2 + backward ? ["∇ 0: own"] : [];
    expect(stages.slice(forward + 1)).toEqual(["∇ 0: own", ...remoteStages("∇ ", backward), ...ownBackward]);
    const labels = batches.map(({ label, stage }) => `${stage} ${label}`);
    expect(labels.slice(0, forward)).toEqual(
      Array.from({ length: forward }, (_, i) => `${i + 1} flex(sp) stage ${i + 1}: keys`),
    );
    for (const payloadKind of ["keys", "gradients"])
      expect(labels.filter((label) => label.endsWith(payloadKind))).toHaveLength(
        payloadKind === "keys" ? forward + backward : backward,
      );
  });

  it("nested backends: sends along the inner axis what the outer axis has gathered", () => {
    expect(summarizeSchedule(createSchedules("--backend composed --mesh 2x2 --backward", 1))).toEqual({
      attends: ["0,1 · 0,1", "0,1 · 2,3", "∇ 0,1 · 0,1", "∇ 0,1 · 2,3"],
      sends: [
        "ulysses(head): Q, K, V of rank 1 to rank 0",
        "ring(seq): K, V of ranks 0, 1 to rank 3",
        "ulysses(head): out returned to rank 0",
        expect.stringMatching(/^ulysses\(head\): .*Q.* of rank 1 to rank 0$/),
        "ring(seq): K, V of ranks 0, 1 to rank 3",
        "ring(seq): dK, dV of ranks 2, 3 to rank 3",
        expect.stringMatching(/^ulysses\(head\): .*dQ.* returned to rank 0$/),
      ],
    });
    expect(summarizeSchedule(createSchedules("--backend hierarchical --mesh 2x2", 3)).sends).toEqual([
      "ring(node): K, V of rank 3 to rank 1",
      "ring(gpu): K, V of rank 3 to rank 2",
      "ring(gpu): K, V of rank 1 to rank 2",
    ]);
  });

  it("zigzag placement: identifies queries and keys by rank, not by position", () => {
    expect(summarizeSchedule(createSchedules("--backend ring --ranks 2 --causal", 0)).attends).toEqual([
      "0 · 0",
      "0 · 1",
    ]);
  });
});

describe("closedFormTraffic", () => {
  const ranks = [1, 2, 3, 4, 5, 6, 7, 8];
  const unequalOptions = [" --mask documents:7", " --mask window --placement dispatch"];
  const backends = ["ring", "mesh2d", "ulysses", "flex", "composed", "hierarchical"];
  it.each(backends)("equals the planned bytes for %s on 1 to 8 ranks", (backend) => {
    for (const count of ranks) {
      for (const mask of ["", " --causal", ...(count % 5 === 3 ? unequalOptions : [])]) {
        for (const numHeads of [2, 3]) {
          const line = `--backend ${backend} --ranks ${count}${mask} --backward --tokens 61 --dtype bfloat16`;
          const settings = { ...createSettings(`${line} --heads ${numHeads}`) };
          expect([line, closedFormTraffic(settings)]).toEqual([line, predictRun(settings).bytesSent]);
        }
      }
    }
  });
});
