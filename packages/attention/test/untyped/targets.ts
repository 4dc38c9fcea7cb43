import * as core from "@mosaic/core";
import { BatchScheduler, createModel } from "@mosaic/models";
import { type CacheSequence, KvCache, type KvCacheLayer } from "@mosaic/nn";
import { type Fixture, languageModel } from "./fixture.ts";
import { byName, byParameter } from "./calls.ts";

/** A public function, constructor or method, and its valid arguments. */
export interface Target {
  /** The qualified name, such as `nn.AdamW.step`. */
  readonly name: string;
  /** Creates new valid arguments. */
  readonly getValidArgs: (fixture: Fixture) => readonly unknown[] | Promise<readonly unknown[]>;
  /** Calls the target with any arguments. A method is called on a new object. */
  call(fixture: Fixture, args: readonly unknown[]): unknown;
}

type Callable = (...args: readonly unknown[]) => unknown;
type Constructor = new (...args: readonly unknown[]) => object;

/** Objects that public functions return, by the prefix of their methods' names. */
const objects: Readonly<Record<string, (fixture: Fixture) => object>> = {
  Context: ({ ctx }) => ctx,
  Group: ({ ctx }) => ctx.world,
  Mesh: ({ ctx }) => ctx.mesh,
  Device: ({ ctx }) => ctx.device,
  Tensor: ({ tensor }) => tensor(2, 4),
  Layout: () => core.layoutOf({ mesh: { sp: 1 }, axes: ["sp"], length: 4 }),
  Placement: () => core.zigzag(),
  Mask: () => core.masks.causal(),
  Backend: ({ ctx }) => ctx.backend("ring"),
  CausalLM: ({ ctx }) => createModel(ctx, languageModel),
  KvCacheLayer: (fixture) => createFilledCache(fixture).layer,
  CacheSequence: (fixture) => createFilledCache(fixture).sequence,
};

/** Creates a cache that holds three tokens of a sequence. */
function createFilledCache({ ctx }: Fixture): { readonly layer: KvCacheLayer; readonly sequence: CacheSequence } {
  const cache = new KvCache(ctx, { numKvHeads: 2, headDim: 4, maxTokens: 64, blockSize: 4 });
  const sequence = cache.createSequence();
  const layer = cache.layer(0, [sequence]);
  using x = core.zeros(ctx, [1, 2, 3, 4]);
  layer.append(x, x);
  return { layer, sequence };
}

/** Objects for methods that cannot be called on every object of their class. */
const instances: Readonly<Record<string, (fixture: Fixture) => object>> = {
  "Tensor.item": ({ tensor }) => tensor(),
  "Tensor.backward": ({ tensor }) => {
    const x = tensor(2, 4);
    x.requiresGrad = true;
    return core.square(x);
  },
  // A stopped scheduler, because otherwise `run` does not return.
  "models.BatchScheduler.run": ({ ctx }) => {
    const scheduler = new BatchScheduler(createModel(ctx, languageModel), { maxTokens: 64 });
    scheduler.stop();
    return scheduler;
  },
};

/** Returns all functions, constructors and methods that modules export, by name. */
export async function listTargets(names: Readonly<Record<string, string>>, fixture: Fixture): Promise<Target[]> {
  const targets = new Map<unknown, Target>();
  for (const [name, createInstance] of Object.entries(objects))
    addMethods(targets, name, { createInstance, sample: createInstance(fixture) });
  for (const [name, path] of Object.entries(names)) {
    const moduleExports = (await import(path)) as Readonly<Record<string, unknown>>;
    for (const [exportName, value] of Object.entries(moduleExports))
      await addValue(targets, `${name}.${exportName}`, value, fixture);
  }
  return [...targets.values()];
}

async function addValue(targets: Map<unknown, Target>, name: string, value: unknown, fixture: Fixture): Promise<void> {
  if (targets.has(value) || isError(value)) return;
  if (typeof value === "function" && /^class\b/.test(String(value)))
    await addClass(targets, name, value as Constructor, fixture);
  else if (typeof value === "function") {
    targets.set(value, {
      name,
      getValidArgs: findValidArguments(name, value),
      call: (_, args) => (value as Callable)(...args),
    });
  } else if (
    typeof value === "object" &&
    value !== null &&
    Object.values(value).some((each) => typeof each === "function")
  ) {
    for (const [memberName, member] of Object.entries(value))
      await addValue(targets, `${name}.${memberName}`, member, fixture);
  }
}

function isError(value: unknown): boolean {
  return typeof value === "function" && value.prototype instanceof Error;
}

async function addClass(
  targets: Map<unknown, Target>,
  name: string,
  Class: Constructor,
  fixture: Fixture,
): Promise<void> {
  const getValidArgs = findValidArguments(name, Class);
  targets.set(Class, { name, getValidArgs, call: (_, args) => new Class(...args) });
  const createInstance = (f: Fixture): object => new Class(...(getValidArgs(f) as readonly unknown[]));
  let sample: object | undefined;
  try {
    sample = createInstance(fixture);
  } catch {
    return; // reported as a target without a valid call
  }
  addMethods(targets, name, { createInstance, sample });
}

function addMethods(
  targets: Map<unknown, Target>,
  name: string,
  { createInstance, sample }: { createInstance: (fixture: Fixture) => object; sample: object },
): void {
  for (
    let prototype: object = sample;
    prototype !== Object.prototype;
    prototype = Object.getPrototypeOf(prototype) as object
  ) {
    for (const [method, { value }] of Object.entries(Object.getOwnPropertyDescriptors(prototype))) {
      if (typeof value !== "function" || method === "constructor") continue;
      const fullName = `${name}.${method}`;
      // Inherited methods are tested once. Methods of the object itself, such as a module's `forward`, are tested per
      // class.
      const key: unknown = prototype === sample ? fullName : value;
      if (targets.has(key)) continue;
      const call = (fixture: Fixture, args: readonly unknown[]): unknown => {
        const instance = (instances[fullName] ?? createInstance)(fixture) as Readonly<Record<string, Callable>>;
        return instance[method]!(...args);
      };
      targets.set(key, { name: fullName, getValidArgs: findValidArguments(fullName, value), call });
    }
  }
}

/** Returns the arguments that `byName` has for a name, the longest match first, or else those by parameter names. */
function findValidArguments(name: string, f: unknown): Target["getValidArgs"] {
  const nameParts = name.split(".");
  const [methodName, ownerName = ""] = nameParts.toReversed();
  const knownArguments =
    byName[nameParts.slice(-2).join(".")] ??
    byName[`*.${methodName}`] ??
    (ownerName === ownerName.toLowerCase() ? byName[methodName!] : undefined);
  if (
    knownArguments &&
    !(nameParts.length === 3 && byName[`*.${methodName}`] === knownArguments && byName[`${ownerName}.${methodName}`])
  )
    return knownArguments;
  const argumentFactories = listParameters(String(f)).map((parameter) => byParameter[parameter]);
  return (fixture) => argumentFactories.map((createArgument) => createArgument?.(fixture));
}

/** Returns the parameter names of a function from its source. */
function listParameters(source: string): string[] {
  const signatureText = source.startsWith("class") ? source.slice(source.search(/\bconstructor\s*\(/)) : source;
  const parameterMatch = /^[^(=]*?(?:\(([^]*?)\)\s*(?:=>|\{)|(\w+)\s*=>)/.exec(signatureText);
  const text = parameterMatch?.[1] ?? parameterMatch?.[2] ?? "";
  return text
    .replaceAll(/=[^,]*|[{}[\]]/g, "")
    .split(",")
    .map((each) => each.replace("...", "").trim())
    .filter((each) => each !== "");
}
