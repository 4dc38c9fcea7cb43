import {
  type Context,
  checkContext,
  createParameter,
  defineOp,
  Module,
  ShapeError,
  type Tensor,
  formatShape,
  checkArgument,
  checkTensor,
  defineOptions,
  option,
  type OptionsOf,
} from "@mosaic/core";

// V tokens, E features: table [V,E].

const embeddingOp = defineOp({
  name: "embedding",
  forward([table]: [Tensor], tokens: Tensor) {
    const output = table.device.empty([...tokens.shape, table.shape[1]!], table.dtype);
    table.device.kernels.gatherRows(output, table, tokens);
    // A new handle, because `tokens` is not among the inputs that the tape keeps.
    return { output, saved: { table, tokens: tokens.detach() } };
  },
  backward({ table, tokens }, dOut) {
    const { device } = table;
    const tableGradient = device.empty(table.shape, "float32");
    device.kernels.fill(tableGradient, 0);
    device.kernels.scatterAddRows(tableGradient, dOut, tokens);
    if (table.dtype === "float32") return [tableGradient];
    using float32Gradient = tableGradient;
    return [float32Gradient.to(table.dtype)];
  },
});

/**
 * Looks up the rows of `table` [V,E] with the indices `tokens` [..] → [..,E]. Tokens are integers from 0 to V − 1, in a
 * tensor of any dtype that represents them exactly (float32: up to 16 777 216). Another number fails the device with a
 * DeviceError.
 *
 * @example
 * ```ts
 * import { fromArray } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { embedding } from "@mosaic/nn";
 * using device = cpu();
 * using table = fromArray(device, [1, 2, 3, 4, 5, 6], [3, 2]);
 * using rows = embedding(fromArray(device, [2, 0], [2]), table);
 * Array.from(await rows.read()); // => [5, 6, 1, 2]
 * ```
 * @throws ShapeError unless the table has two axes.
 */
export function embedding(tokens: Tensor, table: Tensor): Tensor {
  checkTensor("embedding: tokens", tokens);
  checkTensor("embedding: table", table);
  if (table.rank !== 2) {
    throw new ShapeError({ where: "embedding", expected: "a table [V,E]", received: formatShape(table.shape) });
  }
  const out = embeddingOp([table], tokens);
  out.sharding = tokens.sharding;
  return out;
}

export const embeddingOptions = defineOptions("Embedding", {
  /** Standard deviation of the initial table; the default is PyTorch's. Default 1. */
  std: option.number({ min: 0, default: 1 }),
  /** The dtype of the table. Default "float32". */
  dtype: option.dtype({ default: "float32" }),
});
/** Options of Embedding. */
export type EmbeddingOptions = OptionsOf<typeof embeddingOptions>;

/**
 * A learned vector for each of `count` tokens: weight [count,dim], drawn from N(0, std²).
 *
 * @example
 * ```ts
 * import { fromArray, init } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { Embedding } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using table = new Embedding(ctx, 5, 8);
 * using tokens = fromArray(ctx, [0, 4, 4, 1, 2, 3], [2, 3]);
 * using x = table.forward(tokens);
 * x.shape; // => [2, 3, 8]
 * ```
 * @throws OptionError for sizes that are not integers ≥ 1.
 */
export class Embedding extends Module {
  readonly weight: Tensor;

  constructor(ctx: Context, count: number, dim: number, options?: EmbeddingOptions) {
    super();
    checkContext("Embedding", ctx);
    const { std, dtype } = embeddingOptions.parse(options);
    checkArgument("Embedding: count", count, option.integer({ min: 1 }));
    checkArgument("Embedding: dim", dim, option.integer({ min: 1 }));
    const initial = { kind: "normal", mean: 0, std } as const;
    this.weight = this.addParameter("weight", createParameter(ctx, [count, dim], { initial, dtype }));
  }

  /** tokens [..] → [..,dim]; see `embedding`. */
  forward(tokens: Tensor): Tensor {
    return embedding(tokens, this.weight);
  }
}
