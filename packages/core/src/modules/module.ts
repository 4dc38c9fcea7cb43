import { checkTensor } from "../arguments.ts";
import { checkFunction, expectValue, formatValue, OptionError } from "../errors.ts";
import { keep, scopeUnlessAsync } from "../scope.ts";
import { isTensor, type Tensor } from "../tensor.ts";
import { loadState, type LoadOptions, type LoadReport, type StateDict } from "./state-dict.ts";

/** Runs before `forward` and returns the arguments that it is called with; nothing: those that there are. */
// oxlint-disable-next-line typescript/no-invalid-void-type -- a function without a return statement
export type ForwardPreHook = (args: readonly unknown[]) => readonly unknown[] | void;
/** Runs after `forward` and returns what the call of it returns; nothing: what `forward` returns. */
export type ForwardHook = (output: unknown) => unknown;

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
  readonly #forwardPreHooks: ForwardPreHook[] = [];
  readonly #forwardHooks: ForwardHook[] = [];
  readonly #resources: Disposable[] = [];
  #training = true;
  /** Whether fields were compared with the children since these last changed. */
  #areFieldsChecked = false;

  constructor() {
    // An own property, so that whatever class overrides `forward` last is what a scope surrounds, once; not writable, so that
    // nothing replaces the call path: a field called `forward` is a TypeError.
    const forward: unknown = Reflect.get(this, "forward");
    const value = typeof forward === "function" ? this.#wrapForward(forward) : undefined;
    Object.defineProperty(this, "forward", { value });
  }

  // oxlint-disable-next-line typescript/no-unsafe-function-type -- of any parameters
  #wrapForward(forward: Function): (...args: readonly unknown[]) => unknown {
    const [preHooks, hooks] = [this.#forwardPreHooks, this.#forwardHooks];
    return (...args) =>
      scopeUnlessAsync(() => {
        if (!this.#areFieldsChecked) this.#checkFields();
        if (preHooks.length === 0 && hooks.length === 0) return Reflect.apply(forward, this, args) as unknown;
        const hookedArgs = preHooks.reduce((hookArgs, hook) => hook(hookArgs) ?? hookArgs, args);
        return hooks.reduce(
          (hookOutput, hook) => hook(hookOutput) ?? hookOutput,
          Reflect.apply(forward, this, hookedArgs) as unknown,
        );
      });
  }

  /**
   * Runs `hook` before every call of `forward`, within its scope, after the hooks that there are: PyTorch's `register_forward_pre_hook`.
   *
   * @example
   * ```ts
   * import { init, Linear, ones, type Tensor } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * using layer = new Linear(ctx, 2, 1, { bias: false });
   * ctx.device.write(layer.weight, [1, 2]);
   * layer.registerForwardPreHook(([x]) => [(x as Tensor).scale(10)]);
   * layer.registerForwardHook((y) => (y as Tensor).neg());
   * using x = ones(ctx, [1, 2]);
   * using y = layer.forward(x);
   * await y.item(); // => -30
   * ```
   */
  registerForwardPreHook(hook: ForwardPreHook): void {
    checkFunction(`${this.constructor.name}.registerForwardPreHook`, hook);
    this.#forwardPreHooks.push(hook);
  }

  /** Runs `hook` on what every call of `forward` returns, within its scope: PyTorch's `register_forward_hook`. */
  registerForwardHook(hook: ForwardHook): void {
    checkFunction(`${this.constructor.name}.registerForwardHook`, hook);
    this.#forwardHooks.push(hook);
  }

  /** Whether hooks run with `forward`: an operation in its place would leave them out. */
  get hasForwardHooks(): boolean {
    return this.#forwardPreHooks.length > 0 || this.#forwardHooks.length > 0;
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
    this.#areFieldsChecked = false;
    return module;
  }

  /**
   * Puts a module in the place of a child, in every property of this module that holds it, too, as PyTorch's `setattr(parent, name, module)`:
   * an adapter around a layer. Returns the child, which this module no longer owns.
   *
   * @example
   * ```ts
   * import { init, Linear, Module, type Tensor } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * class Model extends Module {
   *   readonly head = this.addChild("head", new Linear(ctx, 4, 2));
   *   forward(x: Tensor): Tensor {
   *     return this.head.forward(x);
   *   }
   * }
   * using model = new Model();
   * model.replaceChild("head", new Linear(ctx, 4, 3)).dispose();
   * model.head.weight.shape; // => [3, 4]
   * ```
   * @throws OptionError, with nothing changed, for a name that no child has, and for a child that no property holds: one in a `#field` is out
   * of reach, and `forward` would go on using it.
   */
  replaceChild(name: string, module: Module): Module {
    const where = `${this.constructor.name}.replaceChild`;
    const child = this.#children.get(name);
    if (!child) {
      const expected = `the name of a child module (available: ${[...this.#children.keys()].join(", ") || "none"})`;
      throw new OptionError({ where, expected, received: formatValue(name) });
    }
    checkModule(`${where}: "${name}"`, module);
    if (!this.replaceReferences(child, module)) {
      throw new OptionError({
        where,
        expected: `a property that refers to the child module "${name}"`,
        received: "no assignable property",
        remedy: "keep the child in a property of the module, not in a #field",
      });
    }
    this.#children.set(name, module);
    this.#areFieldsChecked = false;
    return child;
  }

  /** Sets what holds a child to another module; returns whether there is such a thing. For modules that hold children otherwise than in properties. */
  protected replaceReferences(child: Module, module: Module): boolean {
    const referencingFields = Object.entries(this).filter(([, value]) => value === child);
    for (const [property] of referencingFields) Reflect.set(this, property, module);
    return referencingFields.length > 0;
  }

  #checkName(name: string): void {
    const isNameUsed = [this.#parameters, this.#buffers, this.#children].some((names) => names.has(name));
    if (typeof name === "string" && !isNameUsed && name !== "" && !name.includes(".")) return;
    throw new OptionError({
      where: this.constructor.name,
      expected: "a unique, non-empty name without dots",
      received: formatValue(name),
    });
  }

  /**
   * A layer or a parameter in a field that was not added would compute, but be neither trained nor saved. What a `#field` holds is
   * not looked at.
   */
  #checkFields(): void {
    for (const [field, value] of Object.entries(this) as [string, unknown][]) {
      const values = listValues(value);
      const isList = values[0] !== value;
      const unregisteredModule = values.filter((each) => isModule(each)).find((module) => !this.#contains(module));
      if (unregisteredModule) {
        const layers = isList ? "new ModuleList([…])" : "…";
        throw new OptionError({
          where: this.constructor.name,
          expected: "every layer to be a registered child",
          received: `the field "${field}" (${unregisteredModule.constructor.name}${isList ? "[]" : ""})`,
          remedy: `write ${field} = this.addChild("${field}", ${layers}), or keep a layer of another module in a #field`,
        });
      }
      const unregisteredParameter = values
        .filter((each) => isTensor(each) && each.requiresGrad && each.node === undefined)
        .find((parameter) => !this.#containsParameter(parameter as Tensor));
      if (unregisteredParameter) {
        throw new OptionError({
          where: this.constructor.name,
          expected: "every tensor that requires a gradient to be a registered parameter",
          received: `the field "${field}" (Tensor${isList ? "[]" : ""})`,
          remedy: `write ${field} = this.addParameter("${field}", …), or keep a tensor of another module in a #field`,
        });
      }
    }
    this.#areFieldsChecked = true;
  }

  /** Whether a module is a child, or anywhere within one. */
  #contains(module: Module): boolean {
    const children = [...this.#children.values()];
    return children.includes(module) || children.some((child) => #children in child && child.#contains(module));
  }

  /** Whether a tensor is a parameter or a buffer, of this module or anywhere within. */
  #containsParameter(tensor: Tensor): boolean {
    const own = [...this.#parameters.values(), ...this.#buffers.values()];
    const children = [...this.#children.values()];
    return own.includes(tensor) || children.some((child) => #children in child && child.#containsParameter(tensor));
  }

  /**
   * Own parameters first, then those of the modules within, in the order in which they were added. A parameter that several modules
   * share is there once, under its first name.
   *
   * @throws OptionError for a layer or a tensor that requires a gradient in a field, or in an array, a map or an object in a field,
   * that was not added: it would not be trained.
   */
  namedParameters(): [name: string, parameter: Tensor][] {
    this.#checkFields();
    return this.#collectNamed(this.#parameters, (child) => child.namedParameters());
  }

  /** As `namedParameters`, of buffers. */
  namedBuffers(): [name: string, buffer: Tensor][] {
    return this.#collectNamed(this.#buffers, (child) => child.namedBuffers());
  }

  #collectNamed(
    ownTensors: ReadonlyMap<string, Tensor>,
    getChildTensors: (child: Module) => [string, Tensor][],
  ): [string, Tensor][] {
    const childEntries = [...this.#children].flatMap(([name, child]) =>
      getChildTensors(child).map(([path, tensor]): [string, Tensor] => [`${name}.${path}`, tensor]),
    );
    const seenTensors = new Set<Tensor>();
    return [...ownTensors, ...childEntries].filter(([, tensor]) => !seenTensors.has(tensor) && seenTensors.add(tensor));
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
      parameter.replication?.reducer?.zeroGrad();
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

  /** Makes this module the owner of what is no parameter, buffer or module: it is disposed with it. */
  addResource(resource: Disposable): void {
    const where = `${this.constructor.name}.addResource`;
    checkFunction(where, (resource as Partial<Disposable> | null)?.[Symbol.dispose]);
    this.#resources.push(resource);
  }

  /** Disposes parameters, gradients and buffers, the modules within, and what was added by `addResource`. */
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
    for (const resource of this.#resources.splice(0)) resource[Symbol.dispose]();
  }
}

/** Whether it is one, of any copy of this package. */
function isModule(value: unknown): value is Module {
  const { namedParameters, stateDict } = (value ?? {}) as Partial<Module>;
  return typeof namedParameters === "function" && typeof stateDict === "function";
}

/** Throws an OptionError unless `module` is one. */
export function checkModule(where: string, module: unknown): asserts module is Module {
  const hasTensors = Array.isArray(module) && module.some((each) => isTensor(each));
  expectValue(
    where,
    isModule(module),
    "a Module",
    module,
    hasTensors ? "pass the model itself, not its parameters" : undefined,
  );
}

/** What a field holds: itself, or the values of an array, a map, a set or a plain object. */
function listValues(value: unknown): readonly unknown[] {
  if (Array.isArray(value)) return value;
  if (value instanceof Map || value instanceof Set) return [...value.values()];
  const isPlainObject =
    typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype;
  return isPlainObject ? Object.values(value) : [value];
}
