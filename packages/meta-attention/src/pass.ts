import {
  checkTensor,
  type Context,
  DTypeError,
  formatShape,
  noGrad,
  OptionError,
  ShapeError,
  type Tensor,
} from "@mosaic/core";
import { attentionMass, RoutedAttention } from "./attend/routed-attention.ts";
import { bytesMoved } from "./bytes.ts";
import {
  computeCertificate,
  extendChosenChunks,
  type GatheredStatistics,
  keyStatistics,
  keyStatisticsWidth,
} from "./certificate.ts";
import { sliceOwnRows } from "./chunks.ts";
import {
  computeOutput,
  createResult,
  type MetaResult,
  type ProjectedQkv,
  type Projections,
  projectQkv,
  type RouterOutput,
} from "./meta.ts";
import { recordRouting, type RoutingCall } from "./record-call.ts";
import { chooseTopK, type ChosenChunks, type ChunkVisibility } from "./route/choose.ts";
import type { MetaAttention, Routing } from "./route/meta-attention.ts";
import { gatherAndRoute, type GatheredRouting, combineWeights } from "./route/router.ts";
import type { ResolvedOptions, RoutedAttentionConfig } from "./options.ts";
import { type ChunkSummaryEncoder, type PendingSummaries, startSummaries } from "./encoder.ts";
import { ResourceStack, type RunWithGradMode } from "./tensor-views.ts";

/** The parts of the module, and the chunks of the sequence. */
interface PassParts extends Projections {
  readonly ctx: Context;
  readonly summary: ChunkSummaryEncoder;
  readonly metaAttention: MetaAttention;
}

/** One forward. Disposing it releases everything that is not returned. */
export class ForwardPass implements Disposable {
  readonly #parts: PassParts;
  readonly #config: RoutedAttentionConfig;
  readonly #x: Tensor;
  readonly #gradMode: RunWithGradMode;
  readonly #resources = new ResourceStack();
  #attention: RoutedAttention | undefined;

  constructor(parts: PassParts, x: Tensor, gradMode: RunWithGradMode) {
    const { ctx, settings, chunks } = parts;
    const { axis, combine, gate, scale, numHeads, numKvHeads, headDim } = settings;
    const group = ctx.mesh.group(axis);
    this.#parts = parts;
    this.#x = x;
    this.#gradMode = gradMode;
    this.#config = { ctx, group, chunks, combine, gate, scale, numHeads, numKvHeads, headDim, label: `meta(${axis})` };
  }

  async run(call: RoutingCall): Promise<MetaResult> {
    const { summary, chunks, settings } = this.#parts;
    recordRouting(this.#config, this.#x, settings, call);
    // With "exact", the output is not a smooth function of the scores. The router's gradient is limited to its
    // parameters, so that the gradient of the input is that of attention to the chunks that were attended to.
    const routerInput = settings.combine === "exact" ? this.#track(this.#x.detach()) : this.#x;
    const pendingSummaries = this.#track(startSummaries(summary, routerInput, chunks));
    const pendingWeights = call.dryRun ? null : pendingSummaries.weights.map((weights) => weights.read());
    // Enqueued before the host waits, so that the device is busy during the wait.
    const projectInput = (): ProjectedQkv => projectQkv(this.#x, this.#parts);
    const qkv = this.#track(settings.useCheckpoint ? noGrad(projectInput) : projectInput());
    const keys = settings.certificate ? this.#track(keyStatistics(qkv.k, chunks.own)) : null;
    const values = pendingWeights && (await Promise.all(pendingWeights));
    const { routing, gatheredFeatures } = this.#gradMode(() =>
      this.#route(call, { pending: pendingSummaries, values, keys, routerInput }),
    );
    const initialChunks = call.chosen ?? chooseTopK(await routing.scores.read(), call.topK, chunks.visibility);
    const statistics: GatheredStatistics = { gatheredFeatures, start: settings.summaryDim };
    const attention = new RoutedAttention(this.#config, qkv);
    this.#attention = attention;
    attention.attendChosenChunks(initialChunks);
    const { maxMissedMass: epsilon } = settings;
    const canExtend = !call.dryRun && epsilon !== undefined;
    const chosen = canExtend
      ? await extendChosenChunks(attention, initialChunks, { statistics, epsilon })
      : initialChunks;
    return this.#gradMode(() => this.#createResult({ call, qkv, chosen, routing, statistics, canExtend }));
  }

  #track<T extends Disposable>(resource: T): T {
    return this.#resources.use(resource);
  }

  #route({ noise }: RoutingCall, { pending, values, keys, routerInput }: RoutingInputs): GatheredRouting {
    const { metaAttention, summary } = this.#parts;
    using summaries = pending.finish(values);
    const ownInputs = { summaries, keyStatistics: keys, dependencies: [routerInput, ...summary.parameters()] };
    const gatheredRouting = gatherAndRoute(metaAttention, ownInputs, { plan: this.#config, noise });
    this.#track(gatheredRouting.gatheredFeatures);
    this.#track(gatheredRouting.routing);
    return gatheredRouting;
  }

  #createResult({ call, qkv, chosen, routing, statistics, canExtend }: ResultInputs): MetaResult {
    const attention = this.#attention!;
    const { ctx, chunks, settings } = this.#parts;
    const plannedTransfers = attention.fetches.map((fetch) => fetch.transfers);
    const batch = this.#x.shape[0]!;
    const certificate = settings.certificate ? computeCertificate(attention, chosen, statistics) : null;
    const mass = attentionMass(attention);
    const router: RouterOutput = {
      scores: sliceOwnRows(routing.scores, chunks),
      routing: sliceOwnRows(routing.routing, chunks),
      mass: { mean: mass.mean.detach(), peak: mass.peak },
      chunks,
    };
    using weights = combineWeights(ctx, routing, { ...settings, chosen, chunks });
    this.#attention = undefined;
    const { out, gateValues } = computeOutput(this.#parts, {
      attention,
      x: this.#x,
      qkv,
      combineWeights: weights,
      chosen,
    });
    return createResult(out, {
      routingWeights: routing.routing.detach(),
      chunkAttention: routing.chunkAttention.detach(),
      attentionMass: mass.mean,
      gateValues,
      chosen,
      topK: call.topK,
      certificate,
      bytesMoved: bytesMoved({
        ...settings,
        chunks,
        batch,
        width: settings.numKvHeads * settings.headDim,
        summaryWidth: settings.summaryDim + (settings.certificate ? keyStatisticsWidth(this.#config) : 0),
        extensionWidth: canExtend ? chunks.all.length : 0,
        plannedTransfers,
      }),
      batchShape: [batch],
      router,
    });
  }

  [Symbol.dispose](): void {
    this.#attention?.[Symbol.dispose]();
    this.#resources[Symbol.dispose]();
  }
}

/** Inputs of the routing. */
interface RoutingInputs {
  readonly pending: PendingSummaries;
  /** Values of the weights; null on a device without values. */
  readonly values: readonly Float32Array[] | null;
  readonly keys: Tensor | null;
  /** x as the input of the summaries: detached with "exact". */
  readonly routerInput: Tensor;
}

interface ResultInputs {
  readonly call: RoutingCall;
  readonly qkv: ProjectedQkv;
  readonly chosen: ChosenChunks;
  readonly routing: Routing;
  readonly statistics: GatheredStatistics;
  /** Whether ranks exchanged bounds to select additional chunks. */
  readonly canExtend: boolean;
}

/** Throws a ShapeError or DTypeError unless x is [B,S,E] of the module's dtype. */
export function checkInput(x: Tensor, { name: where, embedDim, dtype }: ResolvedOptions): void {
  checkTensor(where, x);
  if (x.rank !== 3 || x.shape[2] !== embedDim || x.shape[0]! < 1) {
    throw new ShapeError({
      where,
      expected: `x [B,S,${embedDim}] with B ≥ 1 and embedDim as the last axis`,
      received: formatShape(x.shape),
      remedy: "use MultiAxisHierarchicalAttention for inputs with a different number of dimensions",
    });
  }
  if (x.dtype === dtype) return;
  throw new DTypeError({
    where,
    expected: dtype,
    received: x.dtype,
    remedy: `convert x with to("${dtype}"), or construct the module with dtype: "${x.dtype}"`,
  });
}

/**
 * Throws an OptionError unless the chunks that the caller chose are, for each batch element and chunk, distinct chunks
 * that it may attend to.
 */
export function checkSelectedChunks(
  where: string,
  chosen: ChosenChunks | undefined,
  { batch, visibility }: { batch: number; visibility: ChunkVisibility },
): void {
  const { chunks, causal, canAttend } = visibility;
  const isValidList = (i: number, list: readonly number[]): boolean =>
    new Set(list).size === list.length &&
    list.every((j) => Number.isInteger(j) && j >= 0 && j < chunks && canAttend(i, j));
  const isComplete =
    chosen?.length === batch &&
    chosen.every((rows) => rows.length === chunks && rows.every((row, i) => isValidList(i, row)));
  if (isComplete) return;
  throw new OptionError({
    where,
    expected: `chosen[${batch}][${chunks}] with lists of ${causal ? "earlier" : "other"} chunks visible under the mask, without duplicates`,
    received: chosen ? JSON.stringify(chosen).slice(0, 100) : "none",
  });
}
