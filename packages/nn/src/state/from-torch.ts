import {
  type HostTensor,
  type Module,
  type Shape,
  ShapeError,
  checkModule,
  expectValue,
  formatValue,
} from "@mosaic/core";

/**
 * Renames the weights of PyTorch's `nn.MultiheadAttention` to those of Mosaic's attention modules anywhere in `model`.
 * in_proj_weight [3E,E] and in_proj_bias become qkv_proj of a self-attention, or q_proj and kv_proj of a
 * CrossAxisAttention. q_proj_weight, k_proj_weight and v_proj_weight of an attention with `kdim` become q_proj and
 * kv_proj. All other weights, including those of the original Mosaic, already have the same names and are not changed.
 *
 * @example
 * ```ts
 * import { init, MultiAxisAttention } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { fromTorch } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using attn = new MultiAxisAttention(ctx, { embedDim: 2, numHeads: 1, attentionAxis: 1 });
 * const host = (...shape: number[]) =>
 *   ({ dtype: "float32", shape, values: new Float32Array(shape.reduce((a, b) => a * b, 1)) }) as const;
 * const torch = new Map([
 *   ["in_proj_weight", host(6, 2)],
 *   ["in_proj_bias", host(6)],
 *   ["out_proj.weight", host(2, 2)],
 *   ["out_proj.bias", host(2)],
 * ]);
 * attn.loadStateDict(fromTorch(torch, attn)); // => { missing: [], unexpected: [] }
 * ```
 * @throws ShapeError if the shapes of projections do not match.
 */
export function fromTorch(state: ReadonlyMap<string, HostTensor>, model: Module): Map<string, HostTensor> {
  expectValue("fromTorch", state instanceof Map, "a Map of tensors by name", state);
  const modelRemedy = "call fromTorch(tensors, model) with the module that will load the tensors";
  expectValue("fromTorch", model !== undefined, "a Module as second argument", model, modelRemedy);
  checkModule("fromTorch", model);
  for (const [name, tensor] of state) {
    const { shape, values } = (tensor ?? {}) as Partial<HostTensor>;
    expectValue(
      `fromTorch, ${formatValue(name)}`,
      typeof name === "string" && Array.isArray(shape) && ArrayBuffer.isView(values),
      "{ dtype, shape, values }",
      tensor,
    );
  }
  const modelState = model.stateDict();
  const result = new Map<string, HostTensor>();
  for (const [name, tensor] of state) {
    const [, path = "", projection, kind] = /^(.*\.)?(in|q|k|v)_proj_(weight|bias)$/.exec(name) ?? [];
    if (projection === undefined) result.set(name, tensor);
    else if (projection === "in" && modelState.has(`${path}qkv_proj.${kind}`))
      result.set(`${path}qkv_proj.${kind}`, tensor);
    else if (projection === "in" && modelState.has(`${path}q_proj.${kind}`)) {
      const rows = modelState.get(`${path}q_proj.${kind}`)!.shape[0]!;
      result.set(`${path}q_proj.${kind}`, sliceRows(name, tensor, { start: 0, end: rows }));
      result.set(`${path}kv_proj.${kind}`, sliceRows(name, tensor, { start: rows, end: tensor.shape[0]! }));
    } else if (projection === "q" && modelState.has(`${path}q_proj.${kind}`))
      result.set(`${path}q_proj.${kind}`, tensor);
    else if (projection === "k" && modelState.has(`${path}kv_proj.${kind}`)) {
      result.set(`${path}kv_proj.${kind}`, concatenateKv(name, [tensor, state.get(`${path}v_proj_${kind}`)]));
    } else if (projection !== "v" || !modelState.has(`${path}kv_proj.${kind}`)) result.set(name, tensor);
  }
  return result;
}

function sliceRows(
  name: string,
  { dtype, shape, values }: HostTensor,
  { start, end }: { start: number; end: number },
): HostTensor {
  const [count = 0, ...rowShape] = shape;
  const width = countElements(rowShape);
  if (start > count)
    throw new ShapeError({
      where: `fromTorch, "${name}"`,
      expected: `at least ${start} rows`,
      received: String(count),
    });
  return { dtype, shape: [end - start, ...rowShape], values: values.slice(start * width, end * width) };
}

function concatenateKv(name: string, [k, v]: readonly [HostTensor, HostTensor | undefined]): HostTensor {
  if (!v || String(v.shape) !== String(k.shape)) {
    throw new ShapeError({
      where: `fromTorch, "${name}"`,
      expected: `a value projection of shape [${k.shape.join(",")}], the shape of the key projection`,
      received: v ? `[${v.shape.join(",")}]` : "none",
    });
  }
  const values = new Float32Array(2 * k.values.length);
  values.set(k.values);
  values.set(v.values, k.values.length);
  return { dtype: k.dtype, shape: [2 * k.shape[0]!, ...k.shape.slice(1)], values };
}

function countElements(shape: Shape): number {
  return shape.reduce((product, length) => product * length, 1);
}
