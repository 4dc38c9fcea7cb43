import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { ulysses } from "@mosaic/backend-ulysses";
import {
  type AttentionBackend,
  type Context,
  local,
  masks,
  type ProcessGroup,
  type Span,
  createTile,
} from "@mosaic/core";
import { expect, test } from "vitest";
import { type Violation, prove, record } from "../src/index.ts";

/** The tile that a kernel is called for. */
interface TileSite {
  readonly rank: number;
  readonly isBackward: boolean;
  readonly q: readonly Span[];
  readonly k: readonly Span[];
}

/** A backend that calls the kernel a given number of times for each tile. */
function faultyInner(countRuns: (site: TileSite) => number): AttentionBackend {
  const localBackend = local();
  return {
    name: "meddled",
    axes: [],
    attend(ctx, call, state, kv) {
      const { q, k } = createTile(call, kv);
      for (let i = countRuns({ rank: ctx.rank, isBackward: false, q, k }); i > 0; i--)
        localBackend.attend(ctx, call, state, kv);
    },
    attendBackward(ctx, call, grads, kv) {
      const { q, k } = createTile(call, kv);
      for (let i = countRuns({ rank: ctx.rank, isBackward: true, q, k }); i > 0; i--)
        localBackend.attendBackward(ctx, call, grads, kv);
    },
  };
}

const sizes = { tokens: 24, numHeads: 2, headDim: 4 };
const gridOptions = { shape: [2, 3], schedule: "overlapped" } as const;

function findViolations(backend: AttentionBackend, mesh: Readonly<Record<string, number>>): readonly Violation[] {
  return prove(record({ backend, mesh, ...sizes })).violations;
}

const startsAt = ([span]: readonly Span[], position: number): boolean => span!.start === position;

test("prove reports a block of an overlapped tile that is computed twice at the rank that owns its queries", () => {
  // Rank 1 of 2 × 3 works on the queries of ranks 0 to 2 and the keys of 1 and 4.
  const inner = faultyInner(({ rank, isBackward: backward, q, k }) =>
    !backward && rank === 1 && startsAt(q, 8) && startsAt(k, 16) ? 2 : 1,
  );
  const violations = findViolations(mesh2d({ ...gridOptions, inner }), { sp: 6 });
  expect(violations[0]!.kind).toBe("duplicate");
  expect(violations.some(({ message }) => message.startsWith("rank 2, out: rank 1, forward, tile"))).toBe(true);
  expect(violations[0]!.message).toContain("(queries 8..11, keys 16..19) duplicates pairs of rank 1, forward, tile");
});

test("prove reports a block that backward omits in dq, dk and dv at the ranks that own its rows", () => {
  const inner = faultyInner(({ rank, isBackward: backward, q, k }) =>
    backward && rank === 1 && startsAt(q, 8) && startsAt(k, 16) ? 0 : 1,
  );
  expect(findViolations(mesh2d({ ...gridOptions, inner }), { sp: 6 }).map(({ message }) => message)).toEqual([
    "rank 2, dq: queries 8..11, keys 16..19: 16 visible pairs are missing",
    "rank 4, dk: keys 16..19, queries 8..11: 16 visible pairs are missing",
    "rank 4, dv: keys 16..19, queries 8..11: 16 visible pairs are missing",
  ]);
});

test("prove reports all gathered keys as missing if a fused tile is not computed", () => {
  const inner = faultyInner(({ rank, isBackward: backward }) => (rank === 0 && !backward ? 0 : 1));
  const violations = findViolations(mesh2d({ shape: [2, 3], schedule: "fused", inner }), { sp: 6 });
  expect(violations.find(({ message }) => message.startsWith("rank 0, out"))!.message).toBe(
    "rank 0, out: queries 0..3, keys 0..3 and 12..15: 32 visible pairs are missing",
  );
});

test("prove names the rank and the tile of a duplicate in a ring inside ulysses", () => {
  const inner = faultyInner(({ rank, isBackward: backward, k }) => (backward && rank === 3 && startsAt(k, 0) ? 2 : 1));
  const backend = ulysses({ axis: "gpu", inner: ring({ axis: "node", inner }) });
  const violations = findViolations(backend, { node: 3, gpu: 2 });
  expect(violations[0]!.kind).toBe("duplicate");
  expect(violations[0]!.message).toContain(
    "rank 3, backward, tile 3 (queries 8..15, keys 0..7) duplicates pairs of rank 3",
  );
  // Head 1 of rows 8 to 15 is on ranks 2 and 3, and head 1 of keys 0 to 7 on ranks 0 and 1.
  expect(new Set(violations.map(({ rank }) => rank))).toEqual(new Set([0, 1, 2, 3]));
});

test("prove reports a tile that one rank of a ring inside a ring omits at the rank that owns its queries", () => {
  const inner = faultyInner(({ rank, isBackward: backward, k }) => (!backward && rank === 4 && startsAt(k, 4) ? 0 : 1));
  const backend = ring({ axis: "node", inner: ring({ axis: "gpu", inner }) });
  const violations = prove(record({ backend, mesh: { node: 3, gpu: 2 }, ...sizes, mask: masks.causal() })).violations;
  expect(violations.map(({ message }) => message)).toContain(
    "rank 4, out: queries 16..19, keys 4..7: 16 visible pairs are missing",
  );
});

/** Wraps a backend so that `tap` may replace its groups. */
function interceptGroups(
  backend: AttentionBackend,
  tap: (group: ProcessGroup, axis: string, ctx: Context) => ProcessGroup,
): AttentionBackend {
  const wrapContext = (ctx: Context): Context => {
    const { coordinate, axes, shape, world } = ctx.mesh;
    const mesh = { coordinate, axes, shape, world, group: (axis: string) => tap(ctx.mesh.group(axis), axis, ctx) };
    return Object.create(ctx, {
      mesh: { value: mesh },
      device: { value: ctx.device },
      rank: { value: ctx.rank },
      assertOpen: { value: () => undefined },
    }) as Context;
  };
  return {
    ...backend,
    attend: (ctx, call, state, kv) => backend.attend(wrapContext(ctx), call, state, kv),
    attendBackward: (ctx, call, grads, kv) => backend.attendBackward(wrapContext(ctx), call, grads, kv),
  };
}

/** Returns the group with another sendRecv. */
function replaceSendRecv(group: ProcessGroup, sendRecv: ProcessGroup["sendRecv"]): ProcessGroup {
  const { rank, size, ranks, device, name } = group;
  const values = Object.entries({ sendRecv, rank, size, ranks, device, name });
  return Object.create(group, Object.fromEntries(values.map(([key, value]) => [key, { value }]))) as ProcessGroup;
}

test("prove reports a send that the other rank of an overlapped tile never receives", () => {
  const backend = interceptGroups(mesh2d(gridOptions), (group, _, ctx) => {
    if (ctx.rank !== 5) return group;
    return replaceSendRecv(group, (transfers, options) =>
      group.sendRecv(
        transfers.filter((transfer) => "to" in transfer || transfer.from !== 4),
        options,
      ),
    );
  });
  const violations = findViolations(backend, { sp: 6 });
  expect(violations.map(({ kind }) => kind)).toContain("message");
  expect(violations.find(({ kind }) => kind === "message")!.message).toMatch(
    /^rank 4, forward, mesh2d\(sp\) #\d+ sends to rank 5, which never posts the receive$/,
  );
});

test("prove reports a cycle of ranks that all receive before they send in a nested exchange", () => {
  // Each batch is cut in two, and all ranks receive before they send.
  const backend = interceptGroups(ring({ axis: "node", inner: ulysses({ axis: "gpu" }) }), (group, axis) => {
    if (axis !== "gpu") return group;
    return replaceSendRecv(group, (transfers, options) => {
      const sends = transfers.filter((transfer) => "to" in transfer);
      const receives = transfers.filter((transfer) => "from" in transfer);
      group.sendRecv(receives, options).wait();
      return group.sendRecv(sends, options);
    });
  });
  const [violation] = findViolations(backend, { node: 2, gpu: 2 });
  expect(violation!.kind).toBe("cycle");
  expect(violation!.message).toBe(
    "rank 0, forward, ulysses(gpu) #1 waits for rank 1; rank 1, forward, ulysses(gpu) #1 waits for rank 0",
  );
});
