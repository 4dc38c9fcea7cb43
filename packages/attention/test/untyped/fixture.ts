import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ring } from "@mosaic/backend-ring";
import * as core from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { HierarchicalMetaAttention, type Meta } from "@mosaic/meta-attention";
import { createModel } from "@mosaic/models";
import { saveCheckpoint } from "@mosaic/nn";
import { type Profile, profiles, record, simulate } from "@mosaic/planner";

/** Bytes of a device: what a wrong number requests is rejected before it fills the machine. */
const memoryLimit = 64 * 2 ** 20;

const layers = { num_hidden_layers: 2, num_attention_heads: 2 };
/** config.json of a language model. */
export const languageModel = { model_type: "llama", vocab_size: 8, hidden_size: 8, intermediate_size: 8, ...layers };

/** What is made once, and no call changes. */
export interface SharedFixture extends AsyncDisposable {
  /** With a checkpoint, saved.safetensors, of a model of one Linear of 4 features, and a language model, model. */
  readonly directory: string;
  readonly meta: Meta;
  readonly record: ReturnType<typeof record>;
  readonly simulation: ReturnType<typeof simulate>;
  readonly profile: Profile;
  /** Of another device. */
  readonly foreignTensor: core.Tensor;
  readonly closedContext: core.Context;
}

/** All that calls are made of: one rank, with what it may be given, right and wrong. */
export interface Fixture extends SharedFixture {
  readonly ctx: core.Context;
  readonly disposedTensor: core.Tensor;
  /** A tensor of a shape, with values that name classes, too. */
  tensor(...shape: readonly number[]): core.Tensor;
}

async function openContext(): Promise<core.Context> {
  const device = cpu({ threads: 1, memoryLimit });
  return core.init({ device, rank: 0, worldSize: 1, backends: [ring()] });
}

export async function openShared(): Promise<SharedFixture> {
  const [ctx, closedContext] = [await openContext(), await openContext()];
  await closedContext.close();
  const directory = await mkdtemp(join(tmpdir(), "mosaic-untyped-"));
  await saveCheckpoint(ctx, join(directory, "saved.safetensors"), { model: new core.Linear(ctx, 4, 4) });
  await createModel(ctx, languageModel).save(join(directory, "model"));
  const router = new HierarchicalMetaAttention(ctx, { embedDim: 8, numHeads: 2, summaryDim: 8, chunksPerRank: 3 });
  const { meta } = await router.forward(core.randn(ctx, [1, 6, 8]));
  const attentionRecord = record({ mesh: { sp: 2 }, backend: ring(), numHeads: 2, headDim: 4, tokens: 8 });
  const profile = profiles["cpu-local"];
  return {
    ...{
      directory,
      meta,
      record: attentionRecord,
      profile,
      simulation: simulate(attentionRecord, profile),
      closedContext,
    },
    foreignTensor: core.zeros(ctx, [2, 4]),
    async [Symbol.asyncDispose]() {
      await ctx.close();
      await rm(directory, { recursive: true });
    },
  };
}

/** One rank of its own: a call may close it, or fail its device. */
export async function openFixture(sharedFixture: SharedFixture): Promise<Fixture> {
  const ctx = await openContext();
  const disposedTensor = core.zeros(ctx, [2, 4]);
  disposedTensor.dispose();
  return {
    ...sharedFixture,
    ...{ ctx, disposedTensor },
    tensor: (...shape) =>
      core.fromArray(
        ctx,
        Array.from({ length: core.numel(shape) }, (_, i) => i % 3),
        shape,
      ),
    [Symbol.asyncDispose]: () => ctx.close(),
  };
}
