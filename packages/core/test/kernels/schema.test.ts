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

// What is wrong with types is an error of `npm run typecheck`.

type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;
type KeysOf<T> = T extends unknown ? keyof T : never;
type NamesOf<F extends Field> = F extends { readonly names: infer N } ? N[keyof N] : F["name"];
type Value<T, K> = K extends keyof T ? T[K] : never;

/** Fields of a structure whose type is not that of the interface's property. A union's own properties are not looked at. */
type MismatchedFields<T, F extends Field> = F extends { readonly names: unknown }
  ? never
  : F extends unknown
    ? Same<NonNullable<Value<T, F["name"]>>, NonNullable<FieldValue<F>>> extends true
      ? never
      : F["name"]
    : never;

type WrongKernels = {
  [S in keyof StructTypes]: Same<KeysOf<StructTypes[S]>, NamesOf<(typeof kernelStructures)[S][number]>> extends true
    ? MismatchedFields<StructTypes[S], (typeof kernelStructures)[S][number]>
    : `${S} has other properties`;
}[keyof StructTypes];

/** The error names what is wrong. */
const wrong: [WrongKernels] extends [never] ? "nothing" : WrongKernels = "nothing";
const named: Same<keyof StructTypes, keyof typeof kernelStructures> = true;
const signatures: [
  Same<Parameters<Kernels["attend"]>, [state: AttentionState, q: Tensor, kv: KvBlock, tile: Tile]>,
  Same<Parameters<Kernels["binary"]>, [op: BinaryOp, out: Tensor, a: Tensor, b: Tensor]>,
  Same<Parameters<Kernels["layerNormBackward"]>[3], Tensor | null>,
  Same<Parameters<Kernels["matmul"]>[3], boolean>,
  Same<Parameters<Kernels["linear"]>[3]["activation"], UnaryOp | null>,
  Same<AdamStep["kind"], "adamW" | "scheduleFree">,
] = [true, true, true, true, true, true];

test("the types of structures and calls are those of the schema", () => {
  expect(wrong).toBe("nothing");
  expect([named, ...signatures]).not.toContain(false);
});

test("operands come in the order of the call, with what the kernel does with each", () => {
  const summary = getOperands("attendBackward").map(({ name, isRead, isMutated }) => [name, isRead, isMutated]);
  expect(summary).toEqual([
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

test("a structure that is only read mutates nothing", () => {
  const mutated = getOperands("merge").filter(({ isMutated }) => isMutated);
  expect(mutated.map(({ name }) => name)).toEqual(["into.out", "into.lse"]);
  const stats = getOperands("layerNormBackward").filter(({ parameter }) => parameter === 4);
  expect(stats.map(({ name, isMutated, isOptional }) => [name, isMutated, isOptional])).toEqual([
    ["stats.mean", false, true],
    ["stats.rstd", false, false],
  ]);
});

test("a flag may decide whether an output is read", () => {
  const [out, a] = getOperands("matmul");
  expect(out).toMatchObject({ isRead: false, isMutated: true, readIf: 3, shape: "[..,M,N]" });
  expect(a).toMatchObject({ isRead: true, isMutated: false, readIf: undefined });
});

test("an operand is found among the arguments, or is absent", () => {
  using device = new ReferenceDevice();
  using x = device.empty([2], "float32");
  const [out, , weight, bias] = getOperands("layerNorm");
  const args = [x, x, { weight: x, bias: null, epsilon: 1 }, { mean: null, rstd: x }];
  expect(getTensor(out!, args)).toBe(x);
  expect(getTensor(weight!, args)).toBe(x);
  expect(getTensor(bias!, args)).toBeNull();
});

test("every output comes before every input, as kernels' callers expect", () => {
  for (const kernel of Object.keys(kernelSchema) as (keyof typeof kernelSchema)[]) {
    const parameters = getOperands(kernel).filter(({ isMutated }) => isMutated);
    const reads = getOperands(kernel).filter(({ isMutated }) => !isMutated);
    const last = Math.max(...parameters.map(({ parameter }) => parameter));
    // What some kernels write beside their output, statistics and what an activation is applied to, stands at the end.
    const first = Math.min(...reads.map(({ parameter }) => parameter));
    if (!/Norm$|^linear$/.test(kernel)) expect(last, kernel).toBeLessThan(first);
  }
});

test("a device in TypeScript rejects the features that it does not have, all of them", () => {
  using device = Object.assign(new ReferenceDevice(), { features: [] });
  const make = (...shape: number[]): Tensor => device.empty(shape, "float32");
  const state = { out: make(1, 1, 2, 4), lse: make(1, 1, 2) };
  const [q, k] = [make(1, 1, 2, 4), make(1, 1, 2, 4)];
  const attend = (feature: (typeof kernelFeatures)[number]) => {
    const modifiers = {
      softcap: { softcap: 1 },
      slopes: { slopes: make(1) },
      dropout: { dropout: { probability: 0.5, seed: 0, stream: 0, batchOffset: 0 } },
      sampleMasks: { sampleMasks: [] },
      valueHeadSize: undefined,
    }[feature];
    const v = feature === "valueHeadSize" ? make(1, 1, 2, 3) : k;
    device.kernels.attend(state, q, { k, v }, { q: [], k: [], mask: [], scale: 1, modifiers });
  };
  for (const feature of kernelFeatures) {
    expect(() => attend(feature), feature).toThrow(`attention on reference:0: expected a call without ${feature}`);
  }
  const origin = { batch: 1, head: 2 };
  const tile = { q: [], k: [], mask: [], scale: 1, modifiers: { origin } };
  expect(() => device.kernels.attend(state, q, { k, v: k }, tile)).not.toThrow();
});
