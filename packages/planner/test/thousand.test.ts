import { flex } from "@mosaic/backend-flex";
import { mesh2d } from "@mosaic/backend-mesh2d";
import { masks, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import { count, prove, record } from "../src/index.ts";

// `npm run bench -- --filter proof` times every strategy at 1 024 ranks. This test has one that takes little time.

test("mesh2d on 1 024 ranks in a grid of 32 × 32 is proved correct", () => {
  const sizes = { mesh: { sp: 1024 }, tokens: 65_536, numHeads: 4, numKvHeads: 2, headDim: 64 };
  const attentionRecord = record({
    backend: mesh2d({ shape: [32, 32], schedule: "fused" }),
    mask: masks.causal(),
    placement: zigzag(),
    ...sizes,
  });
  expect(prove(attentionRecord).violations).toEqual([]);
  const { ranks } = count(attentionRecord);
  const sent = ranks.reduce((sum, { forward, backward }) => sum + forward.sent.bytes + backward.sent.bytes, 0);
  const received = ranks.reduce(
    (sum, { forward, backward }) => sum + forward.received.bytes + backward.received.bytes,
    0,
  );
  expect(sent).toBe(received);
  expect(sent).toBeGreaterThan(0);
}, 240_000);

test("flex on 1 024 ranks with packed documents and zigzag placement is proved correct in less than 30 s", () => {
  const lengths = Array.from({ length: 200 }, (_, i) => 100 + ((i * 997) % 455));
  lengths.push(65_536 - lengths.reduce((sum, length) => sum + length, 0));
  const startTime = performance.now();
  const attentionRecord = record({
    backend: flex(),
    mesh: { sp: 1024 },
    tokens: 65_536,
    numHeads: 4,
    numKvHeads: 2,
    headDim: 64,
    mask: masks.documents(lengths, "causal"),
    placement: zigzag(),
  });
  expect(prove(attentionRecord).violations).toEqual([]);
  expect((performance.now() - startTime) / 1000).toBeLessThan(30);
}, 240_000);
