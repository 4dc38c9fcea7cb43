import { formatShape } from "../shape.ts";
import type { Tensor } from "../tensor.ts";

/** The part of a Module that its format depends on. The string of a child is its own tree. */
interface ModuleTree {
  children(): readonly (readonly [name: string, child: ModuleTree])[];
}

/** The tensors that a module itself owns, by name. */
interface OwnTensors {
  readonly parameters: ReadonlyMap<string, Tensor>;
  readonly buffers: ReadonlyMap<string, Tensor>;
}

/** Returns the name of a module's class, for messages. */
export function className(module: ModuleTree): string {
  return module.constructor.name || "Module";
}

/**
 * Formats a module as PyTorch does: its class, its own tensors, and its children, indented. Consecutive children of a
 * list that are formatted equally are one entry, such as `(0-31): 32 x Block(…)`.
 */
export function formatModule(module: ModuleTree, { parameters, buffers }: OwnTensors): string {
  const tensorEntries = [
    ...[...parameters].map(([name, x]) => `${formatTensor(name, x)}${x.requiresGrad ? "" : ", frozen"}`),
    ...[...buffers].map(([name, x]) => `${formatTensor(name, x)}, buffer`),
  ];
  const childEntries = formatChildren(module.children());
  if (childEntries.length === 0) return `${className(module)}(${tensorEntries.join("; ")})`;
  const lines = [...tensorEntries, ...childEntries].map((entry) => `  ${entry.replaceAll("\n", "\n  ")}\n`);
  return `${className(module)}(\n${lines.join("")})`;
}

function formatTensor(name: string, x: Tensor): string {
  return `${name} ${formatShape(x.shape)} ${x.dtype}`;
}

function formatChildren(children: ReturnType<ModuleTree["children"]>): readonly string[] {
  const groups: { first: string; last: string; count: number; text: string }[] = [];
  for (const [name, child] of children) {
    const text = String(child);
    const group = groups.at(-1);
    if (group?.text === text && Number(name) === Number(group.last) + 1) {
      group.last = name;
      group.count++;
    } else groups.push({ first: name, last: name, count: 1, text });
  }
  return groups.map(({ first, last, count, text }) =>
    count === 1 ? `(${first}): ${text}` : `(${first}-${last}): ${count} x ${text}`,
  );
}
