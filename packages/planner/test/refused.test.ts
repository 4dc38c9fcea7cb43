import { ring } from "@mosaic/backend-ring";
import { DTypeError, type DType, local, OptionError, type ReduceOp, ShapeError, zigzag } from "@mosaic/core";
import { expect, test } from "vitest";
import {
  count,
  perfettoTrace,
  predict,
  profiles,
  prove,
  record,
  recordRepresentatives,
  type RecordOptions,
  simulate,
  estimate,
  symbolicWorld,
  tileMapSvg,
  timelineSvg,
} from "../src/index.ts";

const call: RecordOptions = { backend: ring(), mesh: { sp: 2 }, tokens: 16, numHeads: 2, headDim: 4 };

test.each<[string, Partial<RecordOptions>]>([
  ["no ranks", { mesh: { sp: 0 } }],
  ["a negative number of ranks", { mesh: { sp: -2 } }],
  ["a number of ranks that is not an integer", { mesh: { sp: 2.5 } }],
  ["a mesh whose axes would change their order", { backend: local(), mesh: { b: 2, "0": 3 } }],
  ["a number of tokens that is not an integer", { tokens: 3.5 }],
  ["a negative number of tokens", { tokens: -3 }],
  ["a number of keys that is NaN", { keyTokens: Number.NaN }],
  ["no sequences", { batch: 0 }],
  ["an unknown dtype", { dtype: "int8" as DType }],
])("record and predict reject %s", (_, options) => {
  expect(() => record({ ...call, ...options })).toThrow(OptionError);
  expect(() => predict({ ...call, ...options }, profiles["h100-ib400"])).toThrow(OptionError);
});

test("record accepts calls without tokens or without keys", () => {
  for (const options of [{ tokens: 0 }, { keyTokens: 0 }, { tokens: 0, keyTokens: 5 }]) {
    expect(record({ ...call, ...options }).ranks).toHaveLength(2);
  }
});

test.each([0, -1, 1.5, Number.NaN, Infinity])("symbolicWorld and record reject an axis of length %d", (length) => {
  const message = `mesh.gpu: expected an integer ≥ 1, received ${length}`;
  expect(() => symbolicWorld({ mesh: { node: 2, gpu: length } })).toThrow(`symbolicWorld: ${message}`);
  expect(() => record({ ...call, mesh: { sp: 2, gpu: length } })).toThrow(`record: ${message}`);
});

test("symbolicWorld and record reject the axis names that init rejects", () => {
  for (const [name, message] of [
    ["0", 'mesh: expected axis names that begin with a letter or an underscore, received "0"'],
    ["data", 'mesh: expected data-parallel axes that are named "dp", or whose names begin with "dp_", received "data"'],
  ] as const) {
    expect(() => symbolicWorld({ mesh: { [name]: 2, sp: 2 } })).toThrow(`symbolicWorld: ${message}`);
    expect(() => record({ ...call, mesh: { [name]: 2, sp: 2 } })).toThrow(`record: ${message}`);
  }
});

const { contexts } = symbolicWorld({ mesh: { sp: 2 } });
const [ctx, otherCtx] = [contexts[0]!, contexts[1]!];
const createTensor = (size: number, dtype: DType = "float32") => ctx.device.empty([size], dtype);

// Groups of real devices reject the same; see checks.test.ts of collectives-local.
test.each<[string, () => unknown, new (...args: never[]) => Error]>([
  [
    "a length that the number of ranks does not divide",
    () => ctx.world.allToAll(createTensor(7), createTensor(7)),
    ShapeError,
  ],
  [
    "an output that is too small",
    () => ctx.world.allGather(createTensor(3), createTensor(2), { counts: [2, 2] }),
    ShapeError,
  ],
  [
    "more counts than ranks",
    () => ctx.world.allGather(createTensor(4), createTensor(2), { counts: [2, 2, 0] }),
    ShapeError,
  ],
  [
    "an input whose length differs from its count",
    () => ctx.world.allGather(createTensor(4), createTensor(1), { counts: [2, 2] }),
    ShapeError,
  ],
  [
    "an output whose length differs from its count",
    () => ctx.world.reduceScatter(createTensor(1), createTensor(4), "sum", { counts: [2, 2] }),
    ShapeError,
  ],
  [
    "an input and an output of different dtypes",
    () => ctx.world.allGather(createTensor(4), createTensor(2, "bfloat16")),
    DTypeError,
  ],
  ["an unknown reduction", () => ctx.world.allReduce(createTensor(4), "median" as ReduceOp), OptionError],
  [
    "different counts to send to and to receive from the rank itself",
    () => ctx.world.allToAll(createTensor(4), createTensor(4), { send: [1, 3] }),
    OptionError,
  ],
  ["another rank's tensor", () => ctx.world.broadcast(otherCtx.device.empty([4], "float32"), 0), OptionError],
  [
    "a send of a rank to itself without a receive",
    () => ctx.world.sendRecv([{ tensor: createTensor(1), to: 0 }]),
    ShapeError,
  ],
  [
    "counts beyond the range of a tape",
    () => ctx.world.allGather(createTensor(2 ** 33), createTensor(2 ** 32)),
    ShapeError,
  ],
])("a symbolic group rejects %s, as a real group does", (_, collective, errorClass) => {
  expect(collective).toThrow(errorClass);
});

test("a message from a rank to itself causes no traffic", () => {
  ctx.world
    .sendRecv([
      { tensor: createTensor(3), to: 0 },
      { tensor: createTensor(3), from: 0 },
    ])
    .wait();
  expect(ctx.world.traffic()).toEqual({ bytesSent: 0, bytesReceived: 0, messagesSent: 0 });
});

const profile = profiles["h100-ib400"];
const attentionRecord = record(call);
const simulation = simulate(attentionRecord, profile);

// Values that types exclude: the error names the option and what it accepts.
test.each<[string, () => unknown, string]>([
  [
    "prove",
    () => prove(attentionRecord, { limits: 3 } as object),
    'prove: expected options among limit, received "limits"',
  ],
  ["prove", () => prove(attentionRecord, { limit: -1 }), "prove: limit: expected an integer ≥ 0, received -1"],
  [
    "predict",
    () => predict(call, profile, { keeps: () => false } as object),
    'simulate: expected options among keep, received "keeps"',
  ],
  [
    "predict",
    () => predict({ ...call, heads: 3 } as RecordOptions, profile),
    "predict: expected options among backend, mesh, tokens",
  ],
  [
    "simulate",
    () => simulate(attentionRecord, profile, { keep: true } as never),
    "simulate: keep: expected a function, received true",
  ],
  [
    "estimate",
    () => estimate(call, profile, [-1]),
    "estimate: ranks: expected an array, each element an integer ≥ 0, received [-1]",
  ],
  ["estimate", () => estimate(call, profile, [2]), "estimate: rank: expected an integer from 0 to 1, received 2"],
  [
    "recordRepresentatives",
    () => recordRepresentatives(call, { ranksPerNode: 0 }),
    "recordRepresentatives: ranksPerNode: expected an integer ≥ 1, received 0",
  ],
  [
    "symbolicWorld",
    () => symbolicWorld({ mesh: { sp: 2 }, backend: [] } as never),
    'symbolicWorld: expected options among mesh, backends, hosts, received "backend"',
  ],
  [
    "symbolicWorld",
    () => symbolicWorld({ mesh: { sp: 2 }, backends: [{}] } as never),
    "symbolicWorld: backends: expected an array, each element an AttentionBackend, such as ring()",
  ],
  [
    "tileMapSvg",
    () => tileMapSvg(attentionRecord, { title: 3 } as never),
    "tileMapSvg: title: expected a string, received 3",
  ],
  [
    "timelineSvg",
    () => timelineSvg(simulation, { facts: [3] } as never),
    "timelineSvg: facts: expected an array, each element a string, received [3]",
  ],
  ["timelineSvg", () => timelineSvg(simulation, { group: "name" } as never), "timelineSvg: group: expected a function"],
  [
    "perfettoTrace",
    () => perfettoTrace({ seconds: 1 } as never),
    "perfettoTrace: expected a timeline { seconds, ranks }",
  ],
  ["count", () => count({} as never), "count: expected a record returned by record(), received an empty object"],
])("%s rejects an invalid argument and names it", (_, invalidCall, message) => {
  expect(invalidCall).toThrow(OptionError);
  expect(invalidCall).toThrow(message);
});

test("record accepts the name of a placement", () => {
  const namedRecord = record({ ...call, placement: "zigzag" });
  expect(namedRecord.options.placement.name).toBe(zigzag().name);
  expect(namedRecord.queries.spans({ sp: 0 })).toEqual(
    record({ ...call, placement: zigzag() }).queries.spans({ sp: 0 }),
  );
  expect(namedRecord.queries.spans({ sp: 0 })).not.toEqual(attentionRecord.queries.spans({ sp: 0 }));
});
