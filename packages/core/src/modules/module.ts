import { OptionError } from "../errors.ts";
import type { Tensor } from "../tensor.ts";
import { loadState, type LoadOptions, type LoadReport, type StateDict } from "./state-dict.ts";

/**
 * Something with parameters: tensors of its own and those of the modules within. Names are dotted paths, the same on
 * every rank and in every checkpoint.
 *
 * @example
 * ```ts
 * import { init, Linear, Module, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * class Head extends Module {
 *   readonly first = this.addChild("first", new Linear(ctx, 4, 2));
 *   forward(x: Tensor): Tensor {
 *     return this.first.forward(x);
 *   }
 * }
 * using head = new Head();
 * head.namedParameters().map(([name]) => name); // => ["first.weight", "first.bias"]
 * ```
 */
export abstract class Module implements Disposable {
  readonly #parameters = new Map<string, Tensor>();
  readonly #children = new Map<string, Module>();
  #training = true;

  /** Whether the module is being trained, as `train` and `eval` set it. */
  get training(): boolean {
    return this.#training;
  }

  /** Makes a tensor a parameter of this module, which owns it from now on. */
  protected addParameter(name: string, tensor: Tensor): Tensor {
    this.#checkName(name);
    tensor.requiresGrad = true;
    this.#parameters.set(name, tensor);
    return tensor;
  }

  /** Makes a module a part of this one, which owns it from now on. */
  protected addChild<M extends Module>(name: string, module: M): M {
    this.#checkName(name);
    this.#children.set(name, module);
    return module;
  }

  #checkName(name: string): void {
    const taken = this.#parameters.has(name) || this.#children.has(name);
    if (!taken && name !== "" && !name.includes(".")) return;
    throw new OptionError({
      where: this.constructor.name,
      expected: "a new name without dots",
      received: JSON.stringify(name),
    });
  }

  /** Own parameters first, then those of the modules within, in the order in which they were added. */
  namedParameters(): [name: string, parameter: Tensor][] {
    const own = [...this.#parameters];
    const inner = [...this.#children].flatMap(([name, child]) =>
      child.namedParameters().map(([path, parameter]): [string, Tensor] => [`${name}.${path}`, parameter]),
    );
    return [...own, ...inner];
  }

  parameters(): Tensor[] {
    return this.namedParameters().map(([, parameter]) => parameter);
  }

  /** The parameters themselves by name, as PyTorch's `state_dict`: what training changes, changes here. */
  stateDict(): ReadonlyMap<string, Tensor> {
    return new Map(this.namedParameters());
  }

  /**
   * Copies values into the parameters of the same names: all of them, or, if anything does not fit, none. Values may be
   * tensors of this device or lie on the host. Communicates nothing: every rank loads the same.
   *
   * @throws StateError that lists missing and unexpected names, and shapes and dtypes that differ.
   */
  loadStateDict(state: StateDict, options: LoadOptions = {}): LoadReport {
    return loadState(`${this.constructor.name}.loadStateDict`, this.stateDict(), state, options);
  }

  /** The modules directly within, by name. */
  children(): [name: string, module: Module][] {
    return [...this.#children];
  }

  /** Disposes every parameter's gradient. */
  zeroGrad(): void {
    for (const parameter of this.parameters()) {
      parameter.grad?.dispose();
      parameter.grad = null;
    }
  }

  /** Switches this module and those within to training, or off it. */
  train(on = true): this {
    this.#training = on;
    for (const child of this.#children.values()) child.train(on);
    return this;
  }

  eval(): this {
    return this.train(false);
  }

  /** Disposes parameters and gradients, and the modules within. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const child of this.#children.values()) child[Symbol.dispose]();
    for (const parameter of this.#parameters.values()) {
      parameter.grad?.dispose();
      parameter.grad = null;
      parameter.dispose();
    }
  }
}
