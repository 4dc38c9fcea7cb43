// Finds the imports of TypeScript sources, without a compiler.

const STRING_OR_COMMENT_PATTERN =
  /("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|\/\/[^\n]*|\/\*[\s\S]*?\*\/|`(?:\\.|[^`\\])*`/g;

const IMPORTED_NAMES_PATTERN = String.raw`(?:\*(?:\s+as\s+[\w$]+)?|\{[^{}]*\}|[\w$]+(?:\s*,\s*(?:\{[^{}]*\}|\*\s+as\s+[\w$]+))?)`;
const IMPORT_STATEMENT_PATTERN = new RegExp(
  String.raw`^[ \t]*(?:import|export)\s+(?:(type)\s+)?(?:(${IMPORTED_NAMES_PATTERN})\s*from\s*)?["']([^"'\n]+)["']`,
  "gm",
);
const IMPORT_CALL_PATTERN = /\b(?:import|require(?:\.resolve)?)\s*\(\s*["']([^"'\n]+)["']/g;

/**
 * Returns the imports of `source`, static, dynamic or in a type: `{ specifier, typeOnly }`, each specifier once, in
 * order. Comments and template literals are skipped, so that imports in examples and fixtures do not count.
 */
export function parseImports(source) {
  const code = source.replace(STRING_OR_COMMENT_PATTERN, (_, string) => string ?? "");
  const statements = [...code.matchAll(IMPORT_STATEMENT_PATTERN)].map(({ index, 1: type, 2: names, 3: specifier }) => ({
    index,
    specifier,
    typeOnly: type !== undefined || areTypesOnly(names),
  }));
  const calls = [...code.matchAll(IMPORT_CALL_PATTERN)].map(({ index, 1: specifier }) => ({
    index,
    specifier,
    typeOnly: false,
  }));
  const isTypeOnlyBySpecifier = new Map();
  for (const { specifier, typeOnly: isTypeOnly } of [...statements, ...calls].sort((a, b) => a.index - b.index)) {
    isTypeOnlyBySpecifier.set(specifier, isTypeOnly && (isTypeOnlyBySpecifier.get(specifier) ?? true));
  }
  return Array.from(isTypeOnlyBySpecifier, ([specifier, isTypeOnly]) => ({ specifier, typeOnly: isTypeOnly }));
}

/** Whether all names are types, as in `{ type A, type B }`. A compiler removes such an import. */
function areTypesOnly(names) {
  return names?.startsWith("{") === true && /^\{(\s*type\s[^,}]+,?)+\s*\}$/.test(names);
}

/**
 * Returns the cycles of a graph given as `Map<node, node[]>`: every strongly connected component of more than one node,
 * and every node that points to itself, as a path that returns to its start. (Tarjan, SIAM J. Comput. 1972.)
 */
export function findCycles(graph) {
  const index = new Map();
  const lowLinks = new Map();
  const stack = [];
  const cycles = [];

  function visit(node) {
    index.set(node, index.size);
    lowLinks.set(node, index.get(node));
    stack.push(node);
    for (const neighbor of graph.get(node) ?? []) {
      if (!index.has(neighbor)) visit(neighbor);
      if (stack.includes(neighbor)) lowLinks.set(node, Math.min(lowLinks.get(node), lowLinks.get(neighbor)));
    }
    if (lowLinks.get(node) !== index.get(node)) return;
    const component = new Set(stack.splice(stack.indexOf(node)));
    const path = findPathBack(graph, node, component);
    if (path) cycles.push(path);
  }

  for (const node of graph.keys()) if (!index.has(node)) visit(node);
  return cycles;
}

/** Returns a shortest path from `start` through `component` back to `start`, or undefined. */
function findPathBack(graph, start, component) {
  const queue = [[start]];
  const visited = new Set();
  for (const path of queue) {
    for (const neighbor of graph.get(path.at(-1)) ?? []) {
      if (neighbor === start) return [...path, start];
      if (!component.has(neighbor) || visited.has(neighbor)) continue;
      visited.add(neighbor);
      queue.push([...path, neighbor]);
    }
  }
  return undefined;
}
