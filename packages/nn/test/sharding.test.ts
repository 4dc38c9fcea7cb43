import {
  type Context,
  fromArray,
  Linear,
  MultiAxisAttention,
  type Placement,
  type PlacementName,
  shard,
  ShapeError,
  type Tensor,
  unshard,
} from "@mosaic/core";
import { expect, test } from "vitest";
import {
  crossEntropy,
  DataLoader,
  Dropout,
  Embedding,
  linearCrossEntropy,
  MLP,
  mseLoss,
  RotaryEmbedding,
  tokenArrays,
} from "../src/index.ts";
import { onMesh } from "./reference/world.ts";

const [batch, length, vocabulary, embedDim] = [2, 16, 11, 8];
const ids = Array.from({ length: batch * length }, (_, i) => (7 * i) % vocabulary);

function shardTokens(ctx: Context, placement: PlacementName | Placement): Tensor {
  return shard(ctx, fromArray(ctx, ids, [batch, length]), 1, { placement });
}

/** Runs a call on every rank of 2 and of 4 ranks, and asserts that each throws a ShapeError with this message. */
async function expectMismatch(call: (ctx: Context) => unknown, message: RegExp): Promise<void> {
  for (const sp of [2, 4]) {
    await onMesh({ sp }, (ctx) => {
      expect(() => call(ctx)).toThrow(message);
      expect(() => call(ctx)).toThrow(ShapeError);
    });
  }
}

const zigzagLogits = (ctx: Context): Tensor =>
  new Linear(ctx, embedDim, vocabulary).forward(
    new Embedding(ctx, vocabulary, embedDim).forward(shardTokens(ctx, "zigzag")),
  );

test("attention rejects embeddings of tokens that were sharded by another placement", () =>
  expectMismatch((ctx) => {
    const positions = new RotaryEmbedding(embedDim / 2);
    const options = { embedDim, numHeads: 2, attentionAxis: 1, causal: true, backend: "ring", positions } as const;
    const attention = new MultiAxisAttention(ctx, options);
    return attention.forward(new Embedding(ctx, vocabulary, embedDim).forward(shardTokens(ctx, "zigzag")));
  }, /MultiAxisAttention, rank \d: expected 16 rows .* contiguous: .*, received 16 rows .* zigzag: /));

test("losses reject targets that were sharded by another placement", async () => {
  const where = (name: string) => new RegExp(`^${name}: expected .* zigzag: .*, received .* contiguous: `);
  await expectMismatch(
    (ctx) => crossEntropy(ctx, zigzagLogits(ctx), shardTokens(ctx, "contiguous")),
    where("crossEntropy: targets"),
  );
  await expectMismatch((ctx) => {
    const head = new Linear(ctx, embedDim, vocabulary);
    const hidden = new Embedding(ctx, vocabulary, embedDim).forward(shardTokens(ctx, "zigzag"));
    return linearCrossEntropy(ctx, hidden, head, shardTokens(ctx, "contiguous"));
  }, where("linearCrossEntropy: targets"));
  await expectMismatch(
    (ctx) => mseLoss(ctx, shardTokens(ctx, "zigzag"), shardTokens(ctx, "contiguous")),
    where("(sub|mseLoss.*)"),
  );
});

test("dropout rejects another placement, in a layer and in MLP", async () => {
  const message = /^Dropout, rank \d: expected .* contiguous: .*, received .* zigzag: /;
  const embed = (ctx: Context) => new Embedding(ctx, vocabulary, embedDim).forward(shardTokens(ctx, "zigzag"));
  await expectMismatch((ctx) => new Dropout(ctx, 0.5).forward(embed(ctx)), message);
  await expectMismatch((ctx) => new MLP(ctx, { embedDim, dropout: 0.5 }).forward(embed(ctx)), message);
  await onMesh({ sp: 2 }, (ctx) => {
    expect(new Dropout(ctx, 0.5).forward(embed(ctx), { placement: "zigzag" }).sharding).toHaveLength(1);
    expect(new Dropout(ctx, 0.5).eval().forward(embed(ctx)).sharding).toHaveLength(1);
  });
});

test("a batch of a data loader is sharded by its placement, and labels match its tokens", () =>
  onMesh({ dp: 2, sp: 2 }, async (ctx) => {
    const source = tokenArrays([Array.from({ length: 200 }, (_, i) => i % vocabulary)]);
    const options = { rowLength: length, batchSize: 2, placement: "zigzag" } as const;
    const { tokens, labels, placement } = new DataLoader(ctx, source, options).next();
    const logits = new Linear(ctx, embedDim, vocabulary).forward(
      new Embedding(ctx, vocabulary, embedDim).forward(tokens),
    );
    expect(Number.isFinite(await crossEntropy(ctx, logits, labels).item())).toBe(true);
    expect(() => unshard(ctx, logits, 1)).toThrow(/unshard, rank \d: expected .* contiguous/);
    expect(unshard(ctx, logits, 1, { placement }).shape).toEqual([1, length, vocabulary]);
  }));
