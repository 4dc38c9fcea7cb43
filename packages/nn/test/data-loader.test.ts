import { writeFileSync } from "node:fs";
import { join } from "node:path";
import {
  type Context,
  type Coordinate,
  DisposedError,
  type Mask,
  masks,
  OptionError,
  positions,
  layoutOf,
  rand,
} from "@mosaic/core";
import { describe, expect, test } from "vitest";
import {
  DataLoader,
  type DataLoaderOptions,
  FileError,
  type TokenBatch,
  tokenArrays,
  tokenFile,
} from "../src/index.ts";
import { permute, philoxWord } from "../src/data/permutation.ts";
import { directory, isOpen } from "./reference/directory.ts";
import { generateNumbers } from "./reference/numbers.ts";
import { getBatchShare, onOneRank, onMesh } from "./reference/world.ts";

/** Documents of lengths 1 to 23. Each token encodes its position: 100 · document + index. */
const documents = generateNumbers(40, 1).map((x, d) =>
  Array.from({ length: 12 + Math.floor(11 * x) }, (_, i) => 100 * d + i),
);
const stream = documents.flat();
/** Rows of documents: whole ones, several in a row, an empty one at its start, and one over several rows. */
const alignedDocuments = [24, 24, 24, 24, 0, 1, 23, 7, 17, 70, 2, 24, 1].map((length, d) =>
  Array.from({ length }, (_, i) => 100 * d + i),
);
const options = { rowLength: 24, batchSize: 4, seed: 9 } as const;

const readBatch = async (batch: TokenBatch) => ({
  tokens: Array.from(await batch.tokens.read()),
  labels: Array.from(await batch.labels.read()),
  positions: Array.from(await batch.positions.read()),
});

test.each([
  ["end anywhere", documents],
  ["end with rows", alignedDocuments],
])("rows hold the tokens in order, and are reset at documents if requested: %s", async (_, documents) => {
  const stream = documents.flat();
  await onOneRank(async (ctx) => {
    for (const resetAtDocuments of [true, false]) {
      const settings = {
        ...options,
        shuffle: false,
        resetAttentionMask: resetAtDocuments,
        resetPositionIds: resetAtDocuments,
      };
      const loader = new DataLoader(ctx, tokenArrays(documents), settings);
      for (let batchStart = 0; batchStart < loader.batchesPerEpoch * 4 * 24; batchStart += 4 * 24) {
        using batch = loader.next();
        const { tokens, labels, positions: positionIds } = await readBatch(batch);
        expect(tokens).toEqual(stream.slice(batchStart, batchStart + 4 * 24));
        const isLast = (token: number) => token % 100 === documents[Math.floor(token / 100)]!.length - 1;
        expect(labels).toEqual(
          tokens.map((token, i) => (resetAtDocuments && isLast(token) ? -100 : stream[batchStart + i + 1])),
        );
        for (const [row, lengths] of batch.documents.entries()) {
          const rowTokens = tokens.slice(24 * row, 24 * row + 24);
          expect(lengths.reduce((sum, each) => sum + each, 0)).toBe(24);
          const documentStarts = lengths.map((_, i) => lengths.slice(0, i).reduce((sum, each) => sum + each, 0));
          // A document starts at a token with index 0, or at the start of the row.
          expect(documentStarts).toEqual(rowTokens.flatMap((token, i) => (i === 0 || token % 100 === 0 ? [i] : [])));
          const expected = rowTokens.map((_, i) =>
            resetAtDocuments ? i - documentStarts.findLast((begin) => begin <= i)! : i,
          );
          expect(positionIds.slice(24 * row, 24 * row + 24)).toEqual(expected);
          const mask = Array.isArray(batch.mask) ? (batch.mask as Mask[])[row]! : (batch.mask as Mask);
          const expectedMask = resetAtDocuments ? masks.documents(lengths, "causal") : masks.causal();
          expect(masks.maskArea(mask, 24, 24)).toBe(masks.maskArea(expectedMask, 24, 24));
        }
        const haveBoundaries = batch.documents.some(({ length }) => length > 1);
        expect(Array.isArray(batch.mask)).toBe(resetAtDocuments && haveBoundaries);
      }
    }
  });
});

/** Gathers all tokens and labels of some batches from every rank's shards. */
async function gatherBatches(
  mesh: Coordinate,
  extraOptions: Partial<DataLoaderOptions>,
  takeBatches: (loader: DataLoader) => TokenBatch[],
) {
  const batchesByRank = await onMesh(mesh, async (ctx) => {
    const loader = new DataLoader(ctx, tokenArrays(documents), { ...options, ...extraOptions });
    const batches = takeBatches(loader);
    const rankBatches = [];
    for (const batch of batches) {
      const { tokens, labels } = await readBatch(batch);
      const { placement } = batch;
      const layout = layoutOf({
        mesh: ctx.mesh.shape,
        axes: extraOptions.axes ?? ctx.mesh.axes.filter((axis) => axis === "sp"),
        placement,
        length: 24,
      });
      rankBatches.push({
        tokens,
        labels,
        at: Array.from(positions(layout.spans(ctx.mesh.coordinate))),
        share: getBatchShare(ctx).index,
      });
    }
    return rankBatches;
  });
  return batchesByRank[0]!.map((_, index) => {
    const [tokens, labels] = [Array<number>(4 * 24), Array<number>(4 * 24)];
    for (const rank of batchesByRank) {
      const { at, share, ...rankValues } = rank[index]!;
      const rows = rankValues.tokens.length / at.length;
      for (let i = 0; i < rankValues.tokens.length; i++) {
        const globalIndex = (share * rows + Math.floor(i / at.length)) * 24 + at[i % at.length]!;
        tokens[globalIndex] = rankValues.tokens[i]!;
        labels[globalIndex] = rankValues.labels[i]!;
      }
    }
    return { tokens, labels };
  });
}

const takeCount = (count: number) => (loader: DataLoader) => Array.from({ length: count }, () => loader.next());
/** A placement as a dispatch solver may return it: chunks of 4 rows, dealt by a custom rule. */
const expectedBatches = {
  name: "dealt",
  spans: (rank: number, count: number, length: number) =>
    Array.from({ length: length / 4 }, (_, i) => i)
      .filter((i) => (i * i) % count === rank || (count > 1 && (i * i) % count >= count && rank === 0))
      .map((i) => ({ start: 4 * i, length: 4, step: 1 })),
};

describe("batches", () => {
  test.each([
    [{ dp: 2, sp: 1 }, {}],
    [{ dp: 4 }, {}],
    [{ dp: 2, sp: 2 }, { placement: "zigzag" }],
    [{ dp_replicate: 2, dp_shard: 2, sp: 2 }, { placement: "zigzag" }],
    [{ dp_shard: 2, sp: 1, dp_replicate: 1 }, {}],
    [{ sp: 3 }, { placement: "striped" }],
    [{ sp: 2 }, { placement: () => expectedBatches }],
    [{ sp: 2, copy: 2 }, { axes: ["sp"] }],
  ] as const)("are the same as on one rank, on %o with %o", async (mesh, extraOptions) => {
    const expected = await gatherBatches({ sp: 1 }, {}, takeCount(20));
    expect(await gatherBatches(mesh, extraOptions as Partial<DataLoaderOptions>, takeCount(20))).toEqual(expected);
  });

  test("continue on another mesh from a saved state", async () => {
    const expected = await gatherBatches({ sp: 1 }, {}, takeCount(20));
    for (const resumeBatch of [1, 4, 5, 13]) {
      const [state] = await onMesh({ dp: 2 }, (ctx) => {
        const loader = new DataLoader(ctx, tokenArrays(documents), options);
        for (let i = 0; i < resumeBatch; i++) loader.next()[Symbol.dispose]();
        expect(loader.steps).toBe(resumeBatch);
        return JSON.parse(JSON.stringify(loader.state()));
      });
      const resumeAfterLoad = (loader: DataLoader) => {
        loader.load(state);
        return takeCount(20 - resumeBatch)(loader);
      };
      expect(await gatherBatches({ dp: 2, sp: 2 }, { placement: "zigzag" }, resumeAfterLoad)).toEqual(
        expected.slice(resumeBatch),
      );
    }
  });
});

test("every epoch has all rows in another order, which depends on the seed", async () => {
  await onOneRank(async (ctx) => {
    const readEpochOrders = async (seed: number) => {
      const loader = new DataLoader(ctx, tokenArrays(documents), { rowLength: 10, batchSize: 1, seed });
      const orders: number[][] = [];
      for (let epoch = 0; epoch < 3; epoch++) {
        const order: number[] = [];
        for (let i = 0; i < loader.batchesPerEpoch; i++) {
          using batch = loader.next();
          expect([batch.epoch, batch.index]).toEqual([epoch, i]);
          order.push(stream.indexOf((await batch.tokens.read())[0]!) / 10);
        }
        orders.push(order);
        expect(order.toSorted((a, b) => a - b)).toEqual(Array.from({ length: loader.rows }, (_, i) => i));
      }
      return orders;
    };
    const [firstSeedOrders, otherSeedOrders] = [await readEpochOrders(1), await readEpochOrders(2)];
    expect(await readEpochOrders(1)).toEqual(firstSeedOrders);
    const distinctOrders = new Set([...firstSeedOrders, ...otherSeedOrders].map(String));
    expect(distinctOrders.size).toBe(6);
  });
});

test("rows that one epoch skips are in batches of later epochs", async () => {
  await onOneRank(async (ctx) => {
    const loader = new DataLoader(ctx, tokenArrays(documents), { rowLength: 10, batchSize: 20 });
    expect(loader.rows % 20).toBeGreaterThan(0);
    const rows = new Set<number>();
    for (let i = 0; i < 20 * loader.batchesPerEpoch; i++) {
      using batch = loader.next();
      const tokens = await batch.tokens.read();
      for (let row = 0; row < 20; row++) rows.add(stream.indexOf(tokens[10 * row]!) / 10);
    }
    expect(rows.size).toBe(loader.rows);
  });
});

test("the default seed of the order is the context's", async () => {
  await onOneRank((ctx) => {
    const { seed: _, ...unseededOptions } = options;
    expect(new DataLoader(ctx, tokenArrays(documents), unseededOptions).state().seed).toBe(23);
  }, 23);
});

test("a disposed batch leaves no memory allocated", async () => {
  await onOneRank(async (ctx) => {
    const loader = new DataLoader(ctx, tokenArrays(documents), options);
    const allocatedBefore = ctx.device.memory().allocated;
    const batch = loader.next();
    expect(ctx.device.memory().allocated - allocatedBefore).toBe(3 * 4 * 24 * 4);
    batch[Symbol.dispose]();
    expect(ctx.device.memory().allocated).toBe(allocatedBefore);
  });
});

test("the order of rows is the same in every version, so that checkpoints can be continued", () => {
  const orderOf = (epoch: number) => Array.from({ length: 10 }, (_, i) => permute(i, { count: 10, seed: 3, epoch }));
  expect([orderOf(0), orderOf(1)]).toEqual([
    [5, 6, 1, 4, 7, 2, 0, 8, 3, 9],
    [6, 8, 2, 7, 9, 1, 4, 0, 3, 5],
  ]);
});

test("permute is a permutation for every count, and philoxWord gives the numbers of the kernel", async () => {
  for (const count of [1, 2, 3, 5, 16, 17, 100, 1000]) {
    const permutedIndices = Array.from({ length: count }, (_, i) => permute(i, { count, seed: 3, epoch: 1 }));
    expect(permutedIndices.toSorted((a, b) => a - b)).toEqual(Array.from({ length: count }, (_, i) => i));
  }
  // The mean displacement of a random permutation of n is n / 3.
  const displacements = Array.from({ length: 5000 }, (_, i) =>
    Math.abs(permute(i, { count: 5000, seed: 1, epoch: 0 }) - i),
  );
  expect(displacements.reduce((sum, each) => sum + each, 0) / 5000 / 5000).toBeCloseTo(1 / 3, 1);
  await onOneRank(async (ctx) => {
    for (const seed of [77, 2 ** 32 + 77, Number.MAX_SAFE_INTEGER]) {
      using x = rand(ctx, [100], { seed, stream: 5 });
      const values = await x.read();
      // A block has four elements; uniform numbers are the upper 24 bits.
      for (let i = 0; i < 25; i++) expect(values[4 * i]).toBe(Math.floor(philoxWord(i, seed, 5) / 256) / 2 ** 24);
    }
  });
});

test("token files of 16 and 32 bits give the same batches as token arrays", async () => {
  await onOneRank(async (ctx) => {
    const separator = 65_000;
    const terminatedDocuments = documents.map((each) => [...each, separator]);
    for (const [dtype, TokenArray] of [
      ["uint16", Uint16Array],
      ["uint32", Uint32Array],
    ] as const) {
      const path = join(directory(), "tokens.bin");
      writeFileSync(path, TokenArray.from(terminatedDocuments.flat()));
      using source = tokenFile(path, { dtype, separator });
      const [fileLoader, arrayLoader] = [source, tokenArrays(terminatedDocuments)].map(
        (each) => new DataLoader(ctx, each, options),
      );
      expect(source.length).toBe(terminatedDocuments.flat().length);
      for (let i = 0; i < 10; i++) {
        using a = fileLoader!.next();
        using b = arrayLoader!.next();
        expect(await readBatch(a)).toEqual(await readBatch(b));
        expect(a.documents).toEqual(b.documents);
      }
    }
  });
});

test("files and arrays have the same tokens and ends in every span", () => {
  const path = join(directory(), "spans.bin");
  writeFileSync(path, Uint32Array.from([5, 0, 7, 8, 0, 2 ** 24, 0]));
  using file = tokenFile(path, { dtype: "uint32", separator: 0 });
  const arrays = tokenArrays([[5, 0], [], [7, 8, 0], new Uint32Array([2 ** 24, 0])]);
  for (let start = 0; start <= 7; start++) {
    for (let count = 0; start + count <= 7; count++) {
      const [fromFile, fromArrays] = [file, arrays].map((source) => source.read(start, count));
      expect([...(fromFile!.tokens as Uint32Array)]).toEqual([...(fromArrays!.tokens as Uint32Array)]);
      expect(fromFile!.ends).toEqual(fromArrays!.ends);
      expect(fromFile!.ends).toEqual([2, 5, 7].map((end) => end - start).filter((end) => end > 0 && end <= count));
    }
  }
});

test("tokenFile closes the file when it is disposed or rejected", () => {
  const path = join(directory(), "open.bin");
  writeFileSync(path, new Uint8Array(6));
  {
    using source = tokenFile(path);
    expect([source.length, isOpen(path)]).toEqual([3, true]);
  }
  expect(isOpen(path)).toBe(false);
  expect(() => tokenFile(path, { dtype: "uint32" })).toThrow(/a multiple of 4 bytes, received 6/);
  expect(isOpen(path)).toBe(false);
  const folder = directory();
  expect(() => tokenFile(folder)).toThrow(FileError);
  expect(isOpen(folder)).toBe(false);
});

test("a disposed token file neither reads nor closes a file that was opened afterwards", () => {
  const [path, otherPath] = [join(directory(), "tokens.bin"), join(directory(), "other.bin")];
  writeFileSync(path, Uint16Array.from([1, 2]));
  writeFileSync(otherPath, Uint16Array.from([3, 4]));
  const source = tokenFile(path);
  source[Symbol.dispose]();
  using otherSource = tokenFile(otherPath);
  expect(() => source.read(0, 2)).toThrow(DisposedError);
  source[Symbol.dispose]();
  expect([...(otherSource.read(0, 2).tokens as Uint32Array)]).toEqual([3, 4]);
});

test("invalid options, token files and states of other rows are rejected", async () => {
  const createLoader = (ctx: Context, extraOptions: Partial<DataLoaderOptions> = {}) =>
    new DataLoader(ctx, tokenArrays(documents), { ...options, ...extraOptions });
  await onMesh({ dp: 2 }, (ctx) => {
    expect(() => createLoader(ctx, { batchSize: 3 })).toThrow(
      /a multiple of 2, the number of data-parallel ranks, received 3/,
    );
    expect(() => createLoader(ctx, { rowLength: 400 })).toThrow(/at least 1601 tokens for one batch, received \d+/);
    const state = createLoader(ctx).state();
    expect(() => createLoader(ctx, { seed: 8, rowLength: 12 }).load(state)).toThrow(
      /expected seed 8, rowLength 12, received seed 9, rowLength 24/,
    );
    const loader = createLoader(ctx);
    loader.load({ ...state, index: loader.batchesPerEpoch });
    expect(() => loader.load({ ...state, index: loader.batchesPerEpoch + 1 })).toThrow(
      /an integer epoch ≥ 0 and an integer batch index from 0 to/,
    );
    for (const invalid of [{ epoch: -1 }, { epoch: 0.5 }, { index: -1 }, { index: 0.5 }, { index: null }])
      expect(() => loader.load({ ...state, ...(invalid as object) })).toThrow(/an integer epoch ≥ 0 and an integer/);
    expect(loader.state().index).toBe(loader.batchesPerEpoch);
    expect(() => new DataLoader(ctx, [] as never, options)).toThrow(/a TokenSource/);
  });
  expect(() => tokenArrays([[1, -1]])).toThrow(OptionError);
  const path = join(directory(), "odd.bin");
  writeFileSync(path, new Uint8Array(7));
  expect(() => tokenFile(path)).toThrow(/a multiple of 2 bytes, received 7/);
  writeFileSync(path, Uint32Array.from([1, 2 ** 25]));
  using largeTokenFile = tokenFile(path, { dtype: "uint32" });
  expect(() => largeTokenFile.read(0, 2)).toThrow(/an integer from 0 to 2²⁴/);
  expect(() => largeTokenFile.read(1, 2)).toThrow(/\[start, count\] within the 2 tokens/);
});

test("tokenFile rejects a path without a file and a directory with a FileError", () => {
  const missing = join(directory(), "missing.bin");
  expect(() => tokenFile(missing)).toThrow(FileError);
  expect(() => tokenFile(missing)).toThrow(
    /^tokenFile: \S+missing\.bin: expected a file of tokens, received ENOENT: .*; correct the path, or the permissions/,
  );
  expect(() => tokenFile(directory())).toThrow(/expected a file of tokens, received a directory; correct the path/);
});
