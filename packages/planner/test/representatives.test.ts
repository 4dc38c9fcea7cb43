import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import { type AttentionBackend, type Coordinate, masks, OptionError, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { spreadRanks } from "../src/symmetry/translations.ts";
import {
  type AttentionRecord,
  count,
  predict,
  profiles,
  prove,
  record,
  recordRepresentatives,
  type RecordOptions,
  simulate,
} from "../src/index.ts";
import { proveRepresentatives } from "../src/prove/prove.ts";
import { gatheringBackend } from "./gathering.ts";
import { placements } from "./shapes.ts";

const sizes = { numHeads: 8, numKvHeads: 4, headDim: 8 } as const;

/** Some masks place all ranks in one class, some in a few, some each rank in its own. */
const someMasks = [masks.full(), masks.causal(), masks.slidingWindow(9), masks.documents([32, 32, 64], "causal")];
const arrangements = someMasks.flatMap((mask) => placements.map((placement) => ({ mask, placement })));

interface Case {
  readonly name: string;
  readonly mesh: Coordinate;
  readonly backend: () => AttentionBackend;
}

const cases: readonly Case[] = [
  { name: "ring", mesh: { sp: 16 }, backend: () => ring() },
  { name: "mesh2d, fused", mesh: { sp: 16 }, backend: () => mesh2d({ shape: [4, 4], schedule: "fused" }) },
  { name: "mesh2d, overlapped", mesh: { sp: 16 }, backend: () => mesh2d({ shape: [8, 2], schedule: "overlapped" }) },
  { name: "ulysses", mesh: { dp: 4, sp: 4 }, backend: () => ulysses() },
  {
    name: "ring in ring",
    mesh: { node: 4, gpu: 4 },
    backend: () => ring({ axis: "node", inner: ring({ axis: "gpu" }) }),
  },
  {
    name: "mesh2d in ring",
    mesh: { node: 4, gpu: 4 },
    backend: () => ring({ axis: "node", inner: mesh2d({ axis: "gpu", shape: [2, 2], schedule: "overlapped" }) }),
  },
  {
    name: "ring in ulysses",
    mesh: { seq: 4, head: 4 },
    backend: () => ulysses({ axis: "head", inner: ring({ axis: "seq" }) }),
  },
];

/** Proves a record by comparing all ranks of its mesh with their representatives. */
function proveByRepresentatives(attentionRecord: AttentionRecord): ReturnType<typeof prove> {
  return proveRepresentatives(
    attentionRecord,
    10,
    spreadRanks(attentionRecord.classes.ranks, attentionRecord.classes.ranks),
  );
}

/** Expects traffic and memory of a representative to be those of every rank of its class in the record of all ranks. */
function expectEqualTraffic(representativeRecord: AttentionRecord, fullRecord: AttentionRecord): void {
  const [representativeTraffic, fullTraffic] = [count(representativeRecord).ranks, count(fullRecord).ranks];
  const indexByRank = new Map(representativeRecord.ranks.map(({ tape }, i) => [tape.rank, i]));
  for (const [rank, rankTraffic] of fullTraffic.entries()) {
    const i = indexByRank.get(representativeRecord.classes.representative(rank))!;
    expect(representativeTraffic[i]).toEqual(rankTraffic);
    expect(representativeRecord.ranks[i]!.peakBytes).toBe(fullRecord.ranks[rank]!.peakBytes);
  }
}

test("every rank behaves like its representative in collectives, which exchange what the representatives do", () => {
  const mesh = { dp: 2, sp: 4 };
  for (const mask of [masks.full(), masks.causal()]) {
    const options = { backend: gatheringBackend(), mesh, tokens: 20, numHeads: 1, headDim: 4, mask };
    const representativeRecord = recordRepresentatives(options);
    expect(representativeRecord.ranks.length).toBeLessThan(8);
    const { violations, replayed } = proveByRepresentatives(representativeRecord);
    expect(violations).toEqual([]);
    expect(replayed).toBe(8);
    expectEqualTraffic(representativeRecord, record(options));
  }
});

test("a rank that gathers other tensors than its representative is reported", () => {
  const backend = gatheringBackend();
  const faultyBackend: AttentionBackend = {
    ...backend,
    attend: (ctx, call, state, kv) =>
      backend.attend(ctx, call, state, ctx.rank === 5 ? { ...kv, k: kv.v, v: kv.k } : kv),
  };
  const options = { backend: faultyBackend, mesh: { sp: 8 }, tokens: 40, numHeads: 1, headDim: 4 };
  const { violations } = proveByRepresentatives(recordRepresentatives(options));
  expect(violations.map(({ kind, rank }) => [kind, rank])).toEqual([
    ["data", 5],
    ["missing", 5],
    ["class", 5],
  ]);
  expect(violations[0]!.message).toContain("keys 0..39): k: expected rows 0..39, received k 0..4, ");
  expect(violations[2]!.message).toBe(
    "rank 5, forward, allGather #0: the rows sent do not match those of rank 0, the representative of its equivalence class",
  );
});

for (const { name, mesh, backend } of cases) {
  for (const arrangement of arrangements) {
    const title = `${arrangement.mask.name}, ${arrangement.placement.name}`;
    test(`${name}: ${title}: traffic, violations and times of representatives equal those of all ranks`, () => {
      const call: RecordOptions = { ...sizes, ...arrangement, mesh, tokens: 128, backend: backend() };
      const fullRecord = record(call);
      const proofRecord = recordRepresentatives(call);
      expectEqualTraffic(proofRecord, fullRecord);
      const [fullProof, representativeProof] = [prove(fullRecord), proveByRepresentatives(proofRecord)];
      expect(representativeProof.total).toBe(fullProof.total);
      expect(representativeProof.peakBytes).toEqual(fullProof.peakBytes);
      const profile = { ...profiles["h100-ib400"], ranksPerNode: 4 };
      const timingRecord = recordRepresentatives(call, { ranksPerNode: 4 });
      expectEqualTraffic(timingRecord, fullRecord);
      const [fullSimulation, representativeSimulation] = [
        simulate(fullRecord, profile),
        simulate(timingRecord, profile),
      ];
      expect(representativeSimulation.seconds / fullSimulation.seconds).toBeCloseTo(1, 9);
      expect(representativeSimulation.forwardSeconds / fullSimulation.forwardSeconds).toBeCloseTo(1, 9);
      expect(representativeSimulation.exposedCommunicationSeconds).toBeCloseTo(
        fullSimulation.exposedCommunicationSeconds,
        12,
      );
    });
  }
}

test.each(cases)("$name: representatives have the times of all ranks if links between nodes are not duplex", (each) => {
  const call: RecordOptions = { ...sizes, mesh: each.mesh, tokens: 65_536, backend: each.backend() };
  const { links, ...machine } = profiles["h100-ib400"];
  const interNodeLink = { ...links["inter-node"], duplex: false };
  const profile = { ...machine, ranksPerNode: 4, links: { ...links, "inter-node": interNodeLink } };
  const [fullSimulation, representativeSimulation] = [
    record(call),
    recordRepresentatives(call, { ranksPerNode: 4 }),
  ].map((run) => simulate(run, profile));
  expect(representativeSimulation!.seconds / fullSimulation!.seconds).toBeCloseTo(1, 9);
});

test("ranks with equal work form few equivalence classes, and ranks with unequal work form one each", () => {
  const call = { ...sizes, mesh: { sp: 16 }, tokens: 128, backend: ring() };
  const countClasses = (options: Partial<RecordOptions>): number =>
    recordRepresentatives({ ...call, ...options }).ranks.length;
  expect(countClasses({})).toBe(1);
  expect(countClasses({ mask: masks.causal(), placement: zigzag() })).toBe(1);
  expect(countClasses({ mask: masks.causal() })).toBe(16);
  expect(countClasses({ tokens: 127 })).toBe(16);
});

test("representatives have the same traffic and time as all of 1 024 ranks", () => {
  const call: RecordOptions = {
    ...sizes,
    mesh: { sp: 1024 },
    tokens: 65_536,
    backend: mesh2d({ shape: [32, 32], schedule: "fused" }),
    mask: masks.causal(),
    placement: zigzag(),
  };
  const profile = profiles["h100-ib400"];
  const fullRecord = record(call);
  const representativeRecord = recordRepresentatives(call, { ranksPerNode: profile.ranksPerNode });
  expect(representativeRecord.ranks.length).toBe(8);
  expectEqualTraffic(representativeRecord, fullRecord);
  const [fullSimulation, representativeSimulation] = [fullRecord, representativeRecord].map((run) =>
    simulate(run, profile, { keep: () => false }),
  );
  expect(representativeSimulation!.seconds / fullSimulation!.seconds).toBeCloseTo(1, 9);
}, 240_000);

test("predict and prove use representatives for more than 1 024 ranks", () => {
  const call = { ...sizes, tokens: 65_536, backend: mesh2d({ shape: [64, 32], schedule: "fused" }) };
  const { record: attentionRecord, seconds } = predict({ ...call, mesh: { sp: 2048 } }, profiles["h100-ib400"]);
  expect(attentionRecord.ranks.length).toBe(8);
  expect(seconds).toBeGreaterThan(0);
  const proof = prove(attentionRecord);
  expect(proof.violations).toEqual([]);
  expect(proof.replayed).toBeLessThan(64);
  expect(proof.peakBytes).toHaveLength(2048);
}, 240_000);

test("recordRepresentatives rejects more than 1 024 ranks with unequal work and names the remedy", () => {
  const call = { ...sizes, mesh: { sp: 2048 }, backend: ring() };
  const catchRefusal = (options: Partial<RecordOptions>): unknown => {
    try {
      recordRepresentatives({ ...call, tokens: 65_536, ...options });
    } catch (error) {
      return error;
    }
    return undefined;
  };
  for (const [options, remedy] of [
    [{ mask: masks.causal() }, "use a mask and a placement that give all ranks the same work"],
    [{ tokens: 65_537 }, "make the number of tokens a multiple of 4096"],
  ] as const) {
    const error = catchRefusal(options);
    expect(error).toBeInstanceOf(OptionError);
    expect((error as Error).message).toContain("expected at most 1024 equivalence classes of ranks");
    expect((error as Error).message).toContain("received 2048 ranks in 2048 equivalence classes");
    expect((error as Error).message).toContain(remedy);
  }
  expect(() => record({ ...call, tokens: 65_536, mask: masks.full() })).toThrow(
    /at most 1024 ranks.*2048 ranks.*recordRepresentatives/s,
  );
});
