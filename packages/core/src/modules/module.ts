import { checkTensor } from "../arguments.ts";
import { expectValue, formatValue, OptionError } from "../errors.ts";
import { keep, scopeUnlessAsync } from "../scope.ts";
import { isTensor, type Tensor } from "../tensor.ts";
import { loadState, type LoadOptions, type LoadReport, type StateDict } from "./state-dict.ts";

/**
 * Something with parameters: tensors of its own and those of the modules within. Names are dotted paths, the same on
 * every rank and in every checkpoint.
 *
 * A subclass has a method `forward`, of any parameters. Every call of it runs in a `scope`: what it creates is released when
 * it ends, except what it returns and what a backward needs, so that its code reads as mathematics. `super.forward(…)` runs in
 * the same scope. An asynchronous forward has no scope, and binds tensors with `using`. Any other method is called as it is.
 *
 * @example
 * ```ts
 * import { init, Linear, Module, type Tensor } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * class Residual extends Module {
 *   readonly inner = this.addChild("inner", new Linear(ctx, 4, 4));
 *   forward(x: Tensor): Tensor {
 *     return x.add(this.inner.forward(x).relu());
 *   }
 * }
 * using residual = new Residual();
 * residual.namedParameters().map(([name]) => name); // => ["inner.weight", "inner.bias"]
 * ```
 */
export abstract class Module implements Disposable {
  readonly #parameters = new Map<string, Tensor>();
  readonly #buffers = new Map<string, Tensor>();
  readonly #children = new Map<string, Module>();
  #training = true;

  constructor() {
    // An own property, so that whatever class overrides `forward` last is what a scope surrounds, once; not writable, so that
    // nothing replaces the call path: a field called `forward` is a TypeError.
    const forward: unknown = Reflect.get(this, "forward");
    const value = typeof forward === "function" ? wrapInScope(this, forward) : undefined;
    Object.defineProperty(this, "forward", { value });
  }

  /** Whether the module is being trained, as `train` and `eval` set it. */
  get training(): boolean {
    return this.#training;
  }

  /** Makes a tensor a parameter of this module, which owns it from now on. */
  protected addParameter(name: string, tensor: Tensor): Tensor {
    this.#checkName(name);
    checkTensor(`${this.constructor.name}: "${name}"`, tensor);
    tensor.requiresGrad = true;
    this.#parameters.set(name, keep(tensor));
    return tensor;
  }

  /** Makes a tensor that is no parameter a part of this module's state, which owns it from now on: a table, a running mean. */
  protected addBuffer(name: string, tensor: Tensor): Tensor {
    this.#checkName(name);
    checkTensor(`${this.constructor.name}: "${name}"`, tensor);
    this.#buffers.set(name, keep(tensor));
    return tensor;
  }

  /** Makes a module a part of this one, which owns it from now on. */
  protected addChild<M extends Module>(name: string, module: M): M {
    this.#checkName(name);
    checkModule(`${this.constructor.name}: "${name}"`, module);
    this.#children.set(name, module);
    return module;
  }

  #checkName(name: string): void {
    const taken = [this.#parameters, this.#buffers, this.#children].some((names) => names.has(name));
    if (typeof name === "string" && !taken && name !== "" && !name.includes(".")) return;
    throw new OptionError({
      where: this.constructor.name,
      expected: "a unique name without dots",
      received: formatValue(name),
    });
  }

  /** Own parameters first, then those of the modules within, in the order in which they were added. */
  namedParameters(): [name: string, parameter: Tensor][] {
    return this.#collectNamed(this.#parameters, (child) => child.namedParameters());
  }

  /** As `namedParameters`, of buffers. */
  namedBuffers(): [name: string, buffer: Tensor][] {
    return this.#collectNamed(this.#buffers, (child) => child.namedBuffers());
  }

  #collectNamed(own: ReadonlyMap<string, Tensor>, within: (child: Module) => [string, Tensor][]): [string, Tensor][] {
    const inner = [...this.#children].flatMap(([name, child]) =>
      within(child).map(([path, tensor]): [string, Tensor] => [`${name}.${path}`, tensor]),
    );
    return [...own, ...inner];
  }

  parameters(): Tensor[] {
    return this.namedParameters().map(([, parameter]) => parameter);
  }

  /** The parameters and buffers themselves by name, as PyTorch's `state_dict`: what training changes, changes here. */
  stateDict(): ReadonlyMap<string, Tensor> {
    return new Map([...this.namedParameters(), ...this.namedBuffers()]);
  }

  /**
   * Copies values into the parameters and buffers of the same names: all of them, or, if anything does not fit, none. Values may be
   * tensors of this device or lie on the host. Communicates nothing: every rank loads the same.
   *
   * @throws StateDictError that lists missing and unexpected names, and shapes and dtypes that differ.
   */
  loadStateDict(state: StateDict, options?: LoadOptions): LoadReport {
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

  /** Disposes parameters, gradients and buffers, and the modules within. */
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
    for (const buffer of this.#buffers.values()) buffer.dispose();
  }
}

/** Throws an OptionError unless `module` is one. */
export function checkModule(where: string, module: unknown): asserts module is Module {
  const { namedParameters, stateDict } = (module ?? {}) as Partial<Module>;
  const isModule = typeof namedParameters === "function" && typeof stateDict === "function";
  const hasTensors = Array.isArray(module) && module.some((each) => isTensor(each));
  expectValue(
    where,
    isModule,
    "a Module",
    module,
    hasTensors ? "pass the model itself, not its parameters" : undefined,
  );
}

// oxlint-disable-next-line typescript/no-unsafe-function-type -- of any parameters
function wrapInScope(module: Module, forward: Function): (...args: readonly unknown[]) => unknown {
  return (...args) => scopeUnlessAsync(() => Reflect.apply(forward, module, args) as unknown);
}
