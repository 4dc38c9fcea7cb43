import {
  checkContext,
  type Context,
  defineOptions,
  fromArray,
  type Mask,
  masks,
  option,
  OptionError,
  type OptionsOf,
  type Placement,
  type PlacementName,
  type ResolvedOptionsOf,
  shard,
  type Tensor,
  checkArgument,
  formatValue,
} from "@mosaic/core";
import { permute } from "./permutation.ts";
import type { TokenSource } from "./token-source.ts";

/** The placement of a batch, found for its mask, which is that of the rank's rows: one for all, or one for each. */
export type PlacementFunction = (mask: Mask | readonly Mask[], length: number) => PlacementName | Placement;

export const dataLoaderOptions = defineOptions("DataLoader", {
  /** Tokens of a row, S. */
  rowLength: option.integer({ min: 1 }),
  /** Rows of a batch over all ranks; a multiple of the length of the mesh axis "dp", whose ranks get as many each. */
  batchSize: option.integer({ min: 1 }),
  /** Whether each epoch has its rows in an order of its own, which follows from the seed and the epoch. Default true. */
  shuffle: option.boolean({ default: true }),
  /** Of the order. Default: the context's. */
  seed: option.integer({ min: 0, optional: true }),
  /** Whether tokens see those of their document alone, and no label is another document's token; as Megatron's. Default true. */
  resetAttentionMask: option.boolean({ default: true }),
  /** Whether positions begin at 0 in each document, and not in each row alone; as Megatron's. Default false. */
  resetPositionIds: option.boolean({ default: false }),
  /**
   * How rows are cut over the ranks that share them: as in `shard`, or a function of the batch's mask and the row length, such as one that
   * calls `dispatch`. Default "contiguous".
   */
  placement: option.either(
    option.placement(),
    option.custom("a function that maps a mask to a placement", option.isFunction<PlacementFunction>),
    { default: "contiguous" },
  ),
  /** Mesh axes along which rows are cut, outermost first. Default: all but "dp". */
  axes: option.array(option.string(), { optional: true }),
});
/** How tokens become batches. */
export type DataLoaderOptions = OptionsOf<typeof dataLoaderOptions>;
type DataLoaderSettings = ResolvedOptionsOf<typeof dataLoaderOptions>;

/** This rank's part of a batch: b of its rows, s of their tokens. */
export interface TokenBatch extends Disposable {
  /** [b,s] float32. */
  readonly tokens: Tensor;
  /** The token after each [b,s]; −100, which losses ignore, where there is none in its document. */
  readonly labels: Tensor;
  /** Each token's position [b,s], in its document or in its row. */
  readonly positions: Tensor;
  /** What each token sees of its row: one mask for all rows that are equal, else one for each. */
  readonly mask: Mask | readonly Mask[];
  /** Lengths of the documents in each of this rank's rows. */
  readonly documents: readonly (readonly number[])[];
  readonly placement: PlacementName | Placement;
  readonly epoch: number;
  /** Of the epoch, from 0. */
  readonly index: number;
}

/** All that decides which batch comes next: plain JSON, for the `data` of `saveCheckpoint`. */
export interface DataLoaderState {
  readonly epoch: number;
  /** Batches of the epoch that were taken. */
  readonly index: number;
  readonly seed: number;
  readonly shuffle: boolean;
  readonly tokens: number;
  readonly rowLength: number;
  readonly batchSize: number;
}

/** What labels without a successor have: the default `ignoreIndex` of losses. */
const IGNORE_INDEX = -100;

/**
 * Packs documents of tokens into rows, one after another and cut wherever a row ends, and gives every rank its part of each batch: ranks along
 * "dp" other rows, ranks along other axes their shard of them. Labels are taken before rows are cut. Which rows a batch has follows from
 * the seed, the epoch and the number of the batch alone, so that losses are the same on every mesh. What is left at the end of an epoch, less than a
 * batch, comes in another order in the next one.
 *
 * @example
 * ```ts
 * import { init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { DataLoader, tokenArrays } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * const source = tokenArrays([[1, 2, 3], [4, 5, 6, 7, 8, 9]]);
 * const loader = new DataLoader(ctx, source, { rowLength: 4, batchSize: 1, shuffle: false });
 * loader.batchesPerEpoch; // => 2
 * using batch = loader.next();
 * Array.from(await batch.tokens.read()); // => [1, 2, 3, 4]
 * Array.from(await batch.labels.read()); // => [2, 3, -100, 5]
 * batch.documents; // => [[3, 1]]
 * const state = loader.state();
 * using second = loader.next();
 * loader.load(state);
 * using again = loader.next();
 * Array.from(await again.tokens.read()); // => [5, 6, 7, 8]
 * ```
 * @throws OptionError for a batch size that the ranks along "dp" cannot share, and for fewer tokens than a batch takes.
 */
export class DataLoader {
  /** Rows of an epoch, before they are batched. */
  readonly rows: number;
  readonly batchesPerEpoch: number;
  readonly #ctx: Context;
  readonly #source: TokenSource;
  readonly #settings: DataLoaderSettings & { readonly seed: number };
  #epoch = 0;
  #index = 0;

  constructor(ctx: Context, source: TokenSource, options: DataLoaderOptions) {
    checkContext("DataLoader", ctx);
    checkArgument("DataLoader: source", source, sourceOption);
    const settings = dataLoaderOptions.parse(options);
    const { rowLength, batchSize } = settings;
    const { dp = 1 } = ctx.mesh.shape;
    if (batchSize % dp !== 0) {
      throw new OptionError({
        where: "DataLoader: batchSize",
        expected: `a multiple of ${dp}, the number of ranks along "dp"`,
        received: String(batchSize),
      });
    }
    this.#ctx = ctx;
    this.#source = source;
    this.#settings = { ...settings, seed: settings.seed ?? ctx.seed };
    // The last token of a row has its label behind it.
    this.rows = Math.max(0, Math.floor((source.length - 1) / rowLength));
    this.batchesPerEpoch = Math.floor(this.rows / batchSize);
    if (this.batchesPerEpoch > 0) return;
    throw new OptionError({
      where: "DataLoader",
      expected: `at least ${batchSize * rowLength + 1} tokens for one batch`,
      received: String(source.length),
      remedy: "lower batchSize or rowLength",
    });
  }

  /** Batches taken since the first epoch began. */
  get steps(): number {
    return this.#epoch * this.batchesPerEpoch + this.#index;
  }

  /** The next batch; the first of the next epoch after the last of one. */
  next(): TokenBatch {
    if (this.#index === this.batchesPerEpoch) {
      this.#epoch++;
      this.#index = 0;
    }
    const batch = this.#read(this.#epoch, this.#index);
    this.#index++;
    return batch;
  }

  #read(epoch: number, index: number): TokenBatch {
    const { rowLength, batchSize, shuffle, seed } = this.#settings;
    const { dp = 1 } = this.#ctx.mesh.shape;
    const rowsPerRank = batchSize / dp;
    const firstRow = index * batchSize + (this.#ctx.mesh.coordinate.dp ?? 0) * rowsPerRank;
    const rows = Array.from({ length: rowsPerRank }, (_, i) => {
      const row = shuffle ? permute(firstRow + i, { count: this.rows, seed, epoch }) : firstRow + i;
      return this.#packRow(row * rowLength);
    });
    const mask = batchMask(rows, this.#settings);
    const { placement } = this.#settings;
    const resolvedPlacement = typeof placement === "function" ? placement(mask, rowLength) : placement;
    const [tokens, labels, positions] = (["tokens", "labels", "positions"] as const).map((name) => {
      const values = new Float32Array(rowsPerRank * rowLength);
      for (const [i, row] of rows.entries()) values.set(row[name], i * rowLength);
      return this.#shard(values, resolvedPlacement);
    });
    return {
      ...{ tokens: tokens!, labels: labels!, positions: positions!, mask, placement: resolvedPlacement, epoch, index },
      documents: rows.map(({ documents }) => documents),
      [Symbol.dispose]() {
        for (const tensor of [tokens!, labels!, positions!]) tensor.dispose();
      },
    };
  }

  #shard(values: Float32Array, placement: PlacementName | Placement): Tensor {
    const { rowLength, axes } = this.#settings;
    using fullBatch = fromArray(this.#ctx, values, [values.length / rowLength, rowLength]);
    return shard(this.#ctx, fullBatch, 1, { placement, ...(axes && { axes }) });
  }

  #packRow(start: number): PackedRow {
    const { rowLength, resetAttentionMask, resetPositionIds } = this.#settings;
    const { tokens, ends } = this.#source.read(start, rowLength + 1);
    const documentEndsInRow = ends.filter((end) => end < rowLength);
    const documentEnds = [...documentEndsInRow, rowLength];
    const documents = documentEnds.map((end, i) => end - (documentEndsInRow[i - 1] ?? 0));
    const labels = Float32Array.from({ length: rowLength }, (_, i) => tokens[i + 1]!);
    if (resetAttentionMask) for (const end of ends) if (end <= rowLength) labels[end - 1] = IGNORE_INDEX;
    const positions = new Float32Array(rowLength);
    let documentStart = 0;
    for (const end of documentEnds) {
      for (let i = documentStart; i < end; i++) positions[i] = resetPositionIds ? i - documentStart : i;
      documentStart = end;
    }
    return { tokens: Array.from({ length: rowLength }, (_, i) => tokens[i]!), labels, positions, documents };
  }

  /** Which batch comes next, for `load`. */
  state(): DataLoaderState {
    const { seed, shuffle, rowLength, batchSize } = this.#settings;
    const { length: tokens } = this.#source;
    return { epoch: this.#epoch, index: this.#index, seed, shuffle, tokens, rowLength, batchSize };
  }

  /**
   * Goes on where another loader was, on any mesh, placement included.
   *
   * @throws OptionError for a state of other rows, or another order, than this loader has.
   */
  load(state: DataLoaderState): void {
    const { epoch: _epoch, index: _index, ...expectedState } = this.state();
    const givenState = (state ?? {}) as Partial<DataLoaderState>;
    const differingNames = (Object.keys(expectedState) as (keyof typeof expectedState)[]).filter(
      (name) => givenState[name] !== expectedState[name],
    );
    const isCount = (value: unknown): boolean => Number.isSafeInteger(value) && (value as number) >= 0;
    if (
      differingNames.length > 0 ||
      !isCount(givenState.epoch) ||
      !isCount(givenState.index) ||
      givenState.index! > this.batchesPerEpoch
    ) {
      const formatFields = (stateFields: Partial<DataLoaderState>): string =>
        differingNames.map((name) => `${name} ${formatValue(stateFields[name])}`).join(", ");
      throw new OptionError({
        where: "DataLoader.load",
        expected:
          formatFields(expectedState) ||
          `an integer epoch ≥ 0 and an integer batch index from 0 to ${this.batchesPerEpoch}`,
        received:
          formatFields(givenState) || `epoch ${formatValue(givenState.epoch)}, index ${formatValue(givenState.index)}`,
        remedy: "create the loader with the tokens and options of the saved loader",
      });
    }
    this.#epoch = givenState.epoch!;
    this.#index = givenState.index!;
  }
}

const sourceOption = option.custom(
  "a TokenSource, such as tokenFile(…) or tokenArrays(…)",
  (value: unknown): value is TokenSource =>
    option.hasMethods<TokenSource>("read")(value) && Number.isSafeInteger(value.length),
);

interface PackedRow {
  readonly tokens: readonly number[];
  readonly labels: Float32Array;
  readonly positions: Float32Array;
  readonly documents: readonly number[];
}

/** One object for rows that are alike, so that what backends derive of masks is derived once. */
const causal: Mask = masks.causal();

function batchMask(rows: readonly PackedRow[], { resetAttentionMask }: DataLoaderSettings): Mask | readonly Mask[] {
  const rowMasks = rows.map(({ documents }) =>
    resetAttentionMask && documents.length > 1 ? masks.documents(documents, "causal") : causal,
  );
  return rowMasks.every((mask) => mask === rowMasks[0]) ? rowMasks[0]! : rowMasks;
}
