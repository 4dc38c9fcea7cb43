import { checkTensor } from "../arguments.ts";
import { checkFunction, expectValue, formatValue, OptionError } from "../errors.ts";
import { inspectAsString } from "../inspect.ts";
import * as option from "../option.ts";
import { defineOptions, type OptionsOf } from "../options.ts";
import { keep, scopeUnlessAsync } from "../scope.ts";
import { isTensor, type Tensor } from "../tensor.ts";
import { listValues } from "./field-values.ts";
import { className, formatModule } from "./format-module.ts";
import { checkHookResult, checkPreHookResult, HookList, type RemovableHandle } from "./hook-list.ts";
import { loadState, type LoadOptions, type LoadReport, type StateDict } from "./state-dict.ts";

/** Runs before `forward` of `module` and returns its new arguments, or nothing to leave them unchanged. */
// oxlint-disable-next-line typescript/no-invalid-void-type -- a function without a return statement
export type ForwardPreHook = (args: readonly unknown[], module: Module) => readonly unknown[] | void;
/**
 * Runs after `forward` of `module` and returns the new result of the call, or nothing to leave it unchanged. `args` are
 * the arguments of `forward`, as the pre-hooks returned them.
 */
export type ForwardHook = (output: unknown, args: readonly unknown[], module: Module) => unknown;

export const bufferOptions = defineOptions("addBuffer", {
  /** Whether the buffer is part of the state dict. Default true. */
  persistent: option.boolean({ default: true }),
});
/** Options of `Module.addBuffer`. */
export type BufferOptions = OptionsOf<typeof bufferOptions>;

export const namedModulesOptions = defineOptions("namedModules", {
  /** Whether a module that several modules share is listed once, under its first name. Default true. */
  removeDuplicate: option.boolean({ default: true }),
});
/** Options of `Module.namedModules`. */
export type NamedModulesOptions = OptionsOf<typeof namedModulesOptions>;

/**
 * Base class of modules with parameters: their own tensors and those of child modules. Names are dotted paths, the same
 * on every rank and in every checkpoint.
 *
 * A subclass has a method `forward` with any parameters. Every call of it runs in a `scope`: tensors created in it are
 * released when it ends, except those that it returns and those that a backward needs. `super.forward(…)` runs in the
 * same scope. An asynchronous forward has no scope and must bind tensors with `using`. Other methods are not wrapped.
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
  /** Names of buffers that are not part of the state dict. */
  readonly #nonPersistentBuffers = new Set<string>();
  readonly #children = new Map<string, Module>();
  readonly #forwardPreHooks = new HookList<ForwardPreHook>();
  readonly #forwardHooks = new HookList<ForwardHook>();
  readonly #resources: Disposable[] = [];
  #training = true;
  /** Whether fields were compared with the registered children since the children last changed. */
  #areFieldsChecked = false;

  constructor() {
    // An own property, so that a scope wraps the `forward` of the most derived class exactly once. Not writable, so
    // that the wrapper cannot be replaced: a field named `forward` is a TypeError.
    const forward: unknown = Reflect.get(this, "forward");
    const value = typeof forward === "function" ? this.#wrapForward(forward) : undefined;
    Object.defineProperty(this, "forward", { value });
  }

  // oxlint-disable-next-line typescript/no-unsafe-function-type -- of any parameters
  #wrapForward(forward: Function): (...args: readonly unknown[]) => unknown {
    return (...args) =>
      scopeUnlessAsync(() => {
        if (!this.#areFieldsChecked) this.#checkFields();
        const hookedArgs = this.#forwardPreHooks.hooks.reduce(
          (hookArgs, hook) => checkPreHookResult(className(this), hook(hookArgs, this)) ?? hookArgs,
          args,
        );
        const output = Reflect.apply(forward, this, hookedArgs) as unknown;
        return this.#forwardHooks.hooks.reduce(
          (hookOutput, hook) =>
            checkHookResult(className(this), hook(hookOutput, hookedArgs, this), hookOutput) ?? hookOutput,
          output,
        );
      });
  }

  /**
   * Runs `hook` before every call of `forward`, within its scope and after previously registered hooks, as PyTorch's
   * `register_forward_pre_hook`. Returns a handle that removes the hook. Other methods do not run it, even if they compute
   * the same: `CausalLM.generate` of @mosaic/models calls only the forwards of submodules, so that only their hooks run.
   *
   * @example
   * ```ts
   * import { init, Linear, ones, type Tensor } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * using layer = new Linear(ctx, 2, 1, { bias: false });
   * ctx.device.write(layer.weight, [1, 2]);
   * layer.registerForwardPreHook(([x]) => [(x as Tensor).scale(10)]);
   * const handle = layer.registerForwardHook((y) => (y as Tensor).neg());
   * using x = ones(ctx, [1, 2]);
   * using y = layer.forward(x);
   * await y.item(); // => -30
   * handle.remove();
   * using z = layer.forward(x);
   * await z.item(); // => 30
   * ```
   */
  registerForwardPreHook(hook: ForwardPreHook): RemovableHandle {
    checkFunction(`${className(this)}.registerForwardPreHook`, hook);
    return this.#forwardPreHooks.add(hook);
  }

  /**
   * Runs `hook` on the result of every call of `forward`, within its scope and after previously registered hooks, as
   * PyTorch's `register_forward_hook`. Returns a handle that removes the hook. Other methods do not run it, as described at
   * `registerForwardPreHook`.
   *
   * @example
   * ```ts
   * import { init, Linear, type Module, ones, type Tensor } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * using layer = new Linear(ctx, 4, 2);
   * using x = ones(ctx, [3, 4]);
   * const shapes: string[] = [];
   * const printShapes = (y: unknown, [x]: readonly unknown[], module: Module): void => {
   *   shapes.push(`${module.constructor.name} ${(x as Tensor).shape} → ${(y as Tensor).shape}`);
   * };
   * {
   *   using handle = layer.registerForwardHook(printShapes); // until the end of the block
   *   layer.forward(x).dispose();
   * }
   * layer.forward(x).dispose();
   * shapes; // => ["Linear 3,4 → 3,2"]
   * ```
   */
  registerForwardHook(hook: ForwardHook): RemovableHandle {
    checkFunction(`${className(this)}.registerForwardHook`, hook);
    return this.#forwardHooks.add(hook);
  }

  /** Whether the module has forward hooks. Code that replaces `forward` by another operation would skip them. */
  get hasForwardHooks(): boolean {
    return !(this.#forwardPreHooks.isEmpty && this.#forwardHooks.isEmpty);
  }

  /** Whether the module is in training mode, which `train` and `eval` set. */
  get training(): boolean {
    return this.#training;
  }

  /** Registers a tensor as a parameter of this module, which takes ownership. */
  protected addParameter(name: string, tensor: Tensor): Tensor {
    this.#checkName(name);
    checkTensor(`${className(this)}: "${name}"`, tensor);
    tensor.requiresGrad = true;
    this.#parameters.set(name, keep(tensor));
    return tensor;
  }

  /**
   * Registers a tensor that is not a parameter as part of this module's state, for example a running mean, as PyTorch's
   * `register_buffer`. The module takes ownership. With `persistent: false` the buffer is not part of the state dict and
   * of checkpoints, for example a table that the constructor computes.
   *
   * @example
   * ```ts
   * import { fromArray, init, Module, ones } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * class Model extends Module {
   *   readonly mean = this.addBuffer("mean", ones(ctx, [2]));
   *   readonly table = this.addBuffer("table", fromArray(ctx, [0, 1, 4], [3]), { persistent: false });
   * }
   * using model = new Model();
   * model.namedBuffers().map(([name]) => name); // => ["mean", "table"]
   * [...model.stateDict().keys()]; // => ["mean"]
   * ```
   */
  protected addBuffer(name: string, tensor: Tensor, options?: BufferOptions): Tensor {
    this.#checkName(name);
    const where = `${className(this)}: "${name}"`;
    checkTensor(where, tensor);
    const { persistent } = bufferOptions.parse(options, where);
    this.#buffers.set(name, keep(tensor));
    if (!persistent) this.#nonPersistentBuffers.add(name);
    return tensor;
  }

  /** Registers a child module of this module, which takes ownership. */
  protected addChild<M extends Module>(name: string, module: M): M {
    this.#checkName(name);
    checkModule(`${className(this)}: "${name}"`, module);
    this.#children.set(name, module);
    this.#areFieldsChecked = false;
    return module;
  }

  /**
   * Replaces a child by another module, also in every property of this module that refers to it, as PyTorch's
   * `setattr(parent, name, module)`. For example, to wrap a layer in an adapter. Returns the child, which this module
   * no longer owns.
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
   * @throws OptionError, without any change, if no child has this name, or if no property refers to the child: a
   * `#field` cannot be replaced, and `forward` would continue to use the old child.
   */
  replaceChild(name: string, module: Module): Module {
    const where = `${className(this)}.replaceChild`;
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

  /**
   * Replaces all references to a child by another module. Returns whether there were any. Override it in modules that
   * do not hold their children in properties.
   */
  protected replaceReferences(child: Module, module: Module): boolean {
    const referencingFields = Object.entries(this).filter(([, value]) => value === child);
    for (const [property] of referencingFields) Reflect.set(this, property, module);
    return referencingFields.length > 0;
  }

  #checkName(name: string): void {
    const isNameUsed = [this.#parameters, this.#buffers, this.#children].some((names) => names.has(name));
    if (typeof name === "string" && !isNameUsed && name !== "" && !name.includes(".")) return;
    throw new OptionError({
      where: className(this),
      expected: "a unique, non-empty name without dots",
      received: formatValue(name),
    });
  }

  /**
   * Throws if a field holds a layer or a parameter that is not registered, because it would be neither trained nor
   * saved. `#field`s are not checked.
   */
  #checkFields(): void {
    for (const [field, value] of Object.entries(this) as [string, unknown][]) {
      const values = listValues(value);
      const isList = values[0] !== value;
      const unregisteredModule = values.filter((each) => isModule(each)).find((module) => !this.#contains(module));
      if (unregisteredModule) {
        const layers = isList ? "new ModuleList([…])" : "…";
        throw new OptionError({
          where: className(this),
          expected: "every layer to be a registered child",
          received: `the field "${field}" (${className(unregisteredModule)}${isList ? "[]" : ""})`,
          remedy: `write ${field} = this.addChild("${field}", ${layers}), or keep a layer of another module in a #field`,
        });
      }
      const unregisteredParameter = values
        .filter((each) => isTensor(each) && each.requiresGrad && each.node === undefined)
        .find((parameter) => !this.#containsParameter(parameter as Tensor));
      if (unregisteredParameter) {
        throw new OptionError({
          where: className(this),
          expected: "every tensor that requires a gradient to be a registered parameter",
          received: `the field "${field}" (Tensor${isList ? "[]" : ""})`,
          remedy: `write ${field} = this.addParameter("${field}", …), or keep a tensor of another module in a #field`,
        });
      }
    }
    this.#areFieldsChecked = true;
  }

  /** Returns whether a module is a direct or indirect child. */
  #contains(module: Module): boolean {
    const children = [...this.#children.values()];
    return children.includes(module) || children.some((child) => #children in child && child.#contains(module));
  }

  /** Returns whether a tensor is a parameter or a buffer of this module or of a direct or indirect child. */
  #containsParameter(tensor: Tensor): boolean {
    const own = [...this.#parameters.values(), ...this.#buffers.values()];
    const children = [...this.#children.values()];
    return own.includes(tensor) || children.some((child) => #children in child && child.#containsParameter(tensor));
  }

  /**
   * Returns the module's own parameters, then those of its children, in the order of registration. A parameter that
   * several modules share is listed once, under its first name.
   *
   * @throws OptionError if a field, or an array, map or object in a field, contains a layer or a tensor that requires
   * grad but is not registered, because it would not be trained.
   */
  namedParameters(): [name: string, parameter: Tensor][] {
    this.#checkFields();
    return this.#collectNamed(this.#parameters, (child) => child.namedParameters());
  }

  /** As `namedParameters`, for buffers, including those that are not persistent. */
  namedBuffers(): [name: string, buffer: Tensor][] {
    return this.#collectNamed(this.#buffers, (child) => child.namedBuffers());
  }

  #namedPersistentBuffers(): [name: string, buffer: Tensor][] {
    const ownBuffers = [...this.#buffers].filter(([name]) => !this.#nonPersistentBuffers.has(name));
    // A module of another copy of this package has no such private method.
    return this.#collectNamed(new Map(ownBuffers), (child) =>
      #buffers in child ? child.#namedPersistentBuffers() : (child as Module).namedBuffers(),
    );
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

  /**
   * Returns the parameters and persistent buffers by name, as PyTorch's `state_dict`. These are the tensors themselves,
   * not copies, so that training changes them.
   */
  stateDict(): ReadonlyMap<string, Tensor> {
    return new Map([...this.namedParameters(), ...this.#namedPersistentBuffers()]);
  }

  /**
   * Copies values into the parameters and persistent buffers of the same names. If anything does not match, none is changed.
   * Values may be tensors on this device or on the host. Does not communicate: every rank must load the same values.
   *
   * @throws StateDictError that lists missing and unexpected names, and shapes and dtypes that differ.
   */
  loadStateDict(state: StateDict, options?: LoadOptions): LoadReport {
    return loadState(`${className(this)}.loadStateDict`, this.stateDict(), state, options);
  }

  /** Returns the direct children, by name. */
  children(): [name: string, module: Module][] {
    return [...this.#children];
  }

  /**
   * Returns this module, with the name "", and all modules within it, with their paths, as PyTorch's `named_modules`: a
   * module before its children, which are in the order of registration.
   *
   * @example
   * ```ts
   * import { init, Linear, Module } from "@mosaic/core";
   * import { cpu } from "@mosaic/kernels-cpu";
   * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
   * class Block extends Module {
   *   readonly fc1 = this.addChild("fc1", new Linear(ctx, 2, 4));
   *   readonly fc2 = this.addChild("fc2", new Linear(ctx, 4, 2));
   * }
   * class Model extends Module {
   *   readonly block = this.addChild("block", new Block());
   *   readonly again = this.addChild("again", this.block);
   * }
   * using model = new Model();
   * model.namedModules().map(([name]) => name); // => ["", "block", "block.fc1", "block.fc2"]
   * ```
   */
  namedModules(options?: NamedModulesOptions): [name: string, module: Module][] {
    const { removeDuplicate } = namedModulesOptions.parse(options, `${className(this)}.namedModules`);
    const entries: [string, Module][] = [];
    const seenModules = new Set<Module>();
    const visit = (name: string, module: Module): void => {
      if (removeDuplicate && seenModules.has(module)) return;
      seenModules.add(module);
      entries.push([name, module]);
      for (const [childName, child] of module.children())
        visit(name === "" ? childName : `${name}.${childName}`, child);
    };
    visit("", this);
    return entries;
  }

  /** Disposes every parameter's gradient. */
  zeroGrad(): void {
    const parameters = this.parameters();
    for (const parameter of parameters) {
      parameter.grad?.dispose();
      parameter.grad = null;
    }
    const reducers = new Set(parameters.flatMap(({ replication }) => replication?.reducer ?? []));
    for (const reducer of reducers) reducer.zeroGrad(parameters);
  }

  /** Sets the training mode of this module and all its children. */
  train(on = true): this {
    this.#training = on;
    for (const child of this.#children.values()) child.train(on);
    return this;
  }

  eval(): this {
    return this.train(false);
  }

  static {
    inspectAsString(this.prototype);
  }

  /** Returns the classes, parameters and buffers of this module and its children, as shown by `console.log`. */
  toString(): string {
    return formatModule(this, { parameters: this.#parameters, buffers: this.#buffers });
  }

  /** Registers a resource that is not a parameter, buffer or module. It is disposed together with this module. */
  addResource(resource: Disposable): void {
    const where = `${className(this)}.addResource`;
    checkFunction(where, (resource as Partial<Disposable> | null)?.[Symbol.dispose]);
    this.#resources.push(resource);
  }

  /** Disposes parameters, gradients, buffers, children, and the resources registered by `addResource`. */
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

/** Returns whether a value is a module, of any copy of this package. */
function isModule(value: unknown): value is Module {
  const { namedParameters, stateDict } = (value ?? {}) as Partial<Module>;
  return typeof namedParameters === "function" && typeof stateDict === "function";
}

/** Throws an OptionError unless `module` is a module. */
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
