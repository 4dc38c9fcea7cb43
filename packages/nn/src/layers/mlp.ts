import { type Context, checkOptionNames, type DType, Linear, Module, type Tensor } from "@mosaic/core";
import { type ActivationName, activationOf } from "./activations.ts";
import { Dropout } from "./dropout.ts";
import type { WhereOptions } from "./where.ts";

/** What MLP takes. */
export interface MLPOptions {
  /** Features that come in. */
  readonly embedDim: number;
  /** Features between. Default 4 · embedDim. */
  readonly hiddenDim?: number;
  /** Features that go out. Default embedDim. */
  readonly outDim?: number;
  /** Default "gelu". */
  readonly activation?: ActivationName;
  /** Probability of dropout after the activation and after the second layer. Default 0. */
  readonly dropout?: number;
  /** How the tensor is cut over the ranks; only dropout asks. */
  readonly where?: WhereOptions;
  /** Default true. */
  readonly bias?: boolean;
  readonly dtype?: DType;
}

const legal = [
  "embedDim",
  "hiddenDim",
  "outDim",
  "activation",
  "dropout",
  "where",
  "bias",
  "dtype",
] as const satisfies readonly (keyof MLPOptions)[];

/**
 * The transformer's feed-forward layer: fc2(activation(fc1(x))) over the last axis.
 *
 * @example
 * ```ts
 * import { init, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { MLP } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using mlp = new MLP(ctx, { embedDim: 8, hiddenDim: 32 });
 * using x = randn(ctx, [2, 5, 8]);
 * using y = mlp.forward(x);
 * mlp.namedParameters().map(([name]) => name); // => ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
 * y.shape; // => [2, 5, 8]
 * ```
 */
export class MLP extends Module {
  readonly fc1: Linear;
  readonly fc2: Linear;
  readonly #activation: (x: Tensor) => Tensor;
  readonly #drop: Dropout;

  constructor(ctx: Context, options: MLPOptions) {
    super();
    checkOptionNames("MLP", options, legal);
    const { embedDim, hiddenDim = 4 * embedDim, outDim = embedDim, activation = "gelu", dropout = 0 } = options;
    const { where = {}, bias = true, dtype = "float32" } = options;
    this.#activation = activationOf("MLP", activation);
    this.fc1 = this.addChild("fc1", new Linear(ctx, embedDim, hiddenDim, { bias, dtype }));
    this.fc2 = this.addChild("fc2", new Linear(ctx, hiddenDim, outDim, { bias, dtype }));
    this.#drop = this.addChild("drop", new Dropout(ctx, dropout, where));
  }

  /** x [..,embedDim] → [..,outDim]. */
  forward(x: Tensor): Tensor {
    const hidden = this.#activation(this.fc1.forward(x));
    if (this.#drop.probability === 0) return this.fc2.forward(hidden);
    return this.#drop.forward(this.fc2.forward(this.#drop.forward(hidden)));
  }
}
