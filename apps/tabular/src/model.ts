import {
  type AttentionBackend,
  concatenate,
  type Context,
  contiguous,
  CrossAxisAttention,
  Linear,
  local,
  Module,
  MultiAxisAttention,
  scope,
  type Tensor,
} from "@mosaic/attention";
import { LayerNorm, MLP, ModuleList } from "@mosaic/attention/nn";

/** The size of a model. */
export interface TabularOptions {
  readonly embedDim: number;
  readonly numHeads: number;
  readonly hiddenDim: number;
  readonly layers: number;
  /** How ranks share the rows of a table; each has whole tables if absent. */
  readonly rows?: AttentionBackend;
}

/** The model whose weights this directory holds. */
export const defaultOptions: TabularOptions = { embedDim: 48, numHeads: 4, hiddenDim: 96, layers: 3 };

/** This rank's rows of tables of one size: first rows whose class is known, then rows to be predicted. */
export interface Batch {
  /** [B, R, C], standardized. */
  readonly features: Tensor;
  /** [B, R]: the class of known rows, the mean class of all known rows for the others. */
  readonly classes: Tensor;
  /** How many of this rank's R rows are known, and of all ranks' rows. */
  readonly knownRows: { readonly onThisRank: number; readonly onAllRanks: number };
  /** Rows of all ranks. */
  readonly rows: number;
}

/** Attention among the features of each row, then from every row to the known rows; post-norm. */
class Block extends Module {
  readonly #features: MultiAxisAttention;
  readonly #rows: CrossAxisAttention;
  readonly #mlp: MLP;
  readonly #norms: readonly LayerNorm[];

  constructor(ctx: Context, { embedDim, numHeads, hiddenDim, rows = local() }: TabularOptions) {
    super();
    const attends = { embedDim, numHeads };
    this.#features = this.addChild(
      "features",
      new MultiAxisAttention(ctx, { ...attends, attentionAxis: 2, backend: "local" }),
    );
    this.#rows = this.addChild(
      "rows",
      new CrossAxisAttention(ctx, { ...attends, qAxis: 1, kvAxis: 1, backend: rows, placement: contiguous() }),
    );
    this.#mlp = this.addChild("mlp", new MLP(ctx, { embedDim, hiddenDim }));
    this.#norms = [1, 2, 3].map((i) => this.addChild(`norm${i}`, new LayerNorm(ctx, embedDim)));
  }

  /** x [B, R, C + 1, E] → the same shape. */
  forward(x: Tensor, { knownRows, rows }: Batch): Tensor {
    const [first, second, third] = this.#norms as [LayerNorm, LayerNorm, LayerNorm];
    const lengths = { sequenceLength: rows, kvSequenceLength: knownRows.onAllRanks };
    const a = first.forward(x.add(this.#features.forward(x)));
    // Known rows are the keys of all rows, so that no row to be predicted influences another.
    const b = second.forward(a.add(this.#rows.forward(a, a.slice(1, 0, knownRows.onThisRank), lengths)));
    return third.forward(b.add(this.#mlp.forward(b)));
  }
}

/**
 * nanoTabPFN's architecture (Pfefferle et al. 2025, after Hollmann et al. 2025): every cell is a token; a table's known
 * rows are the examples, and one forward pass predicts the classes of the others.
 */
export class TabularModel extends Module {
  readonly #feature: Linear;
  readonly #class: Linear;
  readonly #blocks: ModuleList<Block>;
  readonly #decoder: MLP;

  constructor(ctx: Context, options: TabularOptions) {
    super();
    const { embedDim, hiddenDim, layers } = options;
    this.#feature = this.addChild("feature", new Linear(ctx, 1, embedDim));
    this.#class = this.addChild("class", new Linear(ctx, 1, embedDim));
    this.#blocks = this.addChild("blocks", new ModuleList<Block>());
    for (let i = 0; i < layers; i++) this.#blocks.append(new Block(ctx, options));
    this.#decoder = this.addChild("decoder", new MLP(ctx, { embedDim, hiddenDim, outDim: 2 }));
  }

  /** Logits [B, R − known.here, 2] of this rank's rows to be predicted. Collective along the axes of `rows`. */
  forward(batch: Batch): Tensor {
    let x = scope(() => this.#embed(batch));
    for (const block of this.#blocks) {
      using before = x; // released here, not at the end: inference holds one block's cells
      x = block.forward(before, batch);
    }
    const [batches, rows, columns, embed] = x.shape as [number, number, number, number];
    const testCells = x.slice(2, columns - 1, columns).slice(1, batch.knownRows.onThisRank, rows);
    return this.#decoder.forward(testCells.reshape([batches, rows - batch.knownRows.onThisRank, embed]));
  }

  /** Every cell to a token, the class as the last column: [B, R, C + 1, E]. */
  #embed({ features, classes }: Batch): Tensor {
    const cells = this.#feature.forward(features.reshape([...features.shape, 1]));
    const last = this.#class.forward(classes.reshape([...classes.shape, 1, 1]));
    return concatenate([cells, last], 2);
  }
}
