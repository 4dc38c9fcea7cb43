import {
  type Context,
  DTypeError,
  formatShape,
  noGrad,
  OptionError,
  ShapeError,
  type Tensor,
  checkTensor,
} from "@mosaic/core";
import { Attending } from "./attend/attending.ts";
import { attentionMass } from "./attend/mass.ts";
import type { AttendPlan } from "./attend/plan.ts";
import { bytesMoved } from "./bytes.ts";
import { certify, type KnownKeys } from "./certificate/certificate.ts";
import { extend } from "./certificate/extend.ts";
import { keyStatistics, keyStatisticsWidth } from "./certificate/key-statistics.ts";
import { ownRowsOf } from "./chunks.ts";
import { Holder } from "./holder.ts";
import { type MetaResult, outputOf, type Projections, resultOf, type RouterRows } from "./meta.ts";
import { project, type Projected } from "./projection.ts";
import { recordRouting, type RoutingCall } from "./record-call.ts";
import type { Resume } from "./recording.ts";
import { choose, type Chosen, type Reach } from "./route/choose.ts";
import type { MetaAttention, Routing } from "./route/meta-attention.ts";
import { routeBy, type Routed, routerNumbers } from "./route/router.ts";
import type { ResolvedOptions } from "./settings.ts";
import { beginSummaries, type ChunkSummaryEncoder, type PendingSummaries } from "./summary/encoder.ts";

/** The module that runs, and how the sequence is cut. */
interface PassParts extends Projections {
  readonly ctx: Context;
  readonly summary: ChunkSummaryEncoder;
  readonly metaAttention: MetaAttention;
}

/** One forward. Everything that does not leave it is freed with it. */
export class Pass implements Disposable {
  readonly #parts: PassParts;
  readonly #plan: AttendPlan;
  readonly #x: Tensor;
  readonly #resume: Resume;
  readonly #holder = new Holder();
  #attending: Attending | undefined;

  constructor(parts: PassParts, x: Tensor, resume: Resume) {
    const { ctx, settings, chunks } = parts;
    const { axis, combine, gate, scale, numHeads, numKvHeads, headDim } = settings;
    const group = ctx.mesh.group(axis);
    this.#parts = parts;
    this.#x = x;
    this.#resume = resume;
    this.#plan = { ctx, group, chunks, combine, gate, scale, numHeads, numKvHeads, headDim, label: `meta(${axis})` };
  }

  async run(call: RoutingCall): Promise<MetaResult> {
    const { summary, chunks, settings } = this.#parts;
    recordRouting(this.#plan, this.#x, settings, call);
    // In "exact" the output is no smooth function of the scores: its gradient stays with its parameters, so that
    // gradients of the input are those of attention over what was looked at.
    const seen = settings.combine === "exact" ? this.#hold(this.#x.detach()) : this.#x;
    const pending = this.#hold(beginSummaries(summary, seen, chunks));
    const reading = call.dryRun ? null : pending.patterns.map((pattern) => pattern.read());
    // Enqueued before the host waits, so that the device has work meanwhile.
    const projected = (): Projected => project(this.#x, this.#parts);
    const qkv = this.#hold(settings.useCheckpoint ? noGrad(projected) : projected());
    const keys = settings.certificate ? this.#hold(keyStatistics(qkv.k, chunks.own)) : null;
    const values = reading && (await Promise.all(reading));
    const { routing, gathered } = this.#resume(() => this.#route(call, { pending, values, keys, seen }));
    const first = call.chosen ?? choose(await routing.scores.read(), call.topK, chunks.reach);
    const known: KnownKeys = { gathered, start: settings.summaryDim };
    const attending = new Attending(this.#plan, qkv);
    this.#attending = attending;
    attending.look(first);
    const { maxMissedMass: epsilon } = settings;
    const mayExtend = !call.dryRun && epsilon !== undefined;
    const chosen = mayExtend ? await extend(attending, first, { known, epsilon }) : first;
    return this.#resume(() => this.#finish({ call, qkv, chosen, routing, known, mayExtend }));
  }

  #hold<T extends Disposable>(thing: T): T {
    return this.#holder.hold(thing);
  }

  #route({ noise }: RoutingCall, { pending, values, keys, seen }: Routable): Routed {
    const { metaAttention, summary } = this.#parts;
    using summaries = pending.finish(values);
    const own = { summaries, keyStatistics: keys, madeOf: [seen, ...summary.parameters()] };
    const routed = routeBy(metaAttention, own, { plan: this.#plan, noise });
    this.#hold(routed.gathered);
    this.#hold(routed.routing);
    return routed;
  }

  #finish({ call, qkv, chosen, routing, known, mayExtend }: Finishing): MetaResult {
    const attending = this.#attending!;
    const { ctx, chunks, settings } = this.#parts;
    const edges = attending.fetches.map((fetch) => fetch.edges);
    const batch = this.#x.shape[0]!;
    const certificate = settings.certificate ? certify(attending, chosen, known) : null;
    const mass = attentionMass(attending);
    const router: RouterRows = {
      scores: ownRowsOf(routing.scores, chunks),
      routing: ownRowsOf(routing.routing, chunks),
      mass: { mean: mass.mean.detach(), peak: mass.peak },
      chunks,
    };
    using numbers = routerNumbers(ctx, routing, { ...settings, chosen, chunks });
    this.#attending = undefined;
    const { out, gateValues } = outputOf(this.#parts, { attending, x: this.#x, qkv, router: numbers, chosen });
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
        width: settings.numKvHeads * settings.headDim,
        gathered: settings.summaryDim + (settings.certificate ? keyStatisticsWidth(this.#plan) : 0),
        secondGather: mayExtend ? chunks.all.length : 0,
        edges,
      }),
      batchShape: [batch],
      router,
    });
  }

  [Symbol.dispose](): void {
    this.#attending?.[Symbol.dispose]();
    this.#holder[Symbol.dispose]();
  }
}

/** What routing follows from. */
interface Routable {
  readonly pending: PendingSummaries;
  /** Of the patterns; null on a device without values. */
  readonly values: readonly Float32Array[] | null;
  readonly keys: Tensor | null;
  /** x as the summaries see it. */
  readonly seen: Tensor;
}

interface Finishing {
  readonly call: RoutingCall;
  readonly qkv: Projected;
  readonly chosen: Chosen;
  readonly routing: Routing;
  readonly known: KnownKeys;
  /** Whether ranks exchanged what more they look at. */
  readonly mayExtend: boolean;
}

/** x must be [B,S,E] of the module's dtype. */
export function checkInput(x: Tensor, { name: where, embedDim, dtype }: ResolvedOptions): void {
  checkTensor(where, x);
  if (x.rank !== 3 || x.shape[2] !== embedDim || x.shape[0]! < 1) {
    throw new ShapeError({
      where,
      expected: `x [B,S,${embedDim}], embedDim last`,
      received: formatShape(x.shape),
      remedy: "for tensors of other ranks there is MultiAxisHierarchicalAttention",
    });
  }
  if (x.dtype === dtype) return;
  throw new DTypeError({
    where,
    expected: dtype,
    received: x.dtype,
    remedy: `convert x with to("${dtype}"), or give the module dtype: "${x.dtype}"`,
  });
}

/** Chunks given by the caller: for each batch element and chunk, others that it may look at, each once. */
export function checkChosen(
  where: string,
  chosen: Chosen | undefined,
  { batch, reach }: { batch: number; reach: Reach },
): void {
  const { chunks, causal, may } = reach;
  const legal = (i: number, list: readonly number[]): boolean =>
    new Set(list).size === list.length && list.every((j) => Number.isInteger(j) && j >= 0 && j < chunks && may(i, j));
  const whole =
    chosen?.length === batch && chosen.every((rows) => rows.length === chunks && rows.every((row, i) => legal(i, row)));
  if (whole) return;
  throw new OptionError({
    where,
    expected: `chosen[${batch}][${chunks}], lists of other${causal ? ", earlier" : ""} chunks that the mask shows, each once`,
    received: chosen ? JSON.stringify(chosen).slice(0, 100) : "none",
  });
}
