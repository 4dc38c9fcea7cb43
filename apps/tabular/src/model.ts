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

/** The size of a model. */
export interface TabularOptions {
  /** The most classes a table may have. */
  readonly maxClasses: number;
  readonly embedDim: number;
  readonly numHeads: number;
  readonly hiddenDim: number;
  readonly layers: number;
  /** Of parameters and activations; losses, sums and the optimizer are float32 in any case. */
  readonly dtype?: DType;
  /** How ranks share the rows of a table; each has whole tables if absent. */
  readonly rowBackend?: AttentionBackend;
}

/** The model whose weights this directory holds: nanoTabPFN's size, and as many classes as TabPFN's. */
export const defaultOptions: TabularOptions = {
  maxClasses: 10,
  embedDim: 96,
  numHeads: 4,
  hiddenDim: 192,
  layers: 3,
};

/** This rank's rows of tables of one size: first rows whose class is known, then rows to be predicted. */
export interface Batch {
  /** [B, R, C], standardized. */
  readonly features: Tensor;
  /** [B, R, maxClasses]: the class of a known row as one 1, the shares of the classes among all known rows for the others. */
  readonly classes: Tensor;
  /** How many classes the tables have. */
  readonly classCount: number;
  /** How many of this rank's R rows are known, and of all ranks' rows. */
  readonly knownRowCounts: { readonly localCount: number; readonly globalCount: number };
  /** Rows of all ranks. */
  readonly rows: number;
}

/** Attention among the features of each row, then from every row to the known rows; post-norm. */
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

  /** Some columns of x, [B, R, c, E], and all of them, [B, R, C + 1, E] → the former. */
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
 * nanoTabPFN's architecture (Pfefferle et al. 2025, after Hollmann et al. 2025): every cell is a token; a table's known
 * rows are the examples, and one forward pass predicts the classes of the others.
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

  /** Logits [B, R − known.here, classes] of this rank's rows to be predicted. Collective along the axes of `rows`. */
  forward(batch: Batch): Tensor {
    const { classCount, knownRowCounts } = batch;
    let x = scope(() => this.#embedTable(batch));
    const [batchSize, rows, columns, embedDim] = x.shape as [number, number, number, number];
    for (const [i, block] of [...this.#blocks].entries()) {
      using previousCells = x; // released here, not at the end: inference holds one block's cells
      // Of the last block's cells only the class is read.
      const isLast = i === this.options.layers - 1;
      x = block.forward(isLast ? previousCells.slice(2, columns - 1) : previousCells, previousCells, batch);
    }
    const testCells = x
      .slice(1, knownRowCounts.localCount)
      .reshape([batchSize, rows - knownRowCounts.localCount, embedDim]);
    return this.#decoder.forward(testCells).slice(2, 0, classCount);
  }

  /** Every cell to a token, the class as the last column: [B, R, C + 1, E]. */
  #embedTable({ features, classes }: Batch): Tensor {
    const { dtype = "float32" } = this.options;
    const cells = this.#feature.forward(features.reshape([...features.shape, 1]).to(dtype));
    const [batchSize, rows, maxClasses] = classes.shape as [number, number, number];
    const classCells = this.#classEmbedding.forward(classes.reshape([batchSize, rows, 1, maxClasses]).to(dtype));
    return concatenate([cells, classCells], 2);
  }
}
