import { checkTensor, expectValue, Module, type Tensor } from "@mosaic/core";
import type { Embedding } from "./embedding.ts";

/**
 * The output projection of a language model that shares the weight of its embedding (Press and Wolf 2017), Hugging
 * Face's `tie_word_embeddings`: x [..,dim] · weightᵀ → logits [..,count]. The weight is a parameter of the embedding
 * only: one entry of the state dict, one slot of the optimizer, and one gradient, to which both uses add.
 *
 * @example
 * ```ts
 * import { fromArray, init, Module, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { Embedding, TiedLinear } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * class Model extends Module {
 *   embed = this.addChild("embed", new Embedding(ctx, 10, 4));
 *   head = this.addChild("head", new TiedLinear(this.embed));
 *   forward(tokens: Tensor): Tensor {
 *     return this.head.forward(this.embed.forward(tokens));
 *   }
 * }
 * using model = new Model();
 * using tokens = fromArray(ctx, [1, 2, 3], [1, 3]);
 * using logits = model.forward(tokens);
 * logits.shape; // => [1, 3, 10]
 * [...model.stateDict().keys()]; // => ["embed.weight"]
 * ```
 * @throws OptionError if the argument is not an Embedding.
 */
export class TiedLinear extends Module {
  readonly #embedding: Pick<Embedding, "weight">;

  constructor(embedding: Embedding) {
    super();
    const { weight } = (embedding ?? {}) as Partial<Embedding>;
    expectValue("TiedLinear", weight?.rank === 2, "an Embedding", embedding);
    this.#embedding = embedding;
  }

  /** The weight of the embedding, [count,dim]. */
  get weight(): Tensor {
    return this.#embedding.weight;
  }

  /** x [..,dim] → [..,count]. */
  forward(x: Tensor): Tensor {
    checkTensor("TiedLinear", x);
    return x.linear(this.weight);
  }
}
