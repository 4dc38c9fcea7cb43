import { type AttentionBackend, type KvBlock, local, masks, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { type Violation, prove, record } from "../src/index.ts";
import { faultyRing, type Site, interceptedRing } from "./fault-injection.ts";

const sizes = { mesh: { sp: 4 }, tokens: 16, numHeads: 2, headDim: 4 };

function findViolations(backend: AttentionBackend, options: object = {}): readonly Violation[] {
  return prove(record({ backend, ...sizes, ...options })).violations;
}

const isFaultSite = ({ rank, source }: Site): boolean => rank === 2 && source === 1;

test("a tile computed twice is found, and both places named", () => {
  const backend = faultyRing({
    forward(site, attend) {
      attend();
      if (isFaultSite(site)) attend();
    },
  });
  const [violation] = findViolations(backend);
  expect(violation).toEqual({
    kind: "duplicate",
    rank: 2,
    message:
      "rank 2, backward, tile 1 (queries 8..11, keys 8..11), lse: rank 2, forward, tile 3 (queries 8..11, keys 4..7) duplicates pairs of rank 2, forward, tile 2 (queries 8..11, keys 4..7)",
  });
});

test("a tile forgotten is found, and its queries and keys named", () => {
  const backend = faultyRing({
    forward(site, attend) {
      if (!isFaultSite(site)) attend();
    },
  });
  const violations = findViolations(backend);
  const missingText = "queries 8..11, keys 4..7: 16 visible pairs are missing";
  expect(violations.map(({ message }) => message)).toEqual([
    `rank 2, backward, tile 1 (queries 8..11, keys 8..11), lse: ${missingText}`,
    `rank 2, out: ${missingText}`,
  ]);
});

test("in backward too: the gradients that miss it are named, at the query's home and at the key's", () => {
  const violations = findViolations(
    faultyRing({
      backward(site, attend) {
        if (!isFaultSite(site)) attend();
      },
    }),
  );
  expect(violations.map(({ message }) => message)).toEqual([
    "rank 1, dk: keys 4..7, queries 8..11: 16 visible pairs are missing",
    "rank 1, dv: keys 4..7, queries 8..11: 16 visible pairs are missing",
    "rank 2, dq: queries 8..11, keys 4..7: 16 visible pairs are missing",
  ]);
});

test("and a gradient added twice", () => {
  const backend = faultyRing({
    backward(site, attend) {
      attend();
      if (isFaultSite(site)) attend();
    },
  });
  const violations = findViolations(backend, { mask: masks.causal() });
  expect(violations.map(({ kind, rank }) => `${kind} ${rank}`)).toEqual(["duplicate 1", "duplicate 1", "duplicate 2"]);
});

test("a tile on stale keys is found where it is computed", () => {
  let staleBlock: KvBlock | undefined;
  const backend = faultyRing({
    forward(site, attend) {
      if (site.rank === 2 && site.source === 2) staleBlock = { k: site.kv.k, v: site.kv.v };
      attend(isFaultSite(site) ? staleBlock : undefined);
    },
  });
  expect(findViolations(backend)[0]).toEqual({
    kind: "data",
    rank: 2,
    message: "rank 2, forward, tile 2 (queries 8..11, keys 4..7): k: expected rows 4..7, received k 8..11",
  });
});

test("rows in part, or in another order, are not taken for the rows", () => {
  const transpose = (x: Tensor): Tensor => x.transpose(2, 3);
  const takeHalf = (x: Tensor): Tensor => x.slice(3, 0, 2);
  for (const [alter, contents] of [
    [transpose, "unknown contents"],
    [takeHalf, "k 0..3 (columns 0 to 1)"],
  ] as const) {
    const backend = faultyRing({ forward: ({ kv: { k, v } }, attend) => attend({ k: alter(k), v: alter(v) }) });
    expect(findViolations(backend)[0]!.message).toContain(`k: expected rows 0..3, received ${contents}`);
  }
});

test("values in the place of keys are found", () => {
  const backend = faultyRing({ forward: ({ kv: { k, v } }, attend) => attend({ k: v, v: k }) });
  expect(findViolations(backend)[0]!.message).toContain(
    "tile 1 (queries 0..3, keys 0..3): k: expected rows 0..3, received v 0..3",
  );
});

test("a message to the wrong rank is a send that never meets its receive", () => {
  const backend = interceptedRing((group, transfers) =>
    group.rank === 1 ? transfers.filter((transfer) => "to" in transfer) : transfers,
  );
  const violations = findViolations(backend, { mesh: { sp: 2 } });
  expect(violations.map(({ kind }) => kind)).toContain("message");
  expect(violations.find(({ kind }) => kind === "message")!.message).toBe(
    "rank 0, forward, ring(sp) #0 sends to rank 1, which never posts the receive",
  );
});

test("a message of another size than its receive is found", () => {
  const backend = interceptedRing((group, transfers) =>
    transfers.map((transfer) => {
      if (group.rank !== 3 || !("to" in transfer)) return transfer;
      return { ...transfer, tensor: transfer.tensor.view({ shape: [transfer.tensor.size / 2], strides: [1] }) };
    }),
  );
  expect(findViolations(backend)[0]).toEqual({
    kind: "message",
    rank: 3,
    message:
      "rank 3, forward, ring(sp) #0 to rank 0 sends 32 bytes of bfloat16, rank 0, forward, ring(sp) #0 expects 64 bytes of bfloat16",
  });
});

test("ranks that all receive before they send wait in a circle, which is named", () => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    name: "polite",
    axes: ["sp"],
    attend(ctx, call, state, kv) {
      const group = ctx.mesh.group("sp");
      using receiveBuffer = ctx.device.empty(kv.k.shape, kv.k.dtype);
      group.sendRecv([{ tensor: receiveBuffer, from: (group.rank + 3) % 4 }], { label: "polite" }).wait();
      group.sendRecv([{ tensor: kv.k, to: (group.rank + 1) % 4 }], { label: "polite" }).wait();
      localBackend.attend(ctx, call, state, kv);
    },
  };
  expect(findViolations(backend)).toEqual([
    {
      kind: "cycle",
      rank: 0,
      message: [
        "rank 0, forward, polite #0 waits for rank 3",
        "rank 3, forward, polite #0 waits for rank 2",
        "rank 2, forward, polite #0 waits for rank 1",
        "rank 1, forward, polite #0 waits for rank 0",
      ].join("; "),
    },
  ]);
});

test("a rank that stays away from a collective is named", () => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    attend(ctx, call, state, kv) {
      if (ctx.rank !== 2) ctx.world.barrier({ label: "meeting" }).wait();
      localBackend.attend(ctx, call, state, kv);
    },
  };
  const violations = findViolations(backend, { mesh: { dp: 3 } });
  expect(violations.map(({ message }) => message)).toEqual([
    "rank 0, forward, meeting #0: rank 2 never joins this collective",
    "rank 1, forward, meeting #0: rank 2 never joins this collective",
  ]);
});

test("different collectives at the same place are found", () => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    attend(ctx, call, state, kv) {
      const world = ctx.world;
      using x = ctx.device.empty([2], "float32");
      (ctx.rank === 1 ? world.barrier() : world.allReduce(x)).wait();
      localBackend.attend(ctx, call, state, kv);
    },
  };
  const [violation] = findViolations(backend, { mesh: { dp: 2 } });
  expect(violation!.message).toMatch(
    /operation mismatch: .* is allReduce, .* is barrier|operation mismatch: .* is barrier, .* is allReduce/,
  );
});

test("compute on memory that a collective still writes is a race", () => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    name: "hasty",
    axes: ["sp"],
    attend(ctx, call, state, { k, v, from }) {
      const group = ctx.mesh.group("sp");
      const peer = 1 - group.rank;
      localBackend.attend(ctx, call, state, { k, v, from });
      using peerKeys = ctx.device.empty(k.shape, k.dtype);
      using peerValues = ctx.device.empty(v.shape, v.dtype);
      const work = group.sendRecv([
        { tensor: k, to: peer },
        { tensor: v, to: peer },
        { tensor: peerKeys, from: peer },
        { tensor: peerValues, from: peer },
      ]);
      localBackend.attend(ctx, call, state, { k: peerKeys, v: peerValues, from: { ...from, sp: peer } });
      work.wait();
    },
  };
  const violations = findViolations(backend, { mesh: { sp: 2 } });
  expect(violations.find(({ kind }) => kind === "race")).toEqual({
    kind: "race",
    rank: 0,
    message:
      "rank 0, forward, after tile 1: attend accesses memory of pending collective #0; call wait() on the collective first",
  });
});

test("gradients of keys exchanged for those of values are found", () => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    attendBackward: (ctx, call, { dq, dk, dv }, kv) =>
      localBackend.attendBackward(ctx, call, { dq, dk: dv, dv: dk }, kv),
  };
  const violations = findViolations(backend, { mesh: { dp: 1 } });
  expect(violations.map(({ message }) => message)).toEqual(["rank 0, dk: holds dv", "rank 0, dv: holds dk"]);
});

test("a few violations are kept, all are counted", () => {
  const backend = faultyRing({ forward: () => {} });
  const { violations, total } = prove(record({ backend, ...sizes }), { limit: 3 });
  expect(violations).toHaveLength(3);
  expect(total).toBeGreaterThan(3);
});
