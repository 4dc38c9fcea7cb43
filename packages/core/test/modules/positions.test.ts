import { expect, test } from "vitest";
import { ones, zeros } from "../../src/creation.ts";
import type { PositionEncoding } from "../../src/modules/attention-options.ts";
import { CrossAxisAttention } from "../../src/modules/cross-axis-attention.ts";
import { MultiAxisAttention } from "../../src/modules/multi-axis-attention.ts";
import type { Span } from "../../src/placement/span.ts";
import { scale } from "../../src/ops/pointwise.ts";
import { sum } from "../../src/ops/reduction.ts";
import { allGatherBackend, referenceWorld } from "../reference/index.ts";

/** Creates a position encoding that returns zeros and records shapes and positions. */
function createRecorder(): PositionEncoding & {
  readonly encodedShapes: [shape: readonly number[], spans: readonly Span[]][];
} {
  const encodedShapes: [readonly number[], readonly Span[]][] = [];
  return {
    encodedShapes,
    encode(x, spans) {
      encodedShapes.push([x.shape, spans]);
      return scale(x, 0);
    },
  };
}

const embed = { embedDim: 8, numHeads: 4, numKvHeads: 2, backend: "gather", placement: "striped" } as const;

test("queries and keys are encoded with the global positions of their rows", async () => {
  const contexts = await referenceWorld(2, { backends: [allGatherBackend()] });
  await Promise.all(
    contexts.map(async (ctx) => {
      const positions = createRecorder();
      const attn = new MultiAxisAttention(ctx, { ...embed, attentionAxis: 1, sequenceLength: 5, positions });
      const x = zeros(ctx, [3, ctx.rank === 0 ? 3 : 2, 8]);
      await attn.forward(x).read();
      const spans = [{ start: ctx.rank, length: ctx.rank === 0 ? 3 : 2, step: 2 }];
      expect(positions.encodedShapes).toEqual([
        [[3, 4, x.shape[1], 2], spans],
        [[3, 2, x.shape[1], 2], spans],
      ]);
    }),
  );
});

test("CrossAxisAttention encodes queries and keys with the positions of their own placements", async () => {
  const contexts = await referenceWorld(2, { backends: [allGatherBackend()] });
  await Promise.all(
    contexts.map(async (ctx) => {
      const positions = createRecorder();
      const options = { ...embed, qAxis: 1, kvAxis: 1, kvPlacement: "contiguous", positions } as const;
      const attn = new CrossAxisAttention(ctx, options);
      await attn.forward(zeros(ctx, [1, 2, 8]), zeros(ctx, [1, 3, 8])).read();
      expect(positions.encodedShapes.map(([, spans]) => spans)).toEqual([
        [{ start: ctx.rank, length: 2, step: 2 }],
        [{ start: 3 * ctx.rank, length: 3, step: 1 }],
      ]);
    }),
  );
});

test("a position encoding may return its input unchanged", async () => {
  const ctx = (await referenceWorld(1))[0]!;
  const options = { embedDim: 8, numHeads: 2, attentionAxis: 1 } as const;
  const plainAttention = new MultiAxisAttention(ctx, options);
  const attn = new MultiAxisAttention(ctx, { ...options, positions: { encode: (x) => x } });
  attn.loadStateDict(plainAttention.stateDict());
  using x = ones(ctx, [1, 3, 8]);
  using out = attn.forward(x);
  using expected = plainAttention.forward(x);
  expect(await out.read()).toEqual(await expected.read());
  using loss = sum(out);
  loss.backward();
  expect(attn.parameters().every(({ grad }) => grad !== null)).toBe(true);
});
