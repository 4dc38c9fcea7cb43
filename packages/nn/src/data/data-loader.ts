import {
  checkContext,
  type Context,
  dataParallelRank,
  dataParallelSize,
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

/** Returns the placement of a batch for the mask of the rank's rows: one mask for all rows, or one for each. */
export type PlacementFunction = (mask: Mask | readonly Mask[], length: number) => PlacementName | Placement;

export const dataLoaderOptions = defineOptions("DataLoader", {
  /** S, the number of tokens of a row. */
  rowLength: option.integer({ min: 1 }),
  /**
   * Number of rows of a batch over all ranks. They are divided equally over the data-parallel ranks, so this must be a
   * multiple of their number.
   */
  batchSize: option.integer({ min: 1 }),
  /** Whether each epoch has a different order of rows, which is determined by the seed and the epoch. Default true. */
  shuffle: option.boolean({ default: true }),
  /** Seed of the order. Default: the context's. */
  seed: option.integer({ min: 0, optional: true }),
  /**
   * Whether tokens attend only to their own document, and no label is a token of another document; as in Megatron.
   * Default true.
   */
  resetAttentionMask: option.boolean({ default: true }),
  /** Whether positions start at 0 in each document, instead of in each row; as in Megatron. Default false. */
  resetPositionIds: option.boolean({ default: false }),
  /**
   * How rows are sharded over the ranks that share them: a placement as in `shard`, or a function of the batch's mask
   * and the row length, such as one that calls `dispatch`. Default "contiguous".
   */
  placement: option.either(
    option.placement(),
    option.custom("a function that maps a mask to a placement", option.isFunction<PlacementFunction>),
    { default: "contiguous" },
  ),
  /** Mesh axes along which rows are sharded, outermost first. Default: all that are not data-parallel. */
  axes: option.array(option.string(), { optional: true }),
});
/** Options of DataLoader. */
export type DataLoaderOptions = OptionsOf<typeof dataLoaderOptions>;
type DataLoaderSettings = ResolvedOptionsOf<typeof dataLoaderOptions>;

/** This rank's part of a batch: b of its rows, and s tokens of each. */
export interface TokenBatch extends Disposable {
  /** [b,s] float32. */
  readonly tokens: Tensor;
  /**
   * The token that follows each token [b,s]; −100, which losses ignore, at the end of a document with
   * `resetAttentionMask`.
   */
  readonly labels: Tensor;
  /** Position of each token [b,s], in its document or in its row. */
  readonly positions: Tensor;
  /** The mask over a row: one mask if it is the same for all rows, otherwise one for each row. */
  readonly mask: Mask | readonly Mask[];
  /** Lengths of the documents in each of this rank's rows. */
  readonly documents: readonly (readonly number[])[];
  readonly placement: PlacementName | Placement;
  readonly epoch: number;
  /** Index of the batch in the epoch, from 0. */
  readonly index: number;
}

/** The state that determines the next batch: plain JSON, for the `data` of `saveCheckpoint`. */
export interface DataLoaderState {
  readonly epoch: number;
  /** Number of batches of the epoch that were returned. */
  readonly index: number;
  readonly seed: number;
  readonly shuffle: boolean;
  readonly tokens: number;
  readonly rowLength: number;
  readonly batchSize: number;
}

/** Label of a token without successor: the default `ignoreIndex` of losses. */
const IGNORE_INDEX = -100;

/**
 * Packs documents of tokens into rows, one after another and split at row ends. Returns each rank's part of each batch:
 * ranks along data-parallel axes have different rows, ranks along other axes have shards of the same rows. Labels are
 * computed before rows are sharded. The rows of a batch depend only on the seed, the epoch and the index of the batch,
 * so that losses are the same on every mesh. Rows at the end of an epoch that do not fill a batch are skipped; with
 * `shuffle`, the next epoch has another order.
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
 * @throws OptionError for a batch size that is not a multiple of the number of data-parallel ranks, and for fewer
 * tokens than one batch needs.
 */
export class DataLoader {
  /** Number of rows of an epoch, before batching. */
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
    const numReplicas = dataParallelSize(ctx.mesh);
    if (batchSize % numReplicas !== 0) {
      throw new OptionError({
        where: "DataLoader: batchSize",
        expected: `a multiple of ${numReplicas}, the number of data-parallel ranks`,
        received: String(batchSize),
      });
    }
    this.#ctx = ctx;
    this.#source = source;
    this.#settings = { ...settings, seed: settings.seed ?? ctx.seed };
    // The label of a row's last token is the token after the row.
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

  /** Number of batches returned since the start of the first epoch. */
  get steps(): number {
    return this.#epoch * this.batchesPerEpoch + this.#index;
  }

  /** Returns the next batch. After the last batch of an epoch, this is the first of the next epoch. */
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
    const { mesh } = this.#ctx;
    const rowsPerRank = batchSize / dataParallelSize(mesh);
    const firstRow = index * batchSize + dataParallelRank(mesh) * rowsPerRank;
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

  /** Returns the state that determines the next batch, for `load`. */
  state(): DataLoaderState {
    const { seed, shuffle, rowLength, batchSize } = this.#settings;
    const { length: tokens } = this.#source;
    return { epoch: this.#epoch, index: this.#index, seed, shuffle, tokens, rowLength, batchSize };
  }

  /**
   * Continues from the state of another loader. The mesh and the placement may differ.
   *
   * @throws OptionError if the tokens, the rows or their order differ from this loader's.
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

/** One object for all such rows, so that backends derive their data of a mask only once. */
const causal: Mask = masks.causal();

function batchMask(rows: readonly PackedRow[], { resetAttentionMask }: DataLoaderSettings): Mask | readonly Mask[] {
  const rowMasks = rows.map(({ documents }) =>
    resetAttentionMask && documents.length > 1 ? masks.documents(documents, "causal") : causal,
  );
  return rowMasks.every((mask) => mask === rowMasks[0]) ? rowMasks[0]! : rowMasks;
}
