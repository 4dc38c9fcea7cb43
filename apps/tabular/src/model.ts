import {
  type AttentionBackend,
  concatenate,
  type Context,
  contiguous,
  CrossAxisAttention,
  type DType,
  Linear,
  local,
  Module,
  scope,
  type Tensor,
} from "@mosaic/attention";
import { LayerNorm, MLP, ModuleList } from "@mosaic/attention/nn";

/** Size and options of a model. */
export interface TabularOptions {
  /** Maximum number of classes of a table. */
  readonly maxClasses: number;
  readonly embedDim: number;
  readonly numHeads: number;
  readonly hiddenDim: number;
  readonly layers: number;
  /** Dtype of parameters and activations. Losses, sums and the optimizer always use float32. */
  readonly dtype?: DType;
  /** Backend by which ranks share the rows of a table. If absent, each rank has complete tables. */
  readonly rowBackend?: AttentionBackend;
}

/** Options of the model whose weights this directory contains: nanoTabPFN's size, with TabPFN's number of classes. */
export const defaultOptions: TabularOptions = {
  maxClasses: 10,
  embedDim: 96,
  numHeads: 4,
  hiddenDim: 192,
  layers: 3,
};

/** This rank's rows of tables of one size: first the known rows, then the rows to be predicted. */
export interface Batch {
  /** [B, R, C], standardized. */
  readonly features: Tensor;
  /**
   * [B, R, maxClasses]. One-hot classes for known rows, and the shares of the classes among all known rows for others.
   */
  readonly classes: Tensor;
  /** Number of classes of the tables. */
  readonly classCount: number;
  /** Number of known rows among this rank's R rows, and among all ranks' rows. */
  readonly knownRowCounts: { readonly localCount: number; readonly globalCount: number };
  /** Number of rows of all ranks. */
  readonly rows: number;
}

/** Attention among the features of each row, then from every row to the known rows. Uses post-norm. */
class Block extends Module {
  readonly #features: CrossAxisAttention;
  readonly #rows: CrossAxisAttention;
  readonly #mlp: MLP;
  readonly #norms: readonly LayerNorm[];

  constructor(
    ctx: Context,
    { embedDim, numHeads, hiddenDim, rowBackend = local(), dtype = "float32" }: TabularOptions,
  ) {
    super();
    const attentionOptions = { embedDim, numHeads, dtype };
    this.#features = this.addChild(
      "features",
      new CrossAxisAttention(ctx, { ...attentionOptions, qAxis: 2, kvAxis: 2, backend: "local" }),
    );
    this.#rows = this.addChild(
      "rows",
      new CrossAxisAttention(ctx, {
        ...attentionOptions,
        qAxis: 1,
        kvAxis: 1,
        backend: rowBackend,
        placement: contiguous(),
      }),
    );
    this.#mlp = this.addChild("mlp", new MLP(ctx, { embedDim, hiddenDim, dtype }));
    this.#norms = [1, 2, 3].map((i) => this.addChild(`norm${i}`, new LayerNorm(ctx, embedDim, { dtype })));
  }

  /** Updates `queries`, some columns of x [B, R, c, E], by attention to all columns x [B, R, C + 1, E]. */
  forward(queries: Tensor, x: Tensor, { knownRowCounts, rows }: Batch): Tensor {
    const [featureNorm, rowNorm, mlpNorm] = this.#norms as [LayerNorm, LayerNorm, LayerNorm];
    const lengths = { sequenceLength: rows, kvSequenceLength: knownRowCounts.globalCount };
    const a = featureNorm.forward(queries.add(this.#features.forward(queries, x)));
    // Known rows are the keys of all rows, so that no row to be predicted influences another.
    const b = rowNorm.forward(a.add(this.#rows.forward(a, a.slice(1, 0, knownRowCounts.localCount), lengths)));
    return mlpNorm.forward(b.add(this.#mlp.forward(b)));
  }
}

/**
 * Model with nanoTabPFN's architecture (Pfefferle et al. 2025, after Hollmann et al. 2025). Every cell is a token. The
 * known rows of a table are the examples, and one forward pass predicts the classes of the others.
 */
export class TabularModel extends Module {
  readonly options: TabularOptions;
  readonly #feature: Linear;
  readonly #classEmbedding: Linear;
  readonly #blocks: ModuleList<Block>;
  readonly #decoder: MLP;

  constructor(ctx: Context, options: TabularOptions) {
    super();
    const { embedDim, hiddenDim, layers, maxClasses, dtype = "float32" } = options;
    this.options = options;
    this.#feature = this.addChild("feature", new Linear(ctx, 1, embedDim, { dtype }));
    this.#classEmbedding = this.addChild("class", new Linear(ctx, maxClasses, embedDim, { dtype }));
    this.#blocks = this.addChild("blocks", new ModuleList<Block>());
    for (let i = 0; i < layers; i++) this.#blocks.append(new Block(ctx, options));
    this.#decoder = this.addChild("decoder", new MLP(ctx, { embedDim, hiddenDim, outDim: maxClasses, dtype }));
  }

  /**
   * Computes logits [B, R − localCount, classes] of this rank's rows to be predicted. Collective along the axes of
   * `rowBackend`.
   */
  forward(batch: Batch): Tensor {
    const { classCount, knownRowCounts } = batch;
    let x = scope(() => this.#embedTable(batch));
    const [batchSize, rows, columns, embedDim] = x.shape as [number, number, number, number];
    for (const [i, block] of [...this.#blocks].entries()) {
      using previousCells = x; // released per block, so that inference holds one block's cells only
      // Only the class column of the last block is used.
      const isLast = i === this.options.layers - 1;
      x = block.forward(isLast ? previousCells.slice(2, columns - 1) : previousCells, previousCells, batch);
    }
    const testCells = x
      .slice(1, knownRowCounts.localCount)
      .reshape([batchSize, rows - knownRowCounts.localCount, embedDim]);
    return this.#decoder.forward(testCells).slice(2, 0, classCount);
  }

  /** Embeds every cell as a token, with the class as the last column: [B, R, C + 1, E]. */
  #embedTable({ features, classes }: Batch): Tensor {
    const { dtype = "float32" } = this.options;
    const cells = this.#feature.forward(features.reshape([...features.shape, 1]).to(dtype));
    const [batchSize, rows, maxClasses] = classes.shape as [number, number, number];
    const classCells = this.#classEmbedding.forward(classes.reshape([batchSize, rows, 1, maxClasses]).to(dtype));
    return concatenate([cells, classCells], 2);
  }
}
