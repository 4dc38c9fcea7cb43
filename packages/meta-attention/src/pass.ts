import { add, type Context, causal, full, noGrad, randn, softmax, type Tensor } from "@mosaic/core";
import { Attending } from "./attend/attending.ts";
import { attentionMass } from "./attend/mass.ts";
import type { AttendPlan } from "./attend/plan.ts";
import { headsOf } from "./attend/views.ts";
import { bytesMoved } from "./bytes.ts";
import type { KnownKeys } from "./certificate/bounds.ts";
import { certify, worstLeftOut } from "./certificate/certificate.ts";
import { chunksToAdd, joined } from "./certificate/extend.ts";
import { keyStatistics, keyStatisticsWidth } from "./certificate/key-statistics.ts";
import type { Chunks } from "./chunks.ts";
import { type MetaResult, resultOf } from "./meta.ts";
import { outputOf, type Projections } from "./output.ts";
import type { Resume } from "./recording.ts";
import { type Chosen, choose } from "./route/choose.ts";
import { chosenOnly } from "./route/chosen-only.ts";
import { gatherSummaries } from "./route/gather.ts";
import { logSoftmax } from "./route/log-softmax.ts";
import type { MetaAttention, Routing } from "./route/meta-attention.ts";
import { Scope } from "./scope.ts";
import type { Settings } from "./settings.ts";
import type { ChunkSummaryEncoder } from "./summary/encoder.ts";
import { beginSummaries, type PendingSummaries } from "./summary/own-summaries.ts";

/** The module that runs, and the sequence. */
export interface PassParts extends Projections {
  readonly ctx: Context;
  readonly settings: Settings;
  readonly chunks: Chunks;
  readonly summary: ChunkSummaryEncoder;
  readonly metaAttention: MetaAttention;
}

/** How chunks are chosen in this call. */
export interface PassCall {
  readonly topK: number;
  /** Tells the noise of this module and step from any other; null for none. */
  readonly noiseSeed: { readonly stream: number; readonly step: number } | null;
  readonly chosen: Chosen | undefined;
  readonly dryRun: boolean;
}

/** One forward. Everything that does not leave it is freed with it. */
export class Pass implements Disposable {
  readonly #parts: PassParts;
  readonly #plan: AttendPlan;
  readonly #x: Tensor;
  readonly #resume: Resume;
  readonly #scope = new Scope();
  #attending: Attending | undefined;

  constructor(parts: PassParts, x: Tensor, resume: Resume) {
    const { ctx, settings, chunks } = parts;
    const { axis, combine, gate, softmaxScale: scale, numHeads: heads, headSize } = settings;
    const mask = (settings.causal ? causal() : full()).slices(chunks.length, chunks.length);
    const group = ctx.mesh.group(axis);
    this.#parts = parts;
    this.#x = x;
    this.#resume = resume;
    this.#plan = { ctx, group, chunks, combine, gate, mask, scale, heads, headSize, label: `meta(${axis})` };
  }

  async run(call: PassCall): Promise<MetaResult> {
    const { summary, chunks, qkvProjection, settings } = this.#parts;
    // In "exact" the output is no smooth function of the scores: what the router is told stays with its parameters, so that
    // gradients of the input are those of attention over what was looked at.
    const seen = settings.combine === "exact" ? this.#hold(this.#x.detach()) : this.#x;
    const pending = this.#hold(beginSummaries(summary, seen, chunks));
    const reading = call.dryRun ? null : pending.patterns.map((pattern) => pattern.read());
    // Enqueued before the host waits, so that the device has work meanwhile.
    const project = (): Tensor => qkvProjection.forward(this.#x);
    const qkv = this.#hold(settings.useCheckpoint ? noGrad(project) : project());
    const keys = settings.certificate ? this.#keyStatistics(qkv) : null;
    const values = reading && (await Promise.all(reading));
    const { routing, gathered } = this.#resume(() => this.#route(call, { pending, values, keys }));
    const first = call.chosen ?? choose(await routing.scores.read(), { ...settings, topK: call.topK });
    const known: KnownKeys = { gathered, start: settings.summaryDim, causal: settings.causal };
    this.#attending = new Attending(this.#plan, qkv);
    this.#attending.look(first);
    const chosen = call.dryRun ? first : await this.#extend(first, known);
    return this.#resume(() => this.#finish({ call, qkv, chosen, routing, known }));
  }

  #hold<T extends Disposable>(thing: T): T {
    return this.#scope.hold(thing);
  }

  #keyStatistics(qkv: Tensor): Tensor {
    using k = headsOf(qkv, 1, this.#plan);
    return this.#hold(keyStatistics(k, this.#parts.chunks.own));
  }

  /** Summaries of all, and where each chunk should look: the same on every rank. */
  #route(
    { noiseSeed }: PassCall,
    { pending, values, keys }: { pending: PendingSummaries; values: Float32Array[] | null; keys: Tensor | null },
  ): { routing: Routing; gathered: Tensor } {
    const { ctx, settings, metaAttention } = this.#parts;
    const { group, label } = this.#plan;
    using own = pending.finish(values);
    const gathered = this.#hold(gatherSummaries(own, keys, { group, label }));
    using summaries = gathered.slice(2, 0, settings.summaryDim);
    using byBatch = summaries.permute([1, 0, 2]);
    const [batch, chunks] = byBatch.shape as [number, number];
    if (!noiseSeed || settings.routingNoise === 0) {
      return { routing: this.#hold(metaAttention.forward(byBatch)), gathered };
    }
    // Apart from what parameters and ranks draw, and the same on every rank.
    const seed = (ctx.seed + Math.imul(noiseSeed.stream + 1, 0x85ebca6b)) >>> 0;
    const spec = { std: settings.routingNoise, seed, stream: noiseSeed.step };
    using noise = randn(ctx, [batch, chunks, chunks], spec);
    return { routing: this.#hold(metaAttention.forward(byBatch, noise)), gathered };
  }

  /** Looks at more chunks if too much may have been missed; what was looked at in the end. */
  async #extend(first: Chosen, known: KnownKeys): Promise<Chosen> {
    const { maxMissedMass: epsilon, causal: isCausal, chunks: count } = this.#parts.settings;
    if (epsilon === undefined) return first;
    const { group, label, chunks } = this.#plan;
    using worst = worstLeftOut(this.#attending!, first, known);
    using all = worst.device.empty([chunks.ranks, ...worst.shape], "float32");
    if (group.size === 1) worst.device.kernels.copy(all, worst);
    else group.allGather(all, worst, { label }).wait();
    using ordered = all.permute([1, 0, 2, 3]);
    using rows = ordered.reshape([first.length, count, count]);
    const more = chunksToAdd(await rows.read(), first, { epsilon, causal: isCausal });
    if (more.every((ofBatch) => ofBatch.every(({ length }) => length === 0))) return first;
    this.#attending!.look(more);
    return joined(first, more);
  }

  #finish({ call, qkv, chosen, routing, known }: Finishing): MetaResult {
    const attending = this.#attending!;
    const { chunks, settings } = this.#parts;
    const [from, to] = [chunks.rank * chunks.perRank, (chunks.rank + 1) * chunks.perRank];
    const edges = attending.fetches.map((fetch) => fetch.edges);
    const batch = this.#x.shape[0]!;
    const certificate = settings.certificate ? certify(attending, chosen, known) : null;
    const mass = attentionMass(attending);
    const router = {
      scores: routing.scores.slice(1, from, to),
      routing: routing.routing.slice(1, from, to),
      mass: { mean: mass.mean.detach(), peak: mass.peak },
      chunks,
      causal: settings.causal,
    };
    using numbers = this.#routerNumbers(router.scores, chosen);
    this.#attending = undefined;
    const attended = { attending, x: this.#x, qkv, router: numbers, chosen, useCheckpoint: settings.useCheckpoint };
    const { out, gateValues } = outputOf(this.#parts, attended);
    return resultOf(out, {
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
        width: settings.embedDim,
        gathered: settings.summaryDim + (settings.certificate ? keyStatisticsWidth(this.#plan) : 0),
        secondGather: settings.maxMissedMass === undefined ? 0 : settings.chunks,
        edges,
      }),
      batchShape: [batch],
      router,
    });
  }

  /** What the attention takes of the router, [B,c,N]: weights of the chosen if soft, logarithms of the distribution if exact. */
  #routerNumbers(scores: Tensor, chosen: Chosen): Tensor {
    if (this.#plan.combine === "exact") return logSoftmax(scores);
    using mask = chosenOnly(this.#parts.ctx, chosen, this.#parts.chunks);
    using masked = add(scores, mask);
    return softmax(masked);
  }

  [Symbol.dispose](): void {
    this.#attending?.[Symbol.dispose]();
    this.#scope[Symbol.dispose]();
  }
}

interface Finishing {
  readonly call: PassCall;
  readonly qkv: Tensor;
  readonly chosen: Chosen;
  readonly routing: Routing;
  readonly known: KnownKeys;
}
