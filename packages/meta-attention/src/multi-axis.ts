import {
  type Context,
  formatShape,
  normalizeAxis,
  type Shape,
  ShapeError,
  type Tensor,
  checkTensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { HierarchicalMetaAttention, type MetaForwardOptions } from "./hierarchical.ts";
import { createResult, type MetaResult } from "./meta.ts";
import { captureGradMode } from "./tensor-views.ts";
import { hierarchicalMetaAttentionOptions } from "./options.ts";

export const multiAxisHierarchicalAttentionOptions = defineOptions("MultiAxisHierarchicalAttention", {
  /**
   * The tensor axis to attend along. Negative values count from the end. The last axis, the embedding, is not allowed.
   */
  attentionAxis: option.integer(),
  ...hierarchicalMetaAttentionOptions.fields,
});
/** Options of MultiAxisHierarchicalAttention. */
export type MultiAxisHierarchicalAttentionOptions = OptionsOf<typeof multiAxisHierarchicalAttentionOptions>;

/**
 * HierarchicalMetaAttention along one axis of a tensor of any rank. All other axes are batch axes, whose elements are
 * routed independently. `attentionAxis` is the tensor axis that is sharded over the ranks of the mesh axis `axis`.
 * Parameters are those of HierarchicalMetaAttention, with the same names.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { MultiAxisHierarchicalAttention } from "@mosaic/meta-attention";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const options = { embedDim: 16, numHeads: 2, topK: 1, chunksPerRank: 3, attentionAxis: 1 };
 * using attn = new MultiAxisHierarchicalAttention(ctx, options);
 * using x = randn(ctx, [2, 30, 5, 16]);
 * using result = await attn.forward(x);
 * const { out, meta } = result;
 * out.shape; // => [2, 30, 5, 16]
 * meta.routingWeights.shape; // => [2, 5, 3, 3]
 * meta.gateValues!.shape; // => [2, 30, 5]
 * meta.certificate!.missedMass.shape; // => [2, 30, 5, 2]
 * ```
 */
export class MultiAxisHierarchicalAttention extends HierarchicalMetaAttention {
  readonly #axis: number;

  constructor(ctx: Context, options: MultiAxisHierarchicalAttentionOptions) {
    multiAxisHierarchicalAttentionOptions.parse(options);
    const { attentionAxis, ...sharedOptions } = options;
    super(ctx, sharedOptions);
    this.#axis = attentionAxis;
  }

  /**
   * Maps this rank's shard x [..,E] to out of the same shape, and `meta` with the caller's axes in place of the batch:
   * routingWeights [..,N,N] over the other axes, gateValues and missedMass in the axis order of x. Collective along the
   * axis.
   *
   * @throws ShapeError for an invalid axis or embedding; otherwise the errors of HierarchicalMetaAttention.
   */
  override async forward(x: Tensor, options?: MetaForwardOptions): Promise<MetaResult> {
    const sequence = flattenToRows("MultiAxisHierarchicalAttention", x, this.#axis);
    using rows = sequence.rows;
    const withGradMode = captureGradMode();
    using flatResult = await super.forward(rows, options);
    return withGradMode(() => restoreShape(flatResult, sequence));
  }
}

/** Restores the caller's axes in the result of flat rows. */
function restoreShape({ out, meta }: MetaResult, { batchShape, restore }: FlattenedRows): MetaResult {
  const unflatten = (x: Tensor): Tensor => x.reshape([...batchShape, ...x.shape.slice(1)]);
  const { certificate, gateValues, router } = meta;
  return createResult(restore(out), {
    ...meta,
    routingWeights: unflatten(meta.routingWeights),
    chunkAttention: unflatten(meta.chunkAttention),
    attentionMass: unflatten(meta.attentionMass),
    gateValues: gateValues && restoreWithoutLastAxis(restore, gateValues),
    certificate: certificate && { missedMass: restore(certificate.missedMass) },
    batchShape,
    router: {
      ...router,
      scores: cloneHandle(router.scores),
      routing: cloneHandle(router.routing),
      mass: { mean: router.mass.mean.detach(), peak: router.mass.peak.detach() },
    },
  });
}

/** Returns a new handle of x, with history. */
function cloneHandle(x: Tensor): Tensor {
  return x.reshape(x.shape);
}

/** Restores the caller's axis order of x [B,S]. */
function restoreWithoutLastAxis(restore: FlattenedRows["restore"], x: Tensor): Tensor {
  using column = x.reshape([...x.shape, 1]);
  using restoredColumn = restore(column);
  return restoredColumn.reshape(restoredColumn.shape.slice(0, -1));
}

/** A tensor viewed as a batch of sequences along one axis, and the inverse transformation. */
interface FlattenedRows {
  /** [B,S,E]. */
  readonly rows: Tensor;
  /** Lengths of the axes that form B, row-major. */
  readonly batchShape: Shape;
  /** Returns [B,S,F] in the caller's axis order, [..,F], contiguous. */
  restore(result: Tensor): Tensor;
}

/**
 * Moves an axis of x [..,E] after all others but the embedding, and flattens the others. Copies only if strides cannot
 * represent the result.
 */
function flattenToRows(where: string, x: Tensor, axis: number): FlattenedRows {
  checkTensor(where, x);
  const normalizedAxis = x.rank < 2 ? x.rank : normalizeAxis(axis, x.rank, where);
  const embedAxis = x.rank - 1;
  if (normalizedAxis >= embedAxis) {
    throw new ShapeError({
      where,
      expected: "an axis other than the last axis, the embedding",
      received: `axis ${axis} of ${formatShape(x.shape)}`,
    });
  }
  const batchAxes = x.shape.map((_, each) => each).filter((each) => each !== normalizedAxis && each !== embedAxis);
  const order = [...batchAxes, normalizedAxis, embedAxis];
  const batchShape = batchAxes.map((each) => x.shape[each]!);
  using permutedX = x.permute(order);
  return {
    rows: permutedX.reshape([batchShape.reduce((a, b) => a * b, 1), x.shape[normalizedAxis]!, x.shape[embedAxis]!]),
    batchShape,
    restore(result) {
      using unflattenedResult = result.reshape([...batchShape, ...result.shape.slice(1)]);
      using restoredResult = unflattenedResult.permute(order.map((_, each) => order.indexOf(each)));
      return restoredResult.contiguous();
    },
  };
}
