import { existsSync } from "node:fs";
import { join } from "node:path";
import { ClosedError, fromArray, Linear, OptionError } from "@mosaic/core";
import { expect, test } from "vitest";
import {
  AdamW,
  crossEntropy,
  Dropout,
  Embedding,
  LayerNorm,
  loadCheckpoint,
  MLP,
  RMSNorm,
  saveCheckpoint,
  writeSafetensors,
} from "../src/index.ts";
import { directory } from "./reference/directory.ts";
import { onMesh, onOneRank } from "./reference/world.ts";

test.each([Number.NaN, 1.5, Number.POSITIVE_INFINITY])("ignoreIndex %d is rejected", async (ignoreIndex) => {
  await onOneRank(async (ctx) => {
    using logits = fromArray(ctx, [1, 2], [1, 2]);
    using targets = fromArray(ctx, [0], [1]);
    expect(() => crossEntropy(logits as never, targets as never, undefined as never)).toThrow(
      /^crossEntropy: expected a Context from init\(\), received a Tensor/,
    );
    expect(() => crossEntropy(ctx, logits, targets, { ignoreIndex })).toThrow(
      /ignoreIndex: expected an integer, received/,
    );
  });
});

test.each([Number.NaN, -1, Number.POSITIVE_INFINITY])("epsilon and std of %d are rejected", async (value) => {
  await onOneRank(async (ctx) => {
    expect(() => new LayerNorm(ctx, 4, { epsilon: value })).toThrow(OptionError);
    expect(() => new RMSNorm(ctx, 4, { epsilon: value })).toThrow(OptionError);
    expect(() => new Embedding(ctx, 4, 4, { std: value })).toThrow(OptionError);
  });
});

test("a layer that is created without a context is rejected", () => {
  const createCall =
    (LayerClass: unknown, ...args: unknown[]) =>
    () =>
      new (LayerClass as new (...args: unknown[]) => object)(...args);
  const layers: [string, () => object][] = [
    ["Linear", createCall(Linear, 4, 4)],
    ["Embedding", createCall(Embedding, 4, 4)],
    ["LayerNorm", createCall(LayerNorm, 4)],
    ["RMSNorm", createCall(RMSNorm, 4)],
    ["MLP", createCall(MLP, { embedDim: 4 })],
    ["Dropout", createCall(Dropout, 0.5)],
  ];
  for (const [name, run] of layers) {
    expect(run).toThrow(OptionError);
    expect(run).toThrow(`${name}: expected a Context from init(), received`);
  }
});

test("a checkpoint that is not awaited before the context closes is named in the error", async () => {
  const path = join(directory(), "unawaited.safetensors");
  await onOneRank((ctx) => saveCheckpoint(ctx, path, { model: new Linear(ctx, 2, 2) }));
  for (const [name, call] of [
    ["saveCheckpoint", saveCheckpoint],
    ["loadCheckpoint", loadCheckpoint],
  ] as const) {
    const outcomes: Promise<unknown>[] = [];
    await onMesh({ dp: 2 }, (ctx) => {
      const completion = call(ctx, path, { model: new Linear(ctx, 2, 2) });
      outcomes.push(completion.catch((error: unknown) => error));
    });
    const errors = (await Promise.all(outcomes)) as Error[];
    const expectedError = `${name}: ${path}: expected an open context until the call has completed, received a closed context; await the call before the context closes`;
    expect(errors.map(({ message }) => message)).toContain(expectedError);
    expect(errors.find(({ message }) => message === expectedError)).toBeInstanceOf(ClosedError);
  }
});

test("an optimizer rejects parameters that are passed instead of their model", async () => {
  await onOneRank((ctx) => {
    using model = new Linear(ctx, 2, 1);
    expect(() => new AdamW(model.parameters() as unknown as Linear)).toThrow(
      "AdamW: expected a Module, received [a Tensor,a Tensor]; pass the model itself, not its parameters",
    );
  });
});

test("the error of a token out of range names the layer and the size of its table", async () => {
  await onOneRank(async (ctx) => {
    using embed = new Embedding(ctx, 4, 2);
    using out = embed.forward(fromArray(ctx, [1, 4], [2]));
    await expect(out.read()).rejects.toThrow(
      /received 4; in an Embedding, the indices are token ids and the table has 4 rows/,
    );
  });
});

const circularObject: { self?: unknown } = {};
circularObject.self = circularObject;
const unsavableValues: [invalidPart: string, data: unknown, message: RegExp][] = [
  ["a function", { epoch: 1, schedule: () => 1 }, /data\.schedule: .* received a function/],
  ["NaN", { curve: [1, Number.NaN] }, /data\.curve\[1\]: .* received NaN/],
  ["undefined in an array", { curve: [1, undefined] }, /data\.curve\[1\]: .* received undefined/],
  ["an array with a hole", { curve: new Array<number>(2) }, /data\.curve\[0\]: .* received undefined/],
  ["a bigint", [1n], /data\[0\]: .* received 1/],
  ["a Map", { seen: new Map() }, /data\.seen: .* received a Map/],
  ["a typed array", { curve: new Float32Array(2) }, /received a Float32Array/],
  ["a date", new Date(0), /data: .* received a Date/],
  ["a symbol", { a: Symbol("b") }, /received Symbol\(b\)/],
  [
    "a property whose key is a symbol",
    { a: { [Symbol("b")]: 1 } },
    /data\.a: .* received an object with the key Symbol\(b\)/,
  ],
  [
    "an array with a named property",
    { a: Object.assign([1], { mean: 1 }) },
    /data\.a: .* received an array with the key "mean"/,
  ],
  ["an object within itself", circularObject, /data\.self: .* received a circular reference/],
];

test.each(unsavableValues)("saveCheckpoint rejects data that contains %s", async (_, data, message) => {
  await onOneRank(async (ctx) => {
    using model = new Linear(ctx, 2, 1);
    const path = join(directory(), "refused.safetensors");
    await expect(saveCheckpoint(ctx, path, { model, data })).rejects.toThrow(OptionError);
    await expect(saveCheckpoint(ctx, path, { model, data })).rejects.toThrow(message);
    expect(existsSync(path)).toBe(false);
  });
});

test("data that JSON can represent is restored from a checkpoint", async () => {
  await onOneRank(async (ctx) => {
    using model = new Linear(ctx, 2, 1);
    const path = join(directory(), "kept.safetensors");
    const savedData = { loss: [1.5, -2e-9], note: "ä", none: null, done: true };
    const data = {
      shared: savedData,
      again: savedData,
      absent: undefined,
      bare: Object.assign(Object.create(null), { a: 1 }) as object,
    };
    await saveCheckpoint(ctx, path, { model, data });
    expect((await loadCheckpoint(ctx, path, { model })).data).toEqual({
      shared: savedData,
      again: savedData,
      bare: { a: 1 },
    });
  });
});

test.each([1, null, true, { a: "b" }])(
  "metadata %j, which is not a string, is rejected, and no file is written",
  async (metadataValue) => {
    const path = join(directory(), "metadata.safetensors");
    await expect(writeSafetensors(path, new Map(), { note: metadataValue as never })).rejects.toThrow(
      /metadata "note": expected a string/,
    );
    expect(existsSync(path)).toBe(false);
  },
);
