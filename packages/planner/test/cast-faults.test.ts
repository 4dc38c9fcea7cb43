import { masks, type RowRange } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record } from "../src/index.ts";
import { type CastSite, tappedFlex } from "./faulty.ts";

const sizes = { mesh: { sp: 4 }, tokens: 64, numHeads: 2, headDim: 4, mask: masks.full() };

type Tap = Parameters<typeof tappedFlex>[1];

function recordOf(tap: Tap) {
  return record({ backend: tappedFlex({ stages: 2 }, tap), ...sizes });
}

function messagesOf(tap: Tap): string[] {
  return prove(recordOf(tap)).faults.map(({ kind, message }) => `${kind}: ${message}`);
}

const untouched: Tap = (_, plan, sender, receiver) => plan.ranges(sender, receiver);

test("casts are recorded, counted and proved", () => {
  const run = recordOf(untouched);
  expect(prove(run).faults).toEqual([]);
  const ops = new Set<string>();
  const event = run.ranks[1]!.tape.read();
  while (event.next()) ops.add(event.op);
  expect(ops).toContain("groupCast");
  expect(ops).toContain("groupReduce");
  expect(ops).not.toContain("sendRecv");
  // Everybody's 16 rows of k and v, from three others, in float32, of 2 heads of 4 numbers.
  const { forward, backward } = count(run).ranks[1]!;
  expect(forward.received.bytes).toBe(3 * 16 * 2 * 2 * 4 * 4);
  expect(backward.sent.bytes).toBe(2 * 3 * 16 * 2 * 2 * 4 * 4);
});

/** Of the first cast: what rank 0 sends rank 2. */
const isPlanted = ({ op, call }: CastSite, sender: number, receiver: number): boolean =>
  op === "groupCast" && call === 0 && sender === 0 && receiver === 3;

test("a range that its sender omits", () => {
  const faults = messagesOf((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    return isPlanted(site, sender, receiver) && site.rank === 0 ? ranges.slice(1) : ranges;
  });
  expect(faults).toMatchInlineSnapshot();
});

test("a range that all ranks omit", () => {
  const run = (): string[] =>
    messagesOf((site, plan, sender, receiver) =>
      isPlanted(site, sender, receiver) ? [] : plan.ranges(sender, receiver),
    );
  expect(run).toThrowErrorMatchingInlineSnapshot();
});

test("a range that is sent twice: in a second stage again, in place of another", () => {
  const faults = messagesOf((site, plan, sender, receiver) => {
    const ranges = plan.ranges(sender, receiver);
    if (site.op !== "groupCast" || sender !== 0 || receiver !== 3) return ranges;
    return ranges.map(({ length }): RowRange => ({ start: 0, length }));
  });
  expect(faults).toMatchInlineSnapshot();
});

test("a range that goes to one more rank, which does not require it", () => {
  const faults = messagesOf((site, plan, sender, receiver) => {
    const extra = site.op === "groupCast" && site.call === 0 && site.rank === 0 && sender === 0 && receiver === 2;
    return extra ? [{ start: 0, length: 16 }] : plan.ranges(sender, receiver);
  });
  expect(faults).toMatchInlineSnapshot();
});

test("rows that return to another owner", () => {
  // What rank 3 received of rank 0 goes to rank 1, and the other way round.
  const faults = messagesOf((site, plan, sender, receiver) => {
    if (site.op !== "groupReduce" || receiver !== 3) return plan.ranges(sender, receiver);
    return plan.ranges(([1, 0, 2, 3] as const)[sender]!, receiver);
  });
  expect(faults).toMatchInlineSnapshot();
});
