import { type AttentionBackend, randn, scope } from "@mosaic/core";
import { KvCache } from "@mosaic/nn";
import { count, profiles, record, simulate } from "@mosaic/planner";
import { expect, test } from "vitest";

// Runs the code of the cache on symbolic ranks. Only backends are recorded, so a backend appends its keys to a cache.

const sizes = { numHeads: 8, numKvHeads: 2, headDim: 64, batch: 2 } as const;

/** Creates a backend that appends its keys to a cache with `length` tokens per sequence, and attends to the cache. */
function createDecodeBackend(length: number): AttentionBackend {
  return {
    name: "decode",
    axes: [],
    attend(ctx, { q }, _state, { k, v }) {
      using cache = new KvCache(ctx, { numKvHeads: 2, headDim: 64, maxTokens: 2 * length + 4096, dtype: "bfloat16" });
      const sequences = [cache.createSequence(), cache.createSequence()];
      const layer = cache.layer(0, sequences);
      scope(() => {
        const prompt = randn(ctx, [2, 2, length, 64], { dtype: "bfloat16" });
        layer.append(prompt, prompt);
        layer.append(k, v);
        layer.attend(q);
      });
      for (const sequence of sequences) sequence.dispose();
    },
    attendBackward() {},
  };
}

test.each([1, 2, 4, 32])(
  "each rank of a recorded step sends (ranks − 1) · B · T · H · (D + 1) · 4 bytes of states: %d ranks",
  (sp) => {
    for (const tokens of [1, 5]) {
      const recordedRun = record({ ...sizes, backend: createDecodeBackend(4096), mesh: { sp }, tokens });
      for (const { forward } of count(recordedRun).ranks) {
        const bytes = (sp - 1) * 2 * tokens * 8 * (64 + 1) * 4;
        expect([forward.sent.bytes, forward.received.bytes]).toEqual([bytes, bytes]);
        expect(forward.sent.messages).toBe(sp - 1);
      }
    }
  },
);

test("each of four ranks reads its share of the keys, in about a quarter of the predicted time", () => {
  const [oneRankSeconds, fourRankSeconds] = [1, 4].map((sp) => {
    const { ranks } = simulate(
      record({ ...sizes, backend: createDecodeBackend(2 ** 17), mesh: { sp }, tokens: 1 }),
      profiles["h100-ib400"],
    );
    const attendEvents = ranks.map(({ events }) => events.filter(({ name }) => name === "attend"));
    for (const rankAttendEvents of attendEvents) expect(rankAttendEvents.length).toBe(1);
    return Math.max(...attendEvents.map(([event]) => event!.end - event!.start));
  });
  expect(fourRankSeconds! / oneRankSeconds!).toBeGreaterThan(0.2);
  expect(fourRankSeconds! / oneRankSeconds!).toBeLessThan(0.35);
});
