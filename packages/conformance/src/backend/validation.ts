import {
  attention,
  type AttentionBackend,
  type Context,
  contiguous,
  type Coordinate,
  type DType,
  layoutOf,
  local,
  type Mask,
  masks,
  MultiAxisAttention,
  OptionError,
  type Placement,
  randn,
  type Shape,
  type Slice,
  type Span,
  type Tensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";
import { type Case, check, checkThrows } from "../check.ts";
import { type MakeWorld, runOnWorld } from "../world.ts";
import { makeBackend, makeBackendOption, makeWorldOption } from "../suite-options.ts";

type NestFunction = (axis: string, inner: AttentionBackend) => AttentionBackend;

export const validationSuiteOptions = defineOptions("validationSuite", {
  /** Opens the worlds. */
  makeWorld: makeWorldOption,
  /** Makes the backend along an axis. */
  backend: makeBackendOption,
  /** Makes the backend around an inner backend. Default: the backend accepts no inner backend. */
  nest: option.custom("a function (axis, inner) that returns a backend", option.isFunction<NestFunction>, {
    optional: true,
  }),
  /** The sequences that must be sharded along the axis. Default ["queries", "keys"]. */
  sharded: option.array(option.oneOf(["queries", "keys"]), { default: ["queries", "keys"] }),
});
/** Options of `validationSuite`. */
export type ValidationSuiteOptions = OptionsOf<typeof validationSuiteOptions>;

/** Shapes of the tensors of a call on two ranks, each with 5 of 10 tokens. */
const operandShapes = {
  q: [1, 4, 5, 8],
  k: [1, 2, 5, 8],
  v: [1, 2, 5, 8],
  out: [1, 4, 5, 8],
  lse: [1, 4, 5],
  dOut: [1, 4, 5, 8],
  delta: [1, 4, 5],
  dq: [1, 4, 5, 8],
  dk: [1, 2, 5, 8],
  dv: [1, 2, 5, 8],
} as const satisfies Record<string, Shape>;
type TensorName = keyof typeof operandShapes;

/** Tensors of each pass besides q, k and v. */
const passOperands = {
  attend: ["out", "lse"],
  attendBackward: ["dOut", "lse", "delta", "dq", "dk", "dv"],
} as const satisfies Record<string, readonly TensorName[]>;
type Pass = keyof typeof passOperands;

/** A valid or invalid call: tensors, the axes of the sequences, and the coordinates of the queries and the keys. */
interface BackendCall {
  readonly backend: AttentionBackend;
  readonly tensors: Record<TensorName, Tensor>;
  readonly queryAxes: readonly string[];
  readonly keyAxes: readonly string[];
  readonly at: Coordinate;
  readonly from: Coordinate;
}

interface InvalidCall {
  readonly title: string;
  readonly pass: Pass;
  readonly invalidate: (call: BackendCall, ctx: Context) => Partial<BackendCall>;
  /** The error's class and message. */
  readonly error: string;
  readonly message: RegExp;
}

/**
 * Returns test cases for calls that a backend must reject. Each mistake must raise an error that reports where it is
 * and what was received, on every rank and before anything is sent, so that the same ranks can continue. For a backend
 * that calls a `validator`, the cases check that it does so with the right rules.
 *
 * @example
 * ```ts
 * import { ring } from "@mosaic/backend-ring";
 * import { world } from "@mosaic/collectives-local";
 * import type { AttentionBackend } from "@mosaic/core";
 * import { type MakeWorld, validationSuite } from "@mosaic/conformance";
 * import { cpu } from "@mosaic/kernels-cpu";
 * const makeWorld: MakeWorld = (size, { wrapDevice, ...options }) =>
 *   world(size, { ...options, device: () => wrapDevice(cpu({ threads: 1 })) });
 * const nest = (axis: string, inner: AttentionBackend) => ring({ axis, inner });
 * const cases = validationSuite({ makeWorld, backend: (axis) => ring({ axis }), nest, sharded: ["keys"] });
 * await cases[0]!.run();
 * ```
 */
export function validationSuite(suiteOptions: ValidationSuiteOptions): Case[] {
  const options = validationSuiteOptions.parse(suiteOptions);
  const { makeWorld, backend, sharded } = options;
  const invalidCalls = [
    invalidAxisCall(backend),
    ...sharded.flatMap(invalidSequenceCalls),
    ...invalidInputCalls(),
    ...(["attend", "attendBackward"] as const).flatMap((pass) => [
      ...invalidStateCalls(pass),
      ...disposedTensorCalls(pass),
    ]),
  ];
  const { name } = makeBackend("validationSuite", backend, "sp");
  return [
    ...invalidCalls.map((invalidCall) => ({
      name: `${name}, ${invalidCall.pass}: every rank rejects ${invalidCall.title} before it sends a message`,
      run: () => checkRejected(makeWorld, backend("sp"), invalidCall),
    })),
    ...contractViolations.map((violation) => ({
      name: `${name}: every rank rejects ${violation.title} before it sends a message`,
      run: () => checkViolation(makeWorld, backend("sp"), violation),
    })),
    ...contextCases(options),
    ...nestingCases(options),
  ];
}

/** Returns cases with contexts on which a backend cannot run. */
function contextCases({ makeWorld, backend }: ValidationSuiteOptions): Case[] {
  const { name } = backend("sp");
  return [
    {
      name: `${name}: a closed context is rejected`,
      run: () =>
        runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
          const x = randn(ctx, operandShapes.q);
          const layout = layoutOf({ mesh: ctx.mesh.shape, axes: backend("sp").axes, length: 5 });
          await ctx.close();
          const call = () => attention(ctx, x, x, x, { backend: backend("sp"), queries: layout, keys: layout });
          await checkThrows(call, "ClosedError", /open context/);
        }).then(() => {}),
    },
    {
      name: `${name}: creating a module is rejected on a mesh without its axis`,
      run: () =>
        runOnWorld(makeWorld, { size: 1, mesh: { tp: 1 } }, (ctx) => {
          const moduleOptions = { embedDim: 4, numHeads: 1, attentionAxis: 1, backend: backend("sp") };
          const message = /rank 0: expected one of the mesh's axes tp, received "sp"; add the axis to init/;
          return checkThrows(() => new MultiAxisAttention(ctx, moduleOptions), "OptionError", message);
        }).then(() => {}),
    },
  ];
}

/** Returns cases with inner backends with which a backend cannot be created or cannot run. */
function nestingCases({ makeWorld, backend, nest }: ValidationSuiteOptions): Case[] {
  if (!nest) return [];
  const { name } = backend("sp");
  return [
    {
      name: `${name}: nested backends on the same axis are rejected`,
      async run() {
        const errorPattern = /a separate mesh axis/;
        await checkThrows(() => nest("sp", backend("sp")), "OptionError", errorPattern);
        await checkThrows(() => nest("a", nest("b", backend("a"))), "OptionError", errorPattern);
      },
    },
    {
      name: `${name}: a mesh is rejected if the inner backend rejects it`,
      run: () =>
        runOnWorld(makeWorld, { size: 1 }, async (ctx) => {
          const check = (): never => {
            throw new OptionError({ where: "inner", received: "this mesh" });
          };
          const nestedBackend = nest("sp", { ...local(), check });
          await checkThrows(() => nestedBackend.check?.(ctx), "OptionError", /inner: received this mesh/);
          nest("sp", local()).check?.(ctx);
        }).then(() => {}),
    },
  ];
}

/** A user's placement or mask that violates its contract, over 10 tokens on two ranks. */
interface ContractViolation {
  readonly title: string;
  readonly shards?: readonly [readonly Span[], readonly Span[]];
  readonly slices?: readonly Slice[];
  readonly message: RegExp;
}

const makeSpan = (start: number, length: number, step = 1): Span => ({ start, length, step });
const makeSlice = (overrides: Partial<Slice>): Slice => ({ q0: 0, q1: 10, k0: 0, k1: 10, type: "full", ...overrides });

const contractViolations: readonly ContractViolation[] = [
  ...[0, 0.5, -1, Number.NaN].map((step) => ({
    title: `a placement with a step of ${step}`,
    shards: [[makeSpan(0, 5)], [makeSpan(5, 5, step)]] as const,
    message: new RegExp(`step ≥ 1.*step ${step}`),
  })),
  {
    title: "a placement with overlapping shards",
    shards: [[makeSpan(0, 5)], [makeSpan(4, 5)]],
    message: /position 4 in shards 0 and 1/,
  },
  {
    title: "a placement with a gap",
    shards: [[makeSpan(0, 5)], [makeSpan(6, 4)]],
    message: /position 5 is in no shard/,
  },
  {
    title: "a placement beyond the end of the sequence",
    shards: [[makeSpan(0, 5)], [makeSpan(6, 5)]],
    message: /before position 10/,
  },
  {
    title: "a mask with overlapping slices",
    slices: [makeSlice({}), makeSlice({ q0: 9 })],
    message: /overlapping slices/,
  },
  { title: "a mask with NaN bounds", slices: [makeSlice({ k0: Number.NaN })], message: /keys \[NaN,10\)/ },
  {
    title: "a mask beyond the end of the sequence",
    slices: [makeSlice({ k1: 11 })],
    message: /within 10 queries and 10 keys/,
  },
  {
    title: "a mask with an unknown slice type",
    slices: [makeSlice({ type: 7 as never })],
    message: /a type among full, causal/,
  },
];

async function checkViolation(
  makeWorld: MakeWorld,
  backend: AttentionBackend,
  { shards, slices, message }: ContractViolation,
): Promise<void> {
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    using x = randn(ctx, operandShapes.q);
    const placement = shards ? { name: "mine", spans: (index: number) => shards[index]! } : contiguous();
    const mask = slices ? { name: "mine", slices: () => slices } : masks.full();
    const runAttention = (callPlacement: Placement, callMask: Mask): Tensor => {
      const layout = layoutOf({ mesh: ctx.mesh.shape, axes: backend.axes, placement: callPlacement, length: 10 });
      return attention(ctx, x, x, x, { backend, mask: callMask, queries: layout, keys: layout });
    };
    await checkThrows(() => runAttention(placement, mask), "ShapeError", message);
    const { messagesSent } = ctx.world.traffic();
    check(
      messagesSent === 0,
      `rank ${ctx.rank}: expected 0 messages sent by a rejected call, received ${messagesSent}`,
    );
    using out = runAttention(contiguous(), masks.full());
    const isOutFinite = (await out.read()).every(Number.isFinite);
    check(isOutFinite, `rank ${ctx.rank}: expected finite values from a call after the rejected one, received others`);
  });
}

async function checkRejected(makeWorld: MakeWorld, backend: AttentionBackend, invalidCall: InvalidCall): Promise<void> {
  const { pass, invalidate, error, message } = invalidCall;
  await runOnWorld(makeWorld, { size: 2 }, async (ctx) => {
    const unmodifiedCall = createValidCall(ctx, backend);
    const modifiedCall = { ...unmodifiedCall, ...invalidate(unmodifiedCall, ctx) };
    await checkThrows(() => callBackend(ctx, modifiedCall, pass), error, message);
    await checkThrows(
      () => callBackend(ctx, modifiedCall, pass),
      error,
      new RegExp(`\\(\\w+\\).*, rank ${ctx.rank}: `),
    );
    const { messagesSent } = ctx.world.traffic();
    check(
      messagesSent === 0,
      `rank ${ctx.rank}: expected 0 messages sent by a rejected call, received ${messagesSent}`,
    );
    for (const tensor of Object.values(modifiedCall.tensors)) tensor.dispose();
    const layout = layoutOf({ mesh: ctx.mesh.shape, axes: backend.axes, length: 10 });
    using x = randn(ctx, operandShapes.q);
    using out = attention(ctx, x, x, x, { backend, queries: layout, keys: layout });
    const isFiniteOut = (await out.read()).every(Number.isFinite);
    check(isFiniteOut, `rank ${ctx.rank}: expected finite values from a call after the rejected one, received others`);
  });
}

function createValidCall(ctx: Context, backend: AttentionBackend): BackendCall {
  const tensorEntries = Object.entries(operandShapes).map(
    ([name, shape]) => [name, ctx.device.empty(shape, "float32")] as const,
  );
  const tensors = Object.fromEntries(tensorEntries) as Record<TensorName, Tensor>;
  const { coordinate } = ctx.mesh;
  return { backend, tensors, queryAxes: backend.axes, keyAxes: backend.axes, at: coordinate, from: coordinate };
}

function callBackend(ctx: Context, { backend, tensors, at, from, queryAxes, keyAxes }: BackendCall, pass: Pass): void {
  const { q, k, v, dOut, lse, delta } = tensors;
  const createLayout = (axes: readonly string[]) =>
    layoutOf({ mesh: ctx.mesh.shape, axes, length: axes.length > 0 ? 10 : 5 });
  const attentionCall = { q, at, scale: 1, mask: [], queries: createLayout(queryAxes), keys: createLayout(keyAxes) };
  if (pass === "attend") backend.attend(ctx, attentionCall, tensors, { k, v, from });
  else backend.attendBackward(ctx, { ...attentionCall, dOut, lse, delta }, tensors, { k, v, from });
}

function invalidAxisCall(backend: (axis: string) => AttentionBackend): InvalidCall {
  const invalidate = (): Partial<BackendCall> => ({ backend: backend("gpu") });
  const message = /expected one of the mesh's axes sp, received "gpu"/;
  return { title: "an axis that is not in the mesh", pass: "attend", invalidate, error: "OptionError", message };
}

function invalidSequenceCalls(name: "queries" | "keys"): InvalidCall[] {
  const coordinateName = name === "keys" ? "from" : "at";
  const axes = name === "keys" ? "keyAxes" : "queryAxes";
  const invalidFields = { pass: "attend", error: "OptionError" } as const;
  return [
    {
      ...invalidFields,
      title: `unsharded ${name}`,
      invalidate: () => ({ [axes]: [] }),
      message: new RegExp(`${name} sharded along sp, received unsharded ${name}`),
    },
    {
      ...invalidFields,
      title: `${name} of another rank`,
      invalidate: (_, { rank }) => ({ [coordinateName]: { sp: 1 - rank } }),
      message: new RegExp(`this rank's shard of the ${name}, sp = \\d, received ${name} from \\{"sp":\\d\\}`),
    },
    {
      ...invalidFields,
      title: `${name} of all ranks`,
      invalidate: () => ({ [coordinateName]: {} }),
      message: new RegExp(`this rank's shard of the ${name}, sp = \\d, received ${name} from \\{\\}`),
    },
  ];
}

function invalidInputCalls(): InvalidCall[] {
  const createWrongShapeCall = (name: TensorName, to: Shape, message: RegExp) =>
    invalidTensorCall("attend", name, { title: `${name} [${to}]`, shape: to, error: "ShapeError", message });
  const createWrongDtypeCall = (name: TensorName, message: RegExp) =>
    invalidTensorCall("attend", name, {
      title: `${name} of bfloat16`,
      dtype: "bfloat16",
      error: "DTypeError",
      message,
    });
  return [
    createWrongShapeCall("q", [1, 4, 4, 8], /queries \[B,H,5,D\], as specified by their layout, received \[1,4,4,8\]/),
    createWrongShapeCall("q", [4, 5, 8], /queries \[B,H,5,D\], as specified by their layout, received \[4,5,8\]/),
    createWrongShapeCall("k", [1, 2, 6, 8], /keys \[B,H,5,D\], as specified by their layout, received \[1,2,6,8\]/),
    createWrongShapeCall(
      "k",
      [1, 3, 5, 8],
      /keys \[1,Hkv,S,8\] with Hkv a divisor of the 4 query heads, received \[1,3,5,8\]/,
    ),
    createWrongShapeCall("k", [2, 2, 5, 8], /keys \[1,Hkv,S,8\] .* received \[2,2,5,8\]/),
    createWrongShapeCall("k", [1, 2, 5, 4], /keys \[1,Hkv,S,8\] .* received \[1,2,5,4\]/),
    createWrongShapeCall("v", [1, 2, 4, 8], /values of the keys' shape \[1,2,5,8\], received \[1,2,4,8\]/),
    createWrongShapeCall("v", [1, 2, 5, 4], /out \[1,4,5,4\], received \[1,4,5,8\]/),
    createWrongDtypeCall("v", /values with the dtype of the keys, float32, received bfloat16/),
    createWrongDtypeCall("q", /queries with the dtype of the keys, float32, received bfloat16/),
    invalidTensorCall("attendBackward", "k", {
      title: "k [1,2,6,8]",
      shape: [1, 2, 6, 8],
      error: "ShapeError",
      message: /backward.*keys \[B,H,5,D\]/,
    }),
  ];
}

/**
 * Returns calls in which a state, saved rows or gradients have the wrong shape or, except for dOut, the wrong dtype.
 */
function invalidStateCalls(pass: Pass): InvalidCall[] {
  return passOperands[pass].flatMap((name) => {
    const shape = (operandShapes[name] as Shape).with(2, 4);
    const message = new RegExp(`expected ${name} \\[${operandShapes[name]}\\], received \\[${shape}\\]`);
    const wrongShapeCall = invalidTensorCall(pass, name, {
      title: `${name} [${shape}]`,
      shape,
      error: "ShapeError",
      message,
    });
    if (name === "dOut") return [wrongShapeCall];
    const dtypePattern = new RegExp(`expected ${name} of dtype float32, received bfloat16`);
    const title = `${name} of bfloat16`;
    return [
      wrongShapeCall,
      invalidTensorCall(pass, name, { title, dtype: "bfloat16", error: "DTypeError", message: dtypePattern }),
    ];
  });
}

function disposedTensorCalls(pass: Pass): InvalidCall[] {
  return (["q", "k", "v", ...passOperands[pass]] as const).map((name) => ({
    title: `a disposed ${name}`,
    pass,
    invalidate({ tensors }) {
      tensors[name].dispose();
      return {};
    },
    error: "DisposedError",
    message: /expected a tensor that is not disposed/,
  }));
}

interface InvalidTensor extends Pick<InvalidCall, "title" | "error" | "message"> {
  readonly shape?: Shape;
  readonly dtype?: DType;
}

function invalidTensorCall(
  pass: Pass,
  name: TensorName,
  { shape, dtype = "float32", ...invalidCallFields }: InvalidTensor,
): InvalidCall {
  return {
    ...invalidCallFields,
    pass,
    invalidate({ tensors }, { device }) {
      tensors[name].dispose();
      return { tensors: { ...tensors, [name]: device.empty(shape ?? operandShapes[name], dtype) } };
    },
  };
}
