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

/** Memory limit of a device in bytes, so that excessive requests are rejected before they exhaust the machine. */
const memoryLimit = 64 * 2 ** 20;

const layers = { num_hidden_layers: 2, num_attention_heads: 2 };
/** The config.json of a language model. */
export const languageModel = { model_type: "llama", vocab_size: 8, hidden_size: 8, intermediate_size: 8, ...layers };

/** Objects that are created once and that no call modifies. */
export interface SharedFixture extends AsyncDisposable {
  /**
   * Contains `saved.safetensors`, a checkpoint of a model with one Linear of 4 features, and `model`, a language model.
   */
  readonly directory: string;
  readonly meta: Meta;
  readonly record: ReturnType<typeof record>;
  readonly simulation: ReturnType<typeof simulate>;
  readonly profile: Profile;
  /** A tensor on another device. */
  readonly foreignTensor: core.Tensor;
  readonly closedContext: core.Context;
}

/** The objects from which calls are made: one rank, and valid and invalid arguments for it. */
export interface Fixture extends SharedFixture {
  readonly ctx: core.Context;
  readonly disposedTensor: core.Tensor;
  /** Creates a tensor of a shape. Its values are also valid class indices. */
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

/** Creates a separate rank, because a call may close it or cause an error of its device. */
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
