import { expect, test } from "vitest";
import type { AttentionState, KvBlock, Tile } from "../../src/attention/tile.ts";
import type {
  AdamStep,
  BinaryOp,
  Field,
  FieldValue,
  Kernels,
  StructTypes,
  UnaryOp,
} from "../../src/kernels/kernels.ts";
import { getOperands, getTensor } from "../../src/kernels/operands.ts";
import { type kernelStructures, kernelFeatures, kernelSchema } from "../../src/kernels/schema.ts";
import type { Tensor } from "../../src/tensor.ts";
import { ReferenceDevice } from "../reference/device.ts";

// Type mismatches are reported by `npm run typecheck`.

type IsSameType<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;
type UnionKeys<T> = T extends unknown ? keyof T : never;
type NamesOf<F extends Field> = F extends { readonly names: infer N } ? N[keyof N] : F["name"];
type PropertyType<T, K> = K extends keyof T ? T[K] : never;

/**
 * Fields of a structure whose type differs from that of the interface's property. Fields with `names`, which belong to
 * a union, are not compared.
 */
type MismatchedFields<T, F extends Field> = F extends { readonly names: unknown }
  ? never
  : F extends unknown
    ? IsSameType<NonNullable<PropertyType<T, F["name"]>>, NonNullable<FieldValue<F>>> extends true
      ? never
      : F["name"]
    : never;

type MismatchedKernels = {
  [S in keyof StructTypes]: IsSameType<
    UnionKeys<StructTypes[S]>,
    NamesOf<(typeof kernelStructures)[S][number]>
  > extends true
    ? MismatchedFields<StructTypes[S], (typeof kernelStructures)[S][number]>
    : `${S} has other properties`;
}[keyof StructTypes];

/** The type error names the mismatched kernels. */
const mismatchedKernels: [MismatchedKernels] extends [never] ? "nothing" : MismatchedKernels = "nothing";
const areStructsNamed: IsSameType<keyof StructTypes, keyof typeof kernelStructures> = true;
const signatureChecks: [
  IsSameType<Parameters<Kernels["attend"]>, [state: AttentionState, q: Tensor, kv: KvBlock, tile: Tile]>,
  IsSameType<Parameters<Kernels["binary"]>, [op: BinaryOp, out: Tensor, a: Tensor, b: Tensor]>,
  IsSameType<Parameters<Kernels["layerNormBackward"]>[3], Tensor | null>,
  IsSameType<Parameters<Kernels["matmul"]>[3], boolean>,
  IsSameType<Parameters<Kernels["linear"]>[3]["activation"], UnaryOp | null>,
  IsSameType<AdamStep["kind"], "adamW" | "scheduleFree">,
] = [true, true, true, true, true, true];

test("the types of structures and kernel calls match the schema", () => {
  expect(mismatchedKernels).toBe("nothing");
  expect([areStructsNamed, ...signatureChecks]).not.toContain(false);
});

test("getOperands lists operands in call order with their access", () => {
  const operandSummary = getOperands("attendBackward").map(({ name, isRead, isMutated }) => [name, isRead, isMutated]);
  expect(operandSummary).toEqual([
    ["grads.dq", true, true],
    ["grads.dk", true, true],
    ["grads.dv", true, true],
    ["q", true, false],
    ["saved.dOut", true, false],
    ["saved.lse", true, false],
    ["saved.delta", true, false],
    ["kv.k", true, false],
    ["kv.v", true, false],
  ]);
});

test("operands of read-only structures are not mutated", () => {
  const mutatedOperands = getOperands("merge").filter(({ isMutated }) => isMutated);
  expect(mutatedOperands.map(({ name }) => name)).toEqual(["into.out", "into.lse"]);
  const statsOperands = getOperands("layerNormBackward").filter(({ parameter }) => parameter === 4);
  expect(statsOperands.map(({ name, isMutated, isOptional }) => [name, isMutated, isOptional])).toEqual([
    ["stats.mean", false, true],
    ["stats.rstd", false, false],
  ]);
});

test("a flag argument can determine whether an output is read", () => {
  const [out, a] = getOperands("matmul");
  expect(out).toMatchObject({ isRead: false, isMutated: true, readFlagIndex: 3, shape: "[..,M,N]" });
  expect(a).toMatchObject({ isRead: true, isMutated: false, readFlagIndex: undefined });
});

test("getTensor returns an operand from the arguments, or null if it is absent", () => {
  using device = new ReferenceDevice();
  using x = device.empty([2], "float32");
  const [out, , weight, bias] = getOperands("layerNorm");
  const args = [x, x, { weight: x, bias: null, epsilon: 1 }, { mean: null, rstd: x }];
  expect(getTensor(out!, args)).toBe(x);
  expect(getTensor(weight!, args)).toBe(x);
  expect(getTensor(bias!, args)).toBeNull();
});

test("outputs precede inputs in every kernel except norms and linear", () => {
  for (const kernel of Object.keys(kernelSchema) as (keyof typeof kernelSchema)[]) {
    const parameters = getOperands(kernel).filter(({ isMutated }) => isMutated);
    const readOperands = getOperands(kernel).filter(({ isMutated }) => !isMutated);
    const lastParameter = Math.max(...parameters.map(({ parameter }) => parameter));
    // Norms and `linear` have additional outputs at the end: statistics and the pre-activation.
    const firstRead = Math.min(...readOperands.map(({ parameter }) => parameter));
    if (!/Norm$|^linear$/.test(kernel)) expect(lastParameter, kernel).toBeLessThan(firstRead);
  }
});

test("a TypeScript device rejects each kernel feature that it does not support", () => {
  using device = Object.assign(new ReferenceDevice(), { features: [] });
  const allocateTensor = (...shape: number[]): Tensor => device.empty(shape, "float32");
  const state = { out: allocateTensor(1, 1, 2, 4), lse: allocateTensor(1, 1, 2) };
  const [q, k] = [allocateTensor(1, 1, 2, 4), allocateTensor(1, 1, 2, 4)];
  const attendWithFeature = (feature: (typeof kernelFeatures)[number]) => {
    const modifiers = {
      softcap: { softcap: 1 },
      slopes: { slopes: allocateTensor(1) },
      dropout: { dropout: { probability: 0.5, seed: 0, stream: 0, batchOffset: 0 } },
      sampleMasks: { sampleMasks: [] },
      valueHeadDim: undefined,
    }[feature];
    const v = feature === "valueHeadDim" ? allocateTensor(1, 1, 2, 3) : k;
    device.kernels.attend(state, q, { k, v }, { q: [], k: [], mask: [], scale: 1, modifiers });
  };
  for (const feature of kernelFeatures) {
    expect(() => attendWithFeature(feature), feature).toThrow(
      `attention on reference:0: expected a call without ${feature}`,
    );
  }
  const origin = { batch: 1, head: 2 };
  const tile = { q: [], k: [], mask: [], scale: 1, modifiers: { origin } };
  expect(() => device.kernels.attend(state, q, { k, v: k }, tile)).not.toThrow();
});
