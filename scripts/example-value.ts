import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { inspect } from "node:util";

/**
 * Asserts that `actual` matches `// => expected`, and returns it.
 *
 * `expected` is a JavaScript literal, as the console would print it: `3`, `[1, 2]`, `{ dp: 2 }`, `Float32Array [1, 2]`,
 * `-Infinity`, `"ring"`. Numbers agree to 1e-6 (relative above 1). A list may end in `…` to show only its beginning.
 * Other text is compared with the printed value.
 */
export function expectValue<T>(actual: T, expected: string): T {
  if (!matchesExample(actual, expected.trim()))
    throw new Error(`expected ${expected.trim()}, received ${inspect(actual)}`);
  return actual;
}

/** Asserts that `run` throws, or rejects with, an error whose `Name: message` contains `expected`. */
export async function expectThrown(run: () => unknown, expected: string): Promise<void> {
  let errorText = "no error";
  try {
    await run();
  } catch (error) {
    errorText = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  }
  if (!errorText.includes(expected)) throw new Error(`expected an error with "${expected}", received ${errorText}`);
}

/** Runs a generated example under `mosaic-run`, as a reader would. */
export function launch(ranks: number, url: string): void {
  const cli = fileURLToPath(new URL("../packages/launcher/dist/cli.js", import.meta.url));
  const file = fileURLToPath(url);
  const { status, stdout, stderr } = spawnSync(process.execPath, [cli, "--nproc-per-node", String(ranks), file], {
    encoding: "utf8",
    cwd: join(dirname(cli), "../../.."),
  });
  if (status !== 0) throw new Error(`expected exit code 0 of ${ranks} ranks, received ${status}:\n${stdout}${stderr}`);
}

function matchesExample(actual: unknown, expected: string): boolean {
  const literal = parse(expected.replace(/^\w+Array(\(\d+\))?\s*(?=\[)/, ""));
  if (literal && areEqualValues(toPlainArrays(actual), literal.value)) return true;
  return collapseSpaces(typeof actual === "string" ? actual : inspect(actual)) === collapseSpaces(expected);
}

function parse(text: string): { value: unknown } | undefined {
  const jsonText = text.replace(/,?\s*(…|\.\.\.)\s*\]$/, ", __REST__]");
  try {
    // oxlint-disable-next-line typescript/no-implied-eval -- the text comes from this repository's own documents
    return { value: new Function("__REST__", `return (${jsonText});`)(REST_MARKER) as unknown };
  } catch {
    return undefined;
  }
}

const REST_MARKER = Symbol("…");

function areEqualValues(actual: unknown, expected: unknown): boolean {
  if (typeof actual === "number" && typeof expected === "number") {
    if (!Number.isFinite(expected)) return Object.is(actual, expected);
    return Math.abs(actual - expected) <= 1e-6 * Math.max(1, Math.abs(expected));
  }
  if (typeof actual !== "object" || typeof expected !== "object" || actual === null || expected === null) {
    return actual === expected;
  }
  if (Array.isArray(actual) !== Array.isArray(expected)) return false;
  if (Array.isArray(actual) && Array.isArray(expected) && expected.at(-1) === REST_MARKER) {
    return areEqualValues(actual.slice(0, expected.length - 1), expected.slice(0, -1));
  }
  const [a, e] = [Object.entries(actual), Object.entries(expected)];
  return (
    a.length === e.length && e.every(([key, value]) => areEqualValues((actual as Record<string, unknown>)[key], value))
  );
}

/** Converts typed arrays, maps and sets to plain arrays. */
function toPlainArrays(value: unknown): unknown {
  if (ArrayBuffer.isView(value) && !(value instanceof DataView))
    return Array.from(value as unknown as Iterable<unknown>);
  if (value instanceof Map || value instanceof Set) return Array.from(value as Iterable<unknown>, toPlainArrays);
  return Array.isArray(value) ? value.map(toPlainArrays) : value;
}

const collapseSpaces = (text: string): string => text.replace(/\s+/g, " ").trim();
