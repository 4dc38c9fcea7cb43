import { masks, type RowRange } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record } from "../src/index.ts";
import { type CastSite, tappedFlex } from "./fault-injection.ts";

const sizes = { mesh: { sp: 4 }, tokens: 64, numHeads: 2, headDim: 4, mask: masks.full() };

type Tap = Parameters<typeof tappedFlex>[1];

/** Records a flex on one host or on several, where rows are sent to another host once. */
function recordTappedFlex(tap: Tap, hosts?: readonly number[]) {
  return record({ backend: tappedFlex({ stages: 2, hierarchical: hosts !== undefined }, tap), ...sizes, hosts });
}

function listViolations(tap: Tap, hosts?: readonly number[]): string[] {
  return prove(recordTappedFlex(tap, hosts)).violations.map(({ kind, message }) => `${kind}: ${message}`);
}

const unmodifiedRanges: Tap = (_, plan, sender, receiver) => plan.ranges(sender, receiver);

test("casts are recorded, counted and proved correct", () => {
  const attentionRecord = recordTappedFlex(unmodifiedRanges);
  expect(prove(attentionRecord).violations).toEqual([]);
  const ops = new Set<string>();
  const event = attentionRecord.ranks[1]!.tape.read();
  while (event.next()) ops.add(event.op);
  expect(ops).toContain("groupCast");
  expect(ops).toContain("groupReduce");
  expect(ops).not.toContain("sendRecv");
  // Each rank's 16 rows of k and v, from three other ranks, in bfloat16, of 2 heads of size 4; gradients in float32.
  const { forward, backward } = count(attentionRecord).ranks[1]!;
  expect(forward.received.bytes).toBe(3 * 16 * 2 * 2 * 4 * 2);
  expect(backward.sent.bytes).toBe(3 * 16 * 2 * 2 * 4 * (2 + 4));
});

/** Whether this is what rank 2 sends to rank 3 in the first cast. */
const isFaultSite = ({ op, call }: CastSite, sender: number, receiver: number): boolean =>
  op === "groupCast" && call === 0 && sender === 2 && receiver === 3;

test("prove reports a range that its sender omits", () => {
  const faults = listViolations((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    return isFaultSite(site, sender, receiver) && site.rank === 2 ? ranges.slice(1) : ranges;
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "message: rank 3, forward, flex(sp) stage 1: keys #0 receives from rank 2, which never posts the send",
    ]
  `);
});

test("record throws if all ranks omit a range", () => {
  const proveOmittedRange = (): string[] =>
    listViolations((site, plan, sender, receiver) =>
      isFaultSite(site, sender, receiver) ? [] : plan.ranges(sender, receiver),
    );
  expect(proveOmittedRange).toThrowErrorMatchingInlineSnapshot(
    `[ShapeError: flex(sp) stage 1: keys, rank 3: groupCast (world): expected out[0] with 8 rows, as in the plan, received [24,8]]`,
  );
});

test("prove reports a range that is sent again in a second stage in place of another", () => {
  const faults = listViolations((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    if (site.op !== "groupCast" || sender !== 1 || receiver !== 3) return ranges;
    return ranges.map(({ length }): RowRange => ({ start: 0, length }));
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 3, forward, tile 3 (queries 48..63, keys 0..15 and 24..31): k: expected rows 0..15 and 24..31, received k 0..23",
      "missing: rank 3, backward, tile 1 (queries 48..63, keys 48..63), lse: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
      "data: rank 3, backward, tile 3 (queries 48..63, keys 0..15 and 24..31): k: expected rows 0..15 and 24..31, received k 0..23",
      "missing: rank 0, dk: keys 0..7, queries 48..63: 128 visible pairs are missing",
      "missing: rank 0, dv: keys 0..7, queries 48..63: 128 visible pairs are missing",
      "missing: rank 1, dk: keys 24..31, queries 48..63: 128 visible pairs are missing",
      "missing: rank 1, dv: keys 24..31, queries 48..63: 128 visible pairs are missing",
      "missing: rank 3, out: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
      "missing: rank 3, dq: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
    ]
  `);
});

test("prove reports a range that is also sent to a rank that does not require it", () => {
  const faults = listViolations((site, plan, sender, receiver) => {
    const isExtraTransfer =
      site.op === "groupCast" && site.call === 0 && site.rank === 0 && sender === 0 && receiver === 2;
    return isExtraTransfer ? [{ start: 0, length: 16 }] : plan.ranges(sender, receiver);
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "message: rank 0, forward, flex(sp) stage 1: keys #0 to rank 2 sends 256 bytes of bfloat16, rank 2, forward, flex(sp) stage 1: keys #0 expects 128 bytes of bfloat16",
      "message: rank 0, forward, flex(sp) stage 1: keys #0 to rank 2 sends 256 bytes of bfloat16, rank 2, forward, flex(sp) stage 1: keys #0 expects 128 bytes of bfloat16",
      "data: rank 2, forward, tile 2 (queries 32..47, keys 0..7 and 16..31): k: expected rows 0..7 and 16..31, received k 16..31",
      "missing: rank 2, backward, tile 1 (queries 32..47, keys 32..47), lse: queries 32..47, keys 0..15 and 16..31: 384 visible pairs are missing",
      "missing: rank 2, out: queries 32..47, keys 0..15 and 16..31: 384 visible pairs are missing",
    ]
  `);
});

test("prove reports gradient rows that are returned to the wrong owner", () => {
  // Some rows that rank 3 received from rank 1 return to rank 2, and vice versa.
  const faults = listViolations((site, plan, sender, receiver) => {
    if (site.op !== "groupReduce" || receiver !== 3) return plan.ranges(sender, receiver);
    return plan.ranges(([0, 2, 1, 3] as const)[sender]!, receiver);
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 1, dk: the tensor is not fully initialized",
      "data: rank 1, dv: the tensor is not fully initialized",
      "data: rank 2, dk: the tensor is not fully initialized",
      "data: rank 2, dv: the tensor is not fully initialized",
    ]
  `);
});

const twoHosts = [0, 0, 1, 1];

/** Whether these are rows of rank 0 that rank 3 receives in any cast, forwarded by its neighbor, rank 2. */
const isForwarded = ({ op }: CastSite, sender: number, receiver: number): boolean =>
  op === "groupCast" && sender === 0 && receiver === 3;

test("over hosts: casts are proved correct", () => {
  expect(listViolations(unmodifiedRanges, twoHosts)).toEqual([]);
});

test("over hosts: prove reports rows that a rank does not forward", () => {
  const faults = listViolations(
    (site, plan, sender, receiver) =>
      isForwarded(site, sender, receiver) && site.rank === 2 ? [] : plan.ranges(sender, receiver),
    twoHosts,
  );
  expect(faults).toMatchInlineSnapshot(`
    [
      "message: rank 2, backward, flex(sp) stage 1: keys #4 to rank 3 sends 96 bytes of bfloat16, rank 3, forward, flex(sp) stage 2: keys #3 expects 256 bytes of bfloat16",
      "message: mismatched collectives: rank 2, backward, flex(sp) stage 1: keys #4 sends to rank 3 in a groupCast; rank 3, forward, flex(sp) stage 2: keys #3 receives it in a different groupCast",
      "message: rank 2, backward, flex(sp) stage 1: keys #4 to rank 3 sends 96 bytes of bfloat16, rank 3, forward, flex(sp) stage 2: keys #3 expects 256 bytes of bfloat16",
      "message: mismatched collectives: rank 2, backward, flex(sp) stage 1: keys #4 sends to rank 3 in a groupCast; rank 3, forward, flex(sp) stage 2: keys #3 receives it in a different groupCast",
      "data: rank 3, forward, tile 3 (queries 48..63, keys 0..15 and 24..31): k: expected rows 0..15 and 24..31, received k 24..31",
      "message: rank 2, backward, flex(sp) stage 2: keys #6 to rank 3 sends 160 bytes of bfloat16, rank 3, backward, flex(sp) stage 1: keys #4 expects 96 bytes of bfloat16",
      "message: mismatched collectives: rank 2, backward, flex(sp) stage 2: keys #6 sends to rank 3 in a groupCast; rank 3, backward, flex(sp) stage 1: keys #4 receives it in a different groupCast",
      "message: rank 2, backward, flex(sp) stage 2: keys #6 to rank 3 sends 160 bytes of bfloat16, rank 3, backward, flex(sp) stage 1: keys #4 expects 96 bytes of bfloat16",
      "message: mismatched collectives: rank 2, backward, flex(sp) stage 2: keys #6 sends to rank 3 in a groupCast; rank 3, backward, flex(sp) stage 1: keys #4 receives it in a different groupCast",
      "missing: rank 3, backward, tile 1 (queries 48..63, keys 48..63), lse: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
    ]
  `);
});

test("over hosts: prove reports rows that are sent twice in place of others", () => {
  // Rank 1's rows are sent to rank 3 directly, in two stages; the second stage sends the first rows again.
  const faults = listViolations((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    if (site.op !== "groupCast" || sender !== 1 || receiver !== 3) return ranges;
    return ranges.map(({ length }): RowRange => ({ start: 0, length }));
  }, twoHosts);
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 3, forward, tile 3 (queries 48..63, keys 0..15 and 24..31): k: expected rows 0..15 and 24..31, received k 0..23",
      "missing: rank 3, backward, tile 1 (queries 48..63, keys 48..63), lse: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
      "missing: rank 3, out: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
    ]
  `);
});

test("over hosts: prove reports gradient rows that are returned to the wrong owner", () => {
  // Some rows that rank 3 received from rank 1, on the other host, return to rank 2, and vice versa.
  const faults = listViolations((site, plan, sender, receiver) => {
    if (site.op !== "groupReduce" || receiver !== 3) return plan.ranges(sender, receiver);
    return plan.ranges(([0, 2, 1, 3] as const)[sender]!, receiver);
  }, twoHosts);
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 1, dk: the tensor is not fully initialized",
      "data: rank 1, dv: the tensor is not fully initialized",
      "data: rank 2, dk: the tensor is not fully initialized",
      "data: rank 2, dv: the tensor is not fully initialized",
    ]
  `);
});

// More than a few messages and regions are kept in memory order and searched.
const manyRankSizes = { mesh: { sp: 24 }, tokens: 384, numHeads: 2, headDim: 4, mask: masks.full() };

function listManyRankViolations(tap: Tap): string[] {
  const proof = prove(record({ backend: tappedFlex({ stages: 2 }, tap), ...manyRankSizes }), { limit: 3 });
  return proof.violations.map(({ kind, message }) => `${kind}: ${message}`);
}

test("among many ranks: casts are proved correct", () => {
  expect(listManyRankViolations(unmodifiedRanges)).toEqual([]);
});

test("among many ranks: prove reports a range that its sender omits", () => {
  const faults = listManyRankViolations((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    const isOmitted =
      site.op === "groupCast" && site.call === 0 && site.rank === 17 && sender === 17 && receiver === 20;
    return isOmitted ? [] : ranges;
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "message: rank 20, forward, flex(sp) stage 1: keys #0 receives from rank 17, which never posts the send",
    ]
  `);
});

test("among many ranks: prove reports a range that is sent twice in place of another", () => {
  // Half of rank 15's rows are sent to rank 3 in each stage.
  const faults = listManyRankViolations((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    if (site.op !== "groupCast" || sender !== 15 || receiver !== 3) return ranges;
    return ranges.map(({ length }): RowRange => ({ start: 0, length }));
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 3, forward, tile 3 (queries 48..63, keys 64..239 and 248..255): k: expected rows 64..239 and 248..255, received k 64..247",
      "missing: rank 3, backward, tile 1 (queries 48..63, keys 48..63), lse: queries 48..63, keys 64..79 and 80..95 and 96..111 and 112..127 and 128..143 and 144..159 and 160..175 and 176..191 and 192..207 and 208..223 and 224..239 and 240..255: 2944 visible pairs are missing",
      "missing: rank 3, out: queries 48..63, keys 64..79 and 80..95 and 96..111 and 112..127 and 128..143 and 144..159 and 160..175 and 176..191 and 192..207 and 208..223 and 224..239 and 240..255: 2944 visible pairs are missing",
    ]
  `);
});

test("among many ranks: prove reports gradient rows that are returned to the wrong owner", () => {
  const swappedRanks = new Map([
    [4, 17],
    [17, 4],
  ]);
  const faults = listManyRankViolations((site, plan, sender, receiver) =>
    plan.ranges(site.op === "groupReduce" && receiver === 20 ? (swappedRanks.get(sender) ?? sender) : sender, receiver),
  );
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 4, dk: the tensor is not fully initialized",
      "data: rank 4, dv: the tensor is not fully initialized",
      "data: rank 5, dk: the tensor is not fully initialized",
    ]
  `);
});
