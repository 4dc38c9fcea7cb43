import { masks, type RowRange } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record } from "../src/index.ts";
import { type CastSite, tappedFlex } from "./fault-injection.ts";

const sizes = { mesh: { sp: 4 }, tokens: 64, numHeads: 2, headDim: 4, mask: masks.full() };

type Tap = Parameters<typeof tappedFlex>[1];

function recordOf(tap: Tap) {
  return record({ backend: tappedFlex({ stages: 2 }, tap), ...sizes });
}

function messagesOf(tap: Tap): string[] {
  return prove(recordOf(tap)).violations.map(({ kind, message }) => `${kind}: ${message}`);
}

const untouched: Tap = (_, plan, sender, receiver) => plan.ranges(sender, receiver);

test("casts are recorded, counted and proved", () => {
  const run = recordOf(untouched);
  expect(prove(run).violations).toEqual([]);
  const ops = new Set<string>();
  const event = run.ranks[1]!.tape.read();
  while (event.next()) ops.add(event.op);
  expect(ops).toContain("groupCast");
  expect(ops).toContain("groupReduce");
  expect(ops).not.toContain("sendRecv");
  // Everybody's 16 rows of k and v, from three others, in bfloat16, of 2 heads of 4 numbers; gradients in float32.
  const { forward, backward } = count(run).ranks[1]!;
  expect(forward.received.bytes).toBe(3 * 16 * 2 * 2 * 4 * 2);
  expect(backward.sent.bytes).toBe(3 * 16 * 2 * 2 * 4 * (2 + 4));
});

/** Of the first cast: what rank 2 sends rank 3. */
const isPlanted = ({ op, call }: CastSite, sender: number, receiver: number): boolean =>
  op === "groupCast" && call === 0 && sender === 2 && receiver === 3;

test("a range that its sender omits", () => {
  const faults = messagesOf((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    return isPlanted(site, sender, receiver) && site.rank === 2 ? ranges.slice(1) : ranges;
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "message: rank 3, forward, flex(sp) #0 receives from rank 2, which never sends it",
    ]
  `);
});

test("a range that all ranks omit", () => {
  const run = (): string[] =>
    messagesOf((site, plan, sender, receiver) =>
      isPlanted(site, sender, receiver) ? [] : plan.ranges(sender, receiver),
    );
  expect(run).toThrowErrorMatchingInlineSnapshot(
    `[ShapeError: flex(sp), rank 3: groupCast (world): expected out[0] of 8 rows, by the plan, received [1,2,24,4]]`,
  );
});

test("a range that is sent twice: in a second stage again, in place of another", () => {
  const faults = messagesOf((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    if (site.op !== "groupCast" || sender !== 1 || receiver !== 3) return ranges;
    return ranges.map(({ length }): RowRange => ({ start: 0, length }));
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 3, forward, tile 3 (queries 48..63, keys 0..15 and 24..31): k should hold rows 0..15 and 24..31, but holds k 0..23",
      "missing: rank 3, backward, tile 1 (queries 48..63, keys 48..63), lse: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
      "missing: rank 3, out: queries 48..63, keys 0..15 and 16..31: 384 visible pairs are missing",
    ]
  `);
});

test("a range that goes to one more rank, which does not require it", () => {
  const faults = messagesOf((site, plan, sender, receiver) => {
    const extra = site.op === "groupCast" && site.call === 0 && site.rank === 0 && sender === 0 && receiver === 2;
    return extra ? [{ start: 0, length: 16 }] : plan.ranges(sender, receiver);
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "message: rank 0, forward, flex(sp) #0 to rank 2 sends 256 bytes of bfloat16, rank 2, forward, flex(sp) #0 expects 128 bytes of bfloat16",
      "message: rank 0, forward, flex(sp) #0 to rank 2 sends 256 bytes of bfloat16, rank 2, forward, flex(sp) #0 expects 128 bytes of bfloat16",
      "data: rank 2, forward, tile 2 (queries 32..47, keys 0..7 and 16..31): k should hold rows 0..7 and 16..31, but holds k 16..31",
      "missing: rank 2, backward, tile 1 (queries 32..47, keys 32..47), lse: queries 32..47, keys 0..15 and 16..31: 384 visible pairs are missing",
      "missing: rank 2, out: queries 32..47, keys 0..15 and 16..31: 384 visible pairs are missing",
    ]
  `);
});

test("rows that return to another owner", () => {
  // Some of what rank 3 received of rank 1 goes to rank 2, and the other way round.
  const faults = messagesOf((site, plan, sender, receiver) => {
    if (site.op !== "groupReduce" || receiver !== 3) return plan.ranges(sender, receiver);
    return plan.ranges(([0, 2, 1, 3] as const)[sender]!, receiver);
  });
  expect(faults).toMatchInlineSnapshot(`
    [
      "data: rank 1, dk: part of its content is unknown",
      "data: rank 1, dv: part of its content is unknown",
      "data: rank 2, dk: part of its content is unknown",
      "data: rank 2, dv: part of its content is unknown",
    ]
  `);
});
