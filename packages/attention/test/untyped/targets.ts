import * as core from "@mosaic/core";
import { BatchScheduler, createModel } from "@mosaic/models";
import { type CacheSequence, KvCache, type KvCacheLayer } from "@mosaic/nn";
import { type Fixture, languageModel } from "./fixture.ts";
import { byName, byParameter } from "./calls.ts";

/** A public function, constructor or method, and how it is called. */
export interface Target {
  /** `nn.AdamW.step` */
  readonly name: string;
  /** The right arguments, made anew. */
  readonly right: (fixture: Fixture) => readonly unknown[] | Promise<readonly unknown[]>;
  /** Calls it with any arguments; a method on an object of its own. */
  call(fixture: Fixture, args: readonly unknown[]): unknown;
}

type Callable = (...args: readonly unknown[]) => unknown;
type Constructor = new (...args: readonly unknown[]) => object;

/** Objects that public functions return, by what their methods are called. */
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
  KvCacheLayer: (fixture) => filledCache(fixture).layer,
  CacheSequence: (fixture) => filledCache(fixture).sequence,
};

/** A cache that holds three tokens of a sequence. */
function filledCache({ ctx }: Fixture): { readonly layer: KvCacheLayer; readonly sequence: CacheSequence } {
  const cache = new KvCache(ctx, { numKvHeads: 2, headSize: 4, maxTokens: 64, blockSize: 4 });
  const sequence = cache.createSequence();
  const layer = cache.layer(0, [sequence]);
  using x = core.zeros(ctx, [1, 2, 3, 4]);
  layer.append(x, x);
  return { layer, sequence };
}

/** Methods that not every object of a class has a right call of. */
const instances: Readonly<Record<string, (fixture: Fixture) => object>> = {
  "Tensor.item": ({ tensor }) => tensor(),
  "Tensor.backward": ({ tensor }) => {
    const x = tensor(2, 4);
    x.requiresGrad = true;
    return core.square(x);
  },
  // One that was stopped, as others run on.
  "models.BatchScheduler.run": ({ ctx }) => {
    const scheduler = new BatchScheduler(createModel(ctx, languageModel), { maxTokens: 64 });
    scheduler.stop();
    return scheduler;
  },
};

/** Every function, constructor and method that modules export, by their names. */
export async function listTargets(names: Readonly<Record<string, string>>, fixture: Fixture): Promise<Target[]> {
  const targets = new Map<unknown, Target>();
  for (const [name, make] of Object.entries(objects)) addMethods(targets, name, { make, sample: make(fixture) });
  for (const [name, path] of Object.entries(names)) {
    const exported = (await import(path)) as Readonly<Record<string, unknown>>;
    for (const [each, value] of Object.entries(exported)) await addValue(targets, `${name}.${each}`, value, fixture);
  }
  return [...targets.values()];
}

async function addValue(targets: Map<unknown, Target>, name: string, value: unknown, fixture: Fixture): Promise<void> {
  if (targets.has(value) || isError(value)) return;
  if (typeof value === "function" && /^class\b/.test(String(value)))
    await addClass(targets, name, value as Constructor, fixture);
  else if (typeof value === "function") {
    targets.set(value, { name, right: validArguments(name, value), call: (_, args) => (value as Callable)(...args) });
  } else if (
    typeof value === "object" &&
    value !== null &&
    Object.values(value).some((each) => typeof each === "function")
  ) {
    for (const [each, member] of Object.entries(value)) await addValue(targets, `${name}.${each}`, member, fixture);
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
  const right = validArguments(name, Class);
  targets.set(Class, { name, right, call: (_, args) => new Class(...args) });
  const make = (f: Fixture): object => new Class(...(right(f) as readonly unknown[]));
  let sample: object | undefined;
  try {
    sample = make(fixture);
  } catch {
    return; // It stands among those without a right call.
  }
  addMethods(targets, name, { make, sample });
}

function addMethods(
  targets: Map<unknown, Target>,
  name: string,
  { make, sample }: { make: (fixture: Fixture) => object; sample: object },
): void {
  for (let level: object = sample; level !== Object.prototype; level = Object.getPrototypeOf(level) as object) {
    for (const [method, { value }] of Object.entries(Object.getOwnPropertyDescriptors(level))) {
      if (typeof value !== "function" || method === "constructor") continue;
      const full = `${name}.${method}`;
      // What classes inherit is called once; a module's `forward` is its own.
      const key: unknown = level === sample ? full : value;
      if (targets.has(key)) continue;
      const call = (fixture: Fixture, args: readonly unknown[]): unknown => {
        const object = (instances[full] ?? make)(fixture) as Readonly<Record<string, Callable>>;
        return object[method]!(...args);
      };
      targets.set(key, { name: full, right: validArguments(full, value), call });
    }
  }
}

/** What `byName` has for a name, longest part first, or what parameters are called. */
function validArguments(name: string, f: unknown): Target["right"] {
  const parts = name.split(".");
  const [last, before = ""] = parts.toReversed();
  const known =
    byName[parts.slice(-2).join(".")] ??
    byName[`*.${last}`] ??
    (before === before.toLowerCase() ? byName[last!] : undefined);
  if (known && !(parts.length === 3 && byName[`*.${last}`] === known && byName[`${before}.${last}`])) return known;
  const makers = listParameters(String(f)).map((parameter) => byParameter[parameter]);
  return (fixture) => makers.map((make) => make?.(fixture));
}

/** Names of the parameters of a function, as its source has them. */
function listParameters(source: string): string[] {
  const from = source.startsWith("class") ? source.slice(source.search(/\bconstructor\s*\(/)) : source;
  const list = /^[^(=]*?(?:\(([^]*?)\)\s*(?:=>|\{)|(\w+)\s*=>)/.exec(from);
  const text = list?.[1] ?? list?.[2] ?? "";
  return text
    .replaceAll(/=[^,]*|[{}[\]]/g, "")
    .split(",")
    .map((each) => each.replace("...", "").trim())
    .filter((each) => each !== "");
}
