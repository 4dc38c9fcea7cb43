import { spawnSync } from "node:child_process";
import { describe, expect, test } from "vitest";
import { ChunkBuffers, recvTransfers, sendTransfers } from "../src/context-parallel/buffers.ts";
import { dependencyTable, dependencyTableCache, LayoutCache, modulo } from "../src/context-parallel/dependencies.ts";
import {
  axisLength,
  parseTrafficOptions,
  reverseFlow,
  totalTraffic,
  trafficOptions,
} from "../src/context-parallel/traffic.ts";
import { formatShards, formatSlices, hashNumbers } from "../src/attention/format.ts";
import { fromArray, ones, zeros } from "../src/creation.ts";
import { MosaicError, OptionError } from "../src/errors.ts";
import { compileKernel } from "../src/kernels/operands.ts";
import { getOperands, getTensor } from "../src/kernels/operands.ts";
import { versionedKernels } from "../src/kernels/operands.ts";
import { visibleRows, visiblePairs } from "../src/mask/visibility.ts";
import { clipKeys, clipQueries, visibleKeyRange } from "../src/mask/slice.ts";
import { findOverlap, sliceIntersects, slicesOverlap } from "../src/mask/overlap.ts";
import type { Slice } from "../src/mask/slice.ts";
import { isVisible } from "../src/mask/visibility.ts";
import * as option from "../src/option.ts";
import { checkArgument, defineOptions } from "../src/options.ts";
import { Linear } from "../src/modules/linear.ts";
import { layoutOf } from "../src/placement/layout.ts";
import { joinSpans, type Span, spansLength } from "../src/placement/span.ts";
import { FinalizedStorage } from "../src/storage.ts";
import { ReferenceDevice } from "./reference/index.ts";

const slice: Slice = { q0: 0, q1: 4, k0: 0, k1: 4, type: "causal" };
const span: Span = { start: 0, length: 4, step: 1 };
const slices: readonly unknown[] = [
  ...[undefined, null, 1, "causal", {}, []],
  ...(["q0", "q1", "k0", "k1"] as const).flatMap((name) =>
    [Number.NaN, 0.5, "1"].map((x) => ({ ...slice, [name]: x })),
  ),
  ...[undefined, 1, "diagonal", "toString"].map((type) => ({ ...slice, type })),
];
const spans: readonly unknown[] = [
  ...[undefined, null, 1, {}],
  ...[0, 0.5, -1, Number.NaN, "1"].map((step) => ({ ...span, step })),
  ...[-1, 0.5, Number.NaN, "1"].map((length) => ({ ...span, length })),
  ...[0.5, Number.NaN, Infinity, "1"].map((start) => ({ ...span, start })),
];

/** Functions that take a slice, or a span. */
const sliceFunctions: Readonly<Record<string, (slice: Slice) => unknown>> = {
  visibleKeyRange: (each) => visibleKeyRange(each, 1),
  visibleRows: (each) => visibleRows(span, each),
  clipQueries: (each) => clipQueries(each, 0, 2),
  clipKeys: (each) => clipKeys(each, 0, 2),
  slicesOverlap: (each) => slicesOverlap(each, slice),
  "slicesOverlap, the second": (each) => slicesOverlap(slice, each),
  sliceIntersects: (each) => sliceIntersects(each, slice),
  findOverlap: (each) => findOverlap([slice, each]),
  visiblePairs: (each) => visiblePairs([span], [span], [each]),
  isVisible: (each) => isVisible([span], [span], [each]),
  formatSlices: (each) => formatSlices([each]),
};
const spanFunctions: Readonly<Record<string, (span: Span) => unknown>> = {
  visibleRows: (each) => visibleRows(each, slice),
  "visiblePairs, queries": (each) => visiblePairs([each], [span], [slice]),
  "visiblePairs, keys": (each) => visiblePairs([span], [each], [slice]),
  "isVisible, queries": (each) => isVisible([each], [span], [slice]),
  "isVisible, keys": (each) => isVisible([span], [each], [slice]),
  formatShards: (each) => formatShards([[each]]),
};

describe("functions on slices and spans", () => {
  test.each(Object.entries(sliceFunctions))("reject an invalid slice: %s", (_, call) => {
    call(slice);
    for (const invalidSlice of slices)
      expect(() => call(invalidSlice as Slice), JSON.stringify(invalidSlice)).toThrow(OptionError);
  });

  test.each(Object.entries(spanFunctions))("reject an invalid span: %s", (_, call) => {
    call(span);
    for (const invalidSpan of spans)
      expect(() => call(invalidSpan as Span), JSON.stringify(invalidSpan)).toThrow(OptionError);
  });
});

const layout = layoutOf({ mesh: { sp: 2 }, axes: ["sp"], length: 8 });
const call = { at: { sp: 0 }, queries: layout, keys: layout, mask: [slice] };
const flow = { bytesPerRow: [8], sent: [4], received: [4] };
const asNever = (value: unknown): never => value as never;

const calls: Readonly<Record<string, () => unknown>> = {
  "spansLength of a number": () => spansLength(asNever([3])),
  "joinSpans of a span": () => joinSpans(asNever(span)),
  "joinSpans of a span without a step": () => joinSpans(asNever([{ start: 0, length: 1 }])),
  "dependencyTable without a call": () => dependencyTable({ axis: "sp", size: 2 }, asNever(undefined), { sp: 0 }),
  "dependencyTable of no rank": () => dependencyTable({ axis: "sp", size: 0 }, call, { sp: 0 }),
  "dependencyTable of a mask by name": () =>
    dependencyTable({ axis: "sp", size: 2 }, { ...call, mask: asNever(["causal"]) }, { sp: 0 }),
  "dependencyTableCache without an axis": () => dependencyTableCache(asNever({})),
  "LayoutCache.getOrCreate nothing": () => new LayoutCache(["sp"]).getOrCreate(asNever(undefined), { sp: 0 }, () => 1),
  "LayoutCache without axes": () => new LayoutCache(asNever(3)),
  "modulo of no ranks": () => modulo(1, 0),
  "modulo of NaN": () => modulo(Number.NaN, 2),
  "sendTransfers of nothing": () => sendTransfers(asNever(undefined), 0),
  "recvTransfers of nothing": () => recvTransfers(asNever({ wire: 1 }), 0),
  "reverseFlow of nothing": () => reverseFlow(asNever(undefined), [8]),
  "totalTraffic of a string": () => totalTraffic([{ ...flow, sent: asNever(["4"]) }]),
  "parseTrafficOptions without a declaration": () => parseTrafficOptions(asNever(undefined), {}),
  "parseTrafficOptions of null": () => parseTrafficOptions(trafficOptions, asNever(null)),
  "axisLength without a mesh": () => axisLength("test", asNever(undefined), { axis: "sp", from: { sp: 0 } }),
  "hashNumbers of strings": () => hashNumbers(asNever(["1"])),
  "getOperands of an unknown kernel": () => getOperands(asNever("toString")),
  "getTensor of an object that is not an operand": () => getTensor(asNever({}), []),
  "versionedKernels of a number": () => versionedKernels(asNever({ fill: 1 })),
  "versionedKernels of an unknown kernel": () => versionedKernels(asNever({ wrong() {} })),
  "compileKernel without source": () => compileKernel("fill", asNever(undefined), []),
  "compileKernel of source with a syntax error": () => compileKernel("fill", "](", []),
  "a Storage without free": () => new FinalizedStorage(1n, 4, asNever(undefined)),
  "a Storage of NaN bytes": () => new FinalizedStorage(1n, Number.NaN, () => {}),
  "defineOptions of a number in place of an option": () => defineOptions("test", asNever({ a: 1 })),
  "checkArgument by an empty object in place of an option": () => checkArgument("test", 1, asNever({})),
  "an integer option whose minimum is a string": () => option.integer({ min: asNever("1") }),
  "an array option without an element option": () => option.array(asNever(undefined)),
  "a string option whose settings are a string": () => option.string(asNever("optional")),
};

test.each(Object.entries(calls))("an OptionError is thrown for %s", (_, run) => expect(run).toThrow(OptionError));

test("parse reports the invalid option even if the name passed to it is a symbol", () => {
  expect(() => defineOptions("test", { a: option.integer() }).parse({ a: "b" }, asNever(Symbol("where")))).toThrow(
    "Symbol(where): a: expected an integer",
  );
});

describe("ChunkBuffers", () => {
  const device = new ReferenceDevice();
  const x = fromArray(device, new Array<number>(16).fill(1), [1, 2, 2, 4]);
  const otherDeviceTensor = fromArray(new ReferenceDevice(), new Array<number>(16).fill(1), [1, 2, 2, 4]);
  const buffers = new ChunkBuffers({ device, order: "sbhd", slotRows: 4 });
  const chunk = buffers.copy([x]);
  const calls: Readonly<Record<string, () => unknown>> = {
    "undefined options": () => new ChunkBuffers(asNever(undefined)),
    "an unknown order of axes": () => new ChunkBuffers({ device, order: asNever("dbhs") }),
    "NaN rows": () => buffers.empty([x], Number.NaN),
    "a negative number of rows": () => buffers.zeros([x], -1),
    "an undefined number of rows": () => buffers.slot("kv", [x], asNever(undefined)),
    "a shape of two axes": () => buffers.empty([{ shape: [2, 2], dtype: "float32" }], 2),
    "an unknown dtype": () => buffers.empty([{ shape: [1, 2, 2, 4], dtype: asNever("int8") }], 2),
    "a slot with a different number of tensors": () => [buffers.slot("kv", [x], 3), buffers.slot("kv", [x, x], 4)],
    "tensors of another device": () => buffers.contiguous([otherDeviceTensor]),
    "a copy into another shape": () => buffers.copy([x], buffers.empty([x], 3)),
    "a copy to null": () => buffers.copy([x], asNever(null)),
    "rows of an undefined chunk": () => buffers.narrow(asNever(undefined), 0, 1),
    "rows beyond the end of a chunk": () => buffers.narrow(chunk, 1, 2),
    "an object that is not a tensor": () => buffers.takeOwnership(asNever({})),
  };
  test.each(Object.entries(calls))("rejects %s", (_, run) => expect(run).toThrow(MosaicError));
});

describe("an invalid shape argument", () => {
  const device = new ReferenceDevice();

  test("is rejected with the called function's name and a remedy if it is passed as separate numbers", () => {
    const untypedZeros = zeros as (...args: unknown[]) => unknown;
    expect(() => untypedZeros(device, 2, 3)).toThrow(
      /^zeros: expected an array of integers ≥ 0, received 2; pass the shape as one array, such as \[2, 3\]$/,
    );
    expect(() => (ones as typeof untypedZeros)(device, 2)).toThrow(/^ones: .*as one array/);
  });

  test("is reported as missing if fromArray receives only values", () => {
    for (const values of [
      [1, 2],
      [
        [1, 2],
        [3, 4],
      ],
    ])
      expect(() => (fromArray as (...args: unknown[]) => unknown)(device, values)).toThrow(
        /^fromArray: expected a shape, such as \[2, 2\], after the flat values, received none$/,
      );
  });
});

test("a promise that is passed instead of a context has a remedy", () => {
  const promise = Promise.resolve();
  expect(() => zeros(promise as never, [2])).toThrow(
    "zeros: expected a Context or a Device, received a Promise; await the promise: const ctx = await init(…)",
  );
  expect(() => new Linear(promise as never, 2, 2)).toThrow(
    "Linear: expected a Context from init(), received a Promise; await the promise: const ctx = await init(…)",
  );
});

test("another value that is passed instead of a context has the remedy to pass the context first", () => {
  expect(() => zeros(3 as never, [2])).toThrow(
    /^zeros: expected a Context or a Device, received 3; pass the context first, as in zeros\(ctx, …\)$/,
  );
  expect(() => new Linear(4 as never, 4, 4)).toThrow(
    /^Linear: expected a Context from init\(\), received 4; pass the context first, as in new Linear\(ctx, …\)$/,
  );
});

test("a process without code generation from strings gets an error that names the option of Node", () => {
  const index = new URL("../dist/index.js", import.meta.url).href;
  const script = `import { compileKernel } from ${JSON.stringify(index)};
    try { compileKernel("fill", "", []); } catch ({ name, message }) { console.log(name, message); }`;
  const args = ["--disallow-code-generation-from-strings", "--input-type=module", "-e", script];
  expect(spawnSync(process.execPath, args, { encoding: "utf8" }).stdout).toMatch(
    /^MosaicError compileKernel: expected a process that may .*; omit --disallow-code-generation-from-strings\n$/,
  );
});
