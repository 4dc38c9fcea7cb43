import { Module, scope, ShapeError, type Tensor, expectValue } from "@mosaic/core";

/** A module whose forward maps one tensor to one tensor. */
export interface Layer extends Module {
  forward(x: Tensor): Tensor;
}

/**
 * A list of modules. They are parts of the model that holds the list, with parameters named "0.weight", ….
 *
 * @example
 * ```ts
 * import { init, Linear } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { ModuleList } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using list = new ModuleList([new Linear(ctx, 4, 4, { bias: false }), new Linear(ctx, 4, 2, { bias: false })]);
 * list.namedParameters().map(([name]) => name); // => ["0.weight", "1.weight"]
 * list.at(-1)?.weight.shape; // => [2, 4]
 * ```
 */
export class ModuleList<M extends Module = Module> extends Module implements Iterable<M> {
  readonly #modules: M[] = [];

  constructor(modules: Iterable<M> = []) {
    super();
    const isIterable = typeof (modules as Partial<Iterable<M>> | null)?.[Symbol.iterator] === "function";
    expectValue(new.target.name, isIterable, "an iterable of modules", modules);
    for (const module of modules) this.append(module);
  }

  get length(): number {
    return this.#modules.length;
  }

  /** Adds a module at the end. */
  append(module: M): this {
    this.addChild(String(this.#modules.length), module);
    this.#modules.push(module);
    return this;
  }

  /** Returns the module at an index. A negative index counts from the end. */
  at(index: number): M | undefined {
    expectValue("ModuleList.at", Number.isSafeInteger(index), "an integer", index);
    return this.#modules.at(index);
  }

  protected override replaceReferences(child: Module, module: Module): boolean {
    const index = this.#modules.indexOf(child as M);
    if (index >= 0) this.#modules[index] = module as M;
    return super.replaceReferences(child, module) || index >= 0;
  }

  [Symbol.iterator](): IterableIterator<M> {
    return this.#modules[Symbol.iterator]();
  }
}

/**
 * Applies layers one after another. An intermediate tensor is released as soon as the next layer has used it, not only
 * when the scope of `forward` ends. The tape keeps the tensors that it needs.
 *
 * @example
 * ```ts
 * import { init, Linear, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { GELU, Sequential } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using model = new Sequential(new Linear(ctx, 8, 16), new GELU(), new Linear(ctx, 16, 1));
 * using x = randn(ctx, [3, 8]);
 * using y = model.forward(x);
 * y.shape; // => [3, 1]
 * model.namedParameters().map(([name]) => name); // => ["0.weight", "0.bias", "2.weight", "2.bias"]
 * ```
 */
export class Sequential extends ModuleList<Layer> {
  constructor(...layers: readonly Layer[]) {
    super(layers);
  }

  /** Applies every layer to x, in order. */
  forward(x: Tensor): Tensor {
    if (this.length === 0)
      throw new ShapeError({ where: "Sequential", expected: "at least one layer", received: "none" });
    return this.#forwardThrough(this.length, x);
  }

  /**
   * Applies the first `layers` layers to x. The scope releases the input of the last of them, unless it is also the
   * output.
   */
  #forwardThrough(layers: number, x: Tensor): Tensor {
    if (layers === 0) return x;
    return scope(() => this.at(layers - 1)!.forward(this.#forwardThrough(layers - 1, x)));
  }
}
