// Checkpoints are read and written a chunk at a time: how many bytes are read, and how much memory this takes.
import { type FileHandle, open, readFile, stat, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type Context, fromArray, Linear, type Module, runOnAllRanks, type Tensor } from "@mosaic/core";
import { afterEach, describe, expect, test, vi } from "vitest";
import {
  AdamW,
  FileError,
  fullyShard,
  loadCheckpoint,
  ModuleList,
  readStateDict,
  saveCheckpoint,
  Sequential,
} from "../src/index.ts";
import { directory } from "./reference/directory.ts";
import { onMesh, onOneRank } from "./reference/world.ts";

afterEach(() => void vi.restoreAllMocks());

const MIB = 2 ** 20;

type Read = FileHandle["read"];
type ReadArguments = [buffer: Uint8Array, offset: number, length: number, position: number];

/** Replaces `read` of all file handles. `replacement` receives the original function, bound to the handle. */
async function replaceRead(replacement: (read: Read, args: ReadArguments) => ReturnType<Read>): Promise<void> {
  const file = await open(new URL(import.meta.url));
  const prototype = Object.getPrototypeOf(file) as FileHandle;
  await file.close();
  const original = prototype.read;
  vi.spyOn(prototype, "read").mockImplementation(function read(this: FileHandle, ...args: unknown[]) {
    return replacement(original.bind(this), args as ReadArguments);
  });
}

const readAll = async (state: ReadonlyMap<string, Tensor>) =>
  Promise.all([...state].map(async ([name, x]) => [name, await x.read()]));

/** Blocks of 768 · 1024 weights: two chunks each. */
const buildModel = (ctx: Context): Sequential =>
  new Sequential(new ModuleList([0, 1, 2].map(() => new Linear(ctx, 768, 1024))) as Module as Linear);

test.each([
  { stage: 3, readsOfModel: 1 },
  // In stage 1, each rank has whole parameters.
  { stage: 1, readsOfModel: 4 },
] as const)("in stage $stage, 4 ranks read the model $readsOfModel times and the optimizer once", async (expected) => {
  const { stage, readsOfModel } = expected;
  const path = join(directory(), "state");
  await onMesh({ dp: 4 }, async (ctx) => {
    const model = fullyShard(ctx, buildModel(ctx), { stage });
    await saveCheckpoint(ctx, path, { model, optimizer: new AdamW(model) });
  });
  const fileBytes = (await stat(path)).size;
  let bytesReadTotal = 0;
  let maxLength = 0;
  await replaceRead(async (read, args) => {
    const result = await read(...args);
    bytesReadTotal += result.bytesRead;
    maxLength = Math.max(maxLength, args[2]);
    return result;
  });
  await onMesh({ dp: 4 }, async (ctx) => {
    const model = fullyShard(ctx, buildModel(ctx), { stage });
    await loadCheckpoint(ctx, path, { model, optimizer: new AdamW(model) });
  });
  const modelBytes = 4 * 3 * (768 * 1024 + 1024);
  const headerBytes = fileBytes - 3 * modelBytes;
  expect(bytesReadTotal).toBe(readsOfModel * modelBytes + 2 * modelBytes + 4 * headerBytes);
  expect(maxLength).toBeLessThanOrEqual(2 * MIB);
});

test("a file that becomes shorter while its tensors are read is an error on every rank", async () => {
  const path = join(directory(), "state");
  await onOneRank((ctx) => saveCheckpoint(ctx, path, { model: buildModel(ctx) }));
  const fileBytes = (await stat(path)).size;
  let isTruncated = false;
  await replaceRead(async (read, args) => {
    const [, , , position] = args;
    if (!isTruncated && position > fileBytes / 2) {
      isTruncated = true;
      return { bytesRead: 0, buffer: args[0] };
    }
    return read(...args);
  });
  const errors = await onMesh({ sp: 2 }, (ctx) =>
    loadCheckpoint(ctx, path, { model: buildModel(ctx) }).catch((error: unknown) => error as Error),
  );
  const messages = errors.map(String).sort();
  expect(messages[0]).toMatch(
    /FileError: loadCheckpoint: .*: expected a file that can be read, and that does not change until the promise resolves, received .* a file of at least \d+ bytes, .*; load a checkpoint again before training continues/,
  );
  expect(messages[1]).toMatch(/expected success on every rank, received a failure on rank/);
});

test("a dtype that cannot be converted is an error before anything is changed", () =>
  onOneRank(async (ctx) => {
    const path = join(directory(), "state");
    await saveCheckpoint(ctx, path, { model: new Linear(ctx, 2, 2) });
    // The bias [2] float32 becomes [2] with elements of 4 bytes of another dtype.
    const bytes = await readFile(path);
    const index = bytes.lastIndexOf('"F32"');
    await writeFile(path, Buffer.concat([bytes.subarray(0, index), Buffer.from('"U32"'), bytes.subarray(index + 5)]));
    const model = new Linear(ctx, 2, 2);
    const before = await readAll(model.stateDict());
    const error = await loadCheckpoint(ctx, path, { model }).catch((each: unknown) => each);
    expect(error).toBeInstanceOf(FileError);
    expect(String(error)).toMatch(/tensor "model\.\w+": expected dtype F64, F32, .* received U32/);
    expect(await readAll(model.stateDict())).toEqual(before);
  }));

test("a parameter that is not contiguous has the values of the file", () =>
  onOneRank(async (ctx) => {
    const path = join(directory(), "state");
    const buildTransposed = (): Linear => {
      const layer = new Linear(ctx, 3, 2, { bias: false });
      const weight = layer.weight;
      const transposed = weight.view({ shape: [2, 3], strides: [1, 2] });
      vi.spyOn(layer, "stateDict").mockImplementation(() => new Map([["weight", transposed]]));
      return layer;
    };
    const [saved, loaded] = [buildTransposed(), buildTransposed()];
    await saveCheckpoint(ctx, path, { model: saved });
    await loadCheckpoint(ctx, path, { model: loaded });
    expect(await loaded.weight.read()).toEqual(await saved.weight.read());
    expect(new Set(await loaded.weight.read()).size).toBe(6);
  }));

/** Returns the resident memory of this process in bytes: the current value, or the peak since `resetPeakMemory`. */
async function readMemoryField(field: "VmRSS" | "VmHWM"): Promise<number> {
  const status = await readFile("/proc/self/status", "utf8");
  return 1024 * Number(new RegExp(`${field}:\\s+(\\d+) kB`).exec(status)![1]);
}

/** Returns how much the resident memory grows at most while `body` runs. */
async function measurePeakMemory(body: () => Promise<unknown>): Promise<number> {
  const residentBefore = await readMemoryField("VmRSS");
  await writeFile("/proc/self/clear_refs", "5");
  await body();
  return (await readMemoryField("VmHWM")) - residentBefore;
}

const hasSameBytes = (a: Float32Array, b: Float32Array): boolean =>
  Buffer.compare(new Uint8Array(a.buffer), new Uint8Array(b.buffer)) === 0;

test("loading a checkpoint of 96 MiB needs less than 48 MiB beyond the model", () =>
  onOneRank(async (ctx) => {
    const path = join(directory(), "state");
    const model = new Linear(ctx, 4096, 6144, { bias: false });
    await saveCheckpoint(ctx, path, { model });
    const other = new Linear(ctx, 4096, 6144, { bias: false });
    await ctx.device.stream.synchronize();
    const peakIncrease = await measurePeakMemory(() => loadCheckpoint(ctx, path, { model: other }));
    expect(hasSameBytes(await other.weight.read(), await model.weight.read())).toBe(true);
    expect(peakIncrease).toBeLessThan(48 * MIB);
  }));

describe("with snapshot: false", () => {
  test.each([
    { stage: 0, mesh: { sp: 1 } },
    { stage: 0, mesh: { dp: 2, sp: 2 } },
    { stage: 1, mesh: { dp: 2, sp: 2 } },
    { stage: 3, mesh: { dp: 2, sp: 2 } },
  ] as const)("saveCheckpoint writes the same bytes, in stage $stage on $mesh", async ({ stage, mesh }) => {
    await onMesh(mesh, async (ctx) => {
      const folder = ctx.rank === 0 ? directory() : "";
      const [path] = await runOnAllRanks(ctx, "path", () => join(folder, "state"));
      const model = buildModel(ctx);
      if (stage > 0) fullyShard(ctx, model, { stage: stage as 1 | 3 });
      const training = { model, optimizer: new AdamW(model), data: 7 };
      await saveCheckpoint(ctx, path!, training);
      await saveCheckpoint(ctx, `${path}.chunks`, training, { snapshot: false });
      expect((await readFile(`${path}.chunks`)).equals(await readFile(path!))).toBe(true);
      // Ranks 2 and 3 are another host.
      const host = `n${ctx.rank >> 1}`;
      const hostPath = `${path}.${host}`;
      await saveCheckpoint(ctx, hostPath, training, { copies: "perHost", host, snapshot: false });
      const loaded = stage > 0 ? fullyShard(ctx, buildModel(ctx), { stage: stage as 1 | 3 }) : buildModel(ctx);
      await loadCheckpoint(ctx, hostPath, { model: loaded }, { copies: "perHost", host });
      const [expected, received] = [await readStateDict(ctx, model), await readStateDict(ctx, loaded)];
      for (const [name, { values }] of expected) {
        expect(hasSameBytes(received.get(name)!.values, values)).toBe(true);
      }
    });
  });

  test("a file that cannot be written is an error on every rank of a sharded model, and communication continues", async () => {
    await onMesh({ dp: 2 }, async (ctx) => {
      const folder = ctx.rank === 0 ? directory() : "";
      const [file] = await runOnAllRanks(ctx, "path", () => join(folder, "file"));
      await writeFile(file!, "");
      const model = fullyShard(ctx, buildModel(ctx), { stage: 3 });
      const save = (path: string) => saveCheckpoint(ctx, path, { model }, { snapshot: false });
      // First, the folder cannot be created. Then, the path is that of a folder. Last, the file cannot be created.
      for (const path of [join(file!, "state"), dirname(file!), `${file}${"x".repeat(255)}`]) {
        const error = await save(path).catch((each: unknown) => String(each));
        expect(error).toMatch(ctx.rank === 0 ? /FileError: / : /a failure on rank 0/);
      }
      await save(`${file}.valid`);
      expect((await stat(`${file}.valid`)).size).toBeGreaterThan(4 * 3 * 768 * 1024);
    });
  });

  test("a step before the promise resolves is an error, and the earlier file is unchanged", () =>
    onOneRank(async (ctx) => {
      const path = join(directory(), "state");
      using model = new Linear(ctx, 2, 1, { bias: false });
      using optimizer = new AdamW(model, { lr: 0.1 });
      await saveCheckpoint(ctx, path, { model, optimizer });
      const bytes = await readFile(path);
      const save = saveCheckpoint(ctx, path, { model, optimizer }, { snapshot: false });
      model.weight.grad = fromArray(ctx, [1, 1], [1, 2]);
      optimizer.step();
      await expect(save).rejects.toThrow(
        /^saveCheckpoint: .*: expected parameters and optimizer states that do not change before the promise resolves, received "\w+\.weight.*", which was modified meanwhile; await saveCheckpoint before the next step/,
      );
      expect((await readFile(path)).equals(bytes)).toBe(true);
      optimizer.zeroGrad();
      await saveCheckpoint(ctx, path, { model, optimizer }, { snapshot: false });
      expect((await loadCheckpoint(ctx, path, { model, optimizer })).steps).toBe(1);
    }));

  test("saving 96 MiB needs less than 48 MiB beyond the model", () =>
    onOneRank(async (ctx) => {
      const path = join(directory(), "state");
      const model = new Linear(ctx, 4096, 6144, { bias: false });
      await ctx.device.stream.synchronize();
      const measure = (snapshot: boolean) =>
        measurePeakMemory(() => saveCheckpoint(ctx, path, { model }, { snapshot }));
      expect(await measure(false)).toBeLessThan(48 * MIB);
      expect(await measure(true)).toBeGreaterThan(90 * MIB);
    }));
});
