import { type AttentionBackend, type Kernels, type KvBlock, local, masks, type Tensor } from "@mosaic/core";
import { expect, test } from "vitest";
import { type Violation, prove, record } from "../src/index.ts";
import { faultyRing, type Site, interceptedRing } from "./fault-injection.ts";

const sizes = { mesh: { sp: 4 }, tokens: 16, numHeads: 2, headDim: 4 };

function findViolations(backend: AttentionBackend, options: object = {}): readonly Violation[] {
  return prove(record({ backend, ...sizes, ...options })).violations;
}

const isFaultSite = ({ rank, source }: Site): boolean => rank === 2 && source === 1;

test("prove reports a tile that is computed twice and names both places", () => {
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

test("prove reports a tile that is not computed, with its queries and keys", () => {
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

test("prove reports a tile that backward omits in the gradients of its queries and of its keys", () => {
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

test("prove reports a gradient that is added twice", () => {
  const backend = faultyRing({
    backward(site, attend) {
      attend();
      if (isFaultSite(site)) attend();
    },
  });
  const violations = findViolations(backend, { mask: masks.causal() });
  expect(violations.map(({ kind, rank }) => `${kind} ${rank}`)).toEqual(["duplicate 1", "duplicate 1", "duplicate 2"]);
});

test("prove reports a tile that is computed with stale keys, at that tile", () => {
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

test("prove reports transposed rows and parts of rows as wrong contents", () => {
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

test("prove reports values in the place of keys", () => {
  const backend = faultyRing({ forward: ({ kv: { k, v } }, attend) => attend({ k: v, v: k }) });
  expect(findViolations(backend)[0]!.message).toContain(
    "tile 1 (queries 0..3, keys 0..3): k: expected rows 0..3, received v 0..3",
  );
});

test("prove reports a send whose receive is never posted", () => {
  const backend = interceptedRing((group, transfers) =>
    group.rank === 1 ? transfers.filter((transfer) => "to" in transfer) : transfers,
  );
  const violations = findViolations(backend, { mesh: { sp: 2 } });
  expect(violations.map(({ kind }) => kind)).toContain("message");
  expect(violations.find(({ kind }) => kind === "message")!.message).toBe(
    "rank 0, forward, ring(sp) #0 sends to rank 1, which never posts the receive",
  );
});

test("prove reports a message whose size differs from that of its receive", () => {
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

test("prove reports a cycle of ranks that all receive before they send, with each wait", () => {
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

test("prove names a rank that never joins a collective", () => {
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

test("prove reports different collectives at the same place", () => {
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

test("prove reports a race if a kernel uses memory that a collective still writes", () => {
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

/** Tensors of one shape: memory that a pending collective receives and sends, and memory that it does not use. */
type RaceOperands = Readonly<Record<"received" | "sent" | "other", Tensor>>;

test.each<[string, (kernels: Kernels, operands: RaceOperands) => void, "race" | "no race"]>([
  ["fill of received memory", (kernels, { received }) => kernels.fill(received, 0), "race"],
  ["fill of sent memory", (kernels, { sent }) => kernels.fill(sent, 0), "race"],
  ["copy to received memory", (kernels, { received, other }) => kernels.copy(received, other), "race"],
  ["copy from received memory", (kernels, { received, other }) => kernels.copy(other, received), "race"],
  ["copy from sent memory", (kernels, { sent, other }) => kernels.copy(other, sent), "no race"],
  ["sum in received memory", (kernels, { received, other }) => kernels.binary("add", received, other, other), "race"],
  ["sum of received memory", (kernels, { received, other }) => kernels.binary("add", other, other, received), "race"],
  ["unary with received output", (kernels, { received, other }) => kernels.unary("exp", received, other), "race"],
  ["unary with received input", (kernels, { received, other }) => kernels.unary("exp", other, received), "race"],
  ["unary with sent input", (kernels, { sent, other }) => kernels.unary("exp", other, sent), "no race"],
])("prove: a %s before the wait", (_, run, expected) => {
  const backend: AttentionBackend = {
    ...local(),
    name: "racing",
    axes: ["sp"],
    attend(ctx) {
      const group = ctx.mesh.group("sp");
      const [received, sent, other] = [0, 1, 2].map(() => ctx.device.empty([4], "float32"));
      ctx.device.kernels.fill(sent!, 1);
      ctx.device.kernels.fill(other!, 1);
      const work = group.sendRecv([
        { tensor: sent!, to: 1 - group.rank },
        { tensor: received!, from: 1 - group.rank },
      ]);
      run(ctx.device.kernels, { received: received!, sent: sent!, other: other! });
      work.wait();
      for (const x of [received, sent, other]) x!.dispose();
    },
  };
  const races = findViolations(backend, { mesh: { sp: 2 } }).filter(({ kind }) => kind === "race");
  expect(races.map(({ rank }) => rank)).toEqual(expected === "race" ? [0, 1] : []);
});

test("prove reports gradients of keys and values that are exchanged", () => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    attendBackward: (ctx, call, { dq, dk, dv }, kv) =>
      localBackend.attendBackward(ctx, call, { dq, dk: dv, dv: dk }, kv),
  };
  const violations = findViolations(backend, { mesh: { dp: 1 } });
  expect(violations.map(({ message }) => message)).toEqual(["rank 0, dk: holds dv", "rank 0, dv: holds dk"]);
});

test.each([
  ["q", "received q with heads 0 to 1 of samples 1 to 1 and k with heads 0 to 1 of samples 0 to 0"],
  [
    "dOut",
    "dOut: expected rows 0..15 of heads 0 to 1 of samples 0 to 0, received dOut 0..15 of heads 0 to 1 of samples 1 to 1",
  ],
  ["lse", "lse or delta belongs to different queries"],
  ["delta", "lse or delta belongs to different queries"],
] as const)("prove reports a backward with %s of another sequence", (name, message) => {
  const localBackend = local();
  const backend: AttentionBackend = {
    ...localBackend,
    attendBackward(ctx, call, { dq, dk, dv }, { k, v, from }) {
      for (const b of [0, 1]) {
        const sampleOf = (x: Tensor, sample = b): Tensor => x.slice(0, sample, sample + 1);
        const { q, dOut, lse, delta } = call;
        const rows = { q: sampleOf(q), dOut: sampleOf(dOut), lse: sampleOf(lse), delta: sampleOf(delta) };
        const sampleCall = { ...call, ...rows, [name]: sampleOf(call[name], 1 - b) };
        const grads = { dq: sampleOf(dq), dk: sampleOf(dk), dv: sampleOf(dv) };
        localBackend.attendBackward(ctx, sampleCall, grads, { k: sampleOf(k), v: sampleOf(v), from });
      }
    },
  };
  const [violation] = findViolations(backend, { mesh: { dp: 1 }, batch: 2 });
  expect(violation!.message).toContain(message);
});

test("prove keeps as many violations as the limit allows and counts all", () => {
  const backend = faultyRing({ forward: () => {} });
  const { violations, total } = prove(record({ backend, ...sizes }), { limit: 3 });
  expect(violations).toHaveLength(3);
  expect(total).toBeGreaterThan(3);
});
