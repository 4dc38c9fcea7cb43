import { ring } from "@mosaic/backend-ring";
import { perturbContext } from "@mosaic/conformance";
import {
  attention,
  type AttentionBackend,
  AutogradError,
  checkpoint,
  type Context,
  CrossAxisAttention,
  fromArray,
  Module,
  MultiAxisAttention,
  randn,
  reduceGradients,
  shard,
  type Tensor,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { Dropout, RMSNorm, RotaryEmbedding, SwiGLU } from "../src/index.ts";
import { generateNumbers } from "./reference/numbers.ts";
import { onOneRank, onMesh } from "./reference/world.ts";

const [length, embedDim] = [24, 8];

/** Number of calls of the forward and of the backward of an attention backend. */
interface CallCounts {
  forward: number;
  backward: number;
}

/** Creates a ring backend that counts its calls. */
function createCountingBackend(calls: CallCounts): AttentionBackend {
  const inner = ring();
  return {
    ...inner,
    name: "counted",
    attend(...call) {
      calls.forward++;
      inner.attend(...call);
    },
    attendBackward(...call) {
      calls.backward++;
      inner.attendBackward(...call);
    },
  };
}

type Mode = "none" | "recompute" | "keepAttention" | "module" | "nested";

/** A block of a language model, with a checkpoint mode for its activations. */
class Block extends Module {
  readonly mode: Mode;
  readonly norm: RMSNorm;
  readonly attn: MultiAxisAttention;
  readonly cross: CrossAxisAttention;
  readonly dropout: Dropout;
  readonly mlp: SwiGLU;

  constructor(
    ctx: Context,
    mode: Mode,
    { backend, dtype }: { backend: AttentionBackend; dtype: "float32" | "bfloat16" },
  ) {
    super();
    this.mode = mode;
    const placement = "zigzag";
    const useCheckpoint = mode === "module" ? "keepAttention" : mode === "nested";
    const options = { embedDim, numHeads: 2, numKvHeads: 1, causal: true, placement, backend, dtype } as const;
    const positions = new RotaryEmbedding(embedDim / 2);
    this.norm = this.addChild("norm", new RMSNorm(ctx, embedDim, { dtype }));
    const selfOptions = { ...options, positions, attentionAxis: 1, sequenceLength: length, useCheckpoint } as const;
    this.attn = this.addChild("attn", new MultiAxisAttention(ctx, selfOptions));
    const lengths = { sequenceLength: length, kvSequenceLength: length };
    const cross = { ...options, ...lengths, qAxis: 1, kvAxis: 1, useCheckpoint } as const;
    this.cross = this.addChild("cross", new CrossAxisAttention(ctx, cross));
    this.dropout = this.addChild("drop", new Dropout(ctx, 0.1, { placement, sequenceLength: length }));
    this.mlp = this.addChild("mlp", new SwiGLU(ctx, { embedDim, hiddenDim: 12, dtype }));
  }

  forward(x: Tensor): Tensor {
    const body = (x: Tensor): Tensor => {
      const y = x.add(this.dropout.forward(this.attn.forward(this.norm.forward(x))));
      const z = y.add(this.cross.forward(y, x));
      return z.add(this.mlp.forward(z));
    };
    if (this.mode === "none" || this.mode === "module") return body(x);
    return checkpoint({ keepAttention: this.mode !== "recompute" }, body, x);
  }
}

interface RunResult {
  /** The output, and the gradients of the input and of every parameter. */
  readonly values: readonly (readonly number[])[];
  readonly calls: CallCounts;
  /** Bytes sent in the forward, and in the backward. */
  readonly bytes: readonly [number, number];
}

/** Returns the bytes that all enqueued operations have sent so far. */
async function readBytesSent(ctx: Context): Promise<number> {
  ctx.world.barrier().wait();
  await ctx.device.stream.synchronize();
  return ctx.world.traffic().bytesSent;
}

async function runStep(ctx: Context, mode: Mode, dtype: "float32" | "bfloat16" = "float32"): Promise<RunResult> {
  const calls = { forward: 0, backward: 0 };
  using model = new Block(ctx, mode, { backend: createCountingBackend(calls), dtype });
  using fullInput = fromArray(ctx, generateNumbers(2 * length * embedDim, 1), [2, length, embedDim], { dtype });
  const x = shard(ctx, fullInput, 1, { placement: "zigzag" }).detach();
  x.requiresGrad = true;
  using seed = shard(ctx, fullInput, 1, { placement: "zigzag" });
  const start = await readBytesSent(ctx);
  using out = model.forward(x);
  const bytesSentInForward = await readBytesSent(ctx);
  out.backward(seed);
  const bytes = [bytesSentInForward - start, (await readBytesSent(ctx)) - bytesSentInForward] as const;
  reduceGradients(ctx, model);
  const tensors = [out, x.grad!, ...model.parameters().map(({ grad }) => grad!)];
  const values = await Promise.all(tensors.map(async (each) => Array.from(await each.read())));
  return { values, calls, bytes };
}

describe.each([1, 2, 4])("on %d ranks", (sp) => {
  test.each(["float32", "bfloat16"] as const)(
    "gradients are bitwise equal with and without checkpoints, %s",
    async (dtype) => {
      const expected = await onMesh({ sp }, (ctx) => runStep(ctx, "none", dtype));
      for (const mode of ["recompute", "keepAttention", "module", "nested"] as const) {
        const actual = await onMesh({ sp }, (ctx) => runStep(ctx, mode, dtype));
        expect(
          actual.map(({ values }) => values),
          mode,
        ).toEqual(expected.map(({ values }) => values));
      }
    },
  );

  test("keepAttention neither computes nor communicates attention a second time", async () => {
    const [withoutCheckpoint, recompute, ...keepingRuns] = await Promise.all(
      (["none", "recompute", "keepAttention", "module", "nested"] as const).map((mode) =>
        onMesh({ sp }, (ctx) => runStep(ctx, mode)),
      ),
    );
    for (const rank of withoutCheckpoint!.keys()) {
      const [forward, backward] = withoutCheckpoint![rank]!.bytes;
      expect(withoutCheckpoint![rank]!.calls).toEqual({ forward: 2, backward: 2 });
      expect(forward > 0).toBe(sp > 1);
      // Communication that is not saved is repeated in the backward.
      expect(recompute![rank]!.calls).toEqual({ forward: 4, backward: 2 });
      expect(recompute![rank]!.bytes).toEqual([forward, backward + forward]);
      for (const keepingRun of keepingRuns) {
        expect(keepingRun[rank]!.calls).toEqual({ forward: 2, backward: 2 });
        expect(keepingRun[rank]!.bytes).toEqual([forward, backward]);
      }
    }
  });
});

test("keepAttention keeps only the inputs, (out, lse) and the result, and frees all of them", () =>
  onOneRank(async (ctx) => {
    const [batch, heads, rows, dim] = [2, 4, 64, 8];
    const shape = [batch, heads, rows, dim];
    const size = 4 * batch * heads * rows * dim;
    const allocatedBefore = ctx.device.memory().allocated;
    const x = randn(ctx, shape);
    x.requiresGrad = true;
    const countHeldBytes = () => ctx.device.memory().allocated - allocatedBefore;
    const body = (x: Tensor) => attention(ctx, x.tanh(), x, x).tanh();
    const y = checkpoint({ keepAttention: true }, body, x);
    expect(countHeldBytes()).toBe(3 * size + size / dim);
    const loss = y.sum();
    loss.backward();
    x.grad!.dispose();
    for (const tensor of [loss, y]) tensor.dispose();
    expect(countHeldBytes()).toBe(size);
    // Without a backward, saved tensors are released with the result; also if the body throws.
    checkpoint({ keepAttention: true }, body, x).dispose();
    expect(countHeldBytes()).toBe(size);
    const failingBody = (x: Tensor): Tensor => {
      body(x);
      throw new Error("body");
    };
    expect(() => checkpoint({ keepAttention: true }, failingBody, x)).toThrow("body");
    expect(countHeldBytes()).toBe(size);
    x.requiresGrad = false;
    checkpoint({ keepAttention: true }, body, x).dispose();
    expect(countHeldBytes()).toBe(size);
    x.dispose();
    await ctx.device.stream.synchronize();
    expect(countHeldBytes()).toBe(0);
  }));

test("keepAttention gives the same gradient for a body that uses lse", () =>
  onOneRank(async (ctx) => {
    const computeGradient = async (keepAttention: boolean) => {
      using x = fromArray(ctx, generateNumbers(24, 3), [1, 1, 6, 4]);
      x.requiresGrad = true;
      const body = (x: Tensor) => {
        const { out, lse } = attention(ctx, x, x, x, { returnLse: true });
        return out.mul(lse.reshape([1, 1, 6, 1]));
      };
      using loss = checkpoint({ keepAttention }, body, x).sum();
      loss.backward();
      return Array.from(await x.grad!.read());
    };
    expect(await computeGradient(true)).toEqual(await computeGradient(false));
  }));

test("a body that differs the second time, a mutated result and invalid options are rejected", () =>
  onOneRank((ctx) => {
    using x = randn(ctx, [1, 1, 4, 2]);
    x.requiresGrad = true;
    const backward = (body: (x: Tensor) => Tensor): void => {
      using loss = checkpoint({ keepAttention: true }, body, x).sum();
      loss.backward();
    };
    let calls = 0;
    const attendTwice = (x: Tensor) => {
      const out = attention(ctx, x, x, x);
      return calls++ === 0 ? out : attention(ctx, out, x, x);
    };
    expect(() => backward(attendTwice)).toThrow(/expected at most 1 attention calls, as in the original forward/);
    calls = 0;
    const attendOtherShape = (x: Tensor) => {
      const q = calls++ === 0 ? x : x.slice(2, 0, 2);
      return attention(ctx, q, x, x).sum();
    };
    expect(() => backward(attendOtherShape)).toThrow(
      /to return shape \[1,1,4,2\].*received an attention call that returns shape \[1,1,2,2\]/s,
    );
    const mutateInBody = (x: Tensor) => {
      const out = attention(ctx, x, x, x);
      ctx.device.kernels.scalar("mul", out, out, 2);
      return out.tanh();
    };
    expect(() => backward(mutateInBody)).toThrow(AutogradError);
    expect(() => checkpoint({ keep: true } as never, (x: Tensor) => x.tanh(), x)).toThrow(
      /options among keepAttention/,
    );
    expect(() => checkpoint({ keepAttention: true }, undefined as never, x)).toThrow(/body: expected a function/);
    const options = { embedDim: 2, numHeads: 1, attentionAxis: 1, useCheckpoint: "keep" as never };
    expect(() => new MultiAxisAttention(ctx, options)).toThrow(/useCheckpoint: expected a boolean, or "keepAttention"/);
  }));

test("a checkpoint on a perturbed context drops the same weights again", () =>
  onMesh({ sp: 2 }, async (ctx) => {
    const computeGradient = async (isCheckpointed: boolean): Promise<Float32Array> => {
      const perturbedContext = perturbContext(ctx, { completion: "soon", seed: 1 });
      using attn = new MultiAxisAttention(perturbedContext, {
        ...{ embedDim, numHeads: 2, attentionAxis: 1, backend: ring(), dropout: 0.5 },
        useCheckpoint: isCheckpointed,
      });
      using x = shard(ctx, fromArray(ctx, generateNumbers(length * embedDim, 1), [1, length, embedDim]), 1);
      x.requiresGrad = true;
      using loss = attn.forward(x).square().sum();
      loss.backward();
      return x.grad!.read();
    };
    const [expected, actual] = [await computeGradient(false), await computeGradient(true)];
    expect(actual).toEqual(expected);
  }));
