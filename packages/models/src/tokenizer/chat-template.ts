import { Template } from "@huggingface/jinja";

/** Methods of strings that take the characters to remove, which @huggingface/jinja ignores. */
const stripMethods = new Map<string, (text: string, characters: string) => string>([
  ["strip", (text, characters) => stripEnd(stripStart(text, characters), characters)],
  ["lstrip", stripStart],
  ["rstrip", stripEnd],
]);
/** Prefix of the functions that replace the methods. Templates cannot contain such a name. */
const FUNCTION_PREFIX = "strip method ";

function stripStart(text: string, characters: string): string {
  const set = new Set(characters);
  let start = 0;
  for (const character of text) {
    if (!set.has(character)) break;
    start += character.length;
  }
  return text.slice(start);
}

function stripEnd(text: string, characters: string): string {
  const set = new Set(characters);
  let end = text.length;
  for (const character of [...text].reverse()) {
    if (!set.has(character)) break;
    end -= character.length;
  }
  return text.slice(0, end);
}

/** A chat template in Jinja: @huggingface/jinja, with the arguments of `strip`, `lstrip` and `rstrip`. */
export class ChatTemplate {
  readonly #template: Template;

  /** Throws an Error for a text that is not a template. */
  constructor(text: string) {
    this.#template = new Template(text);
    replaceStripMethods(this.#template.parsed);
  }

  /** Throws an Error for variables that the template does not accept. */
  render(variables: Readonly<Record<string, unknown>>): string {
    const functions = [...stripMethods].map(([name, strip]) => [FUNCTION_PREFIX + name, checkArguments(name, strip)]);
    return this.#template.render({ ...variables, ...Object.fromEntries(functions) });
  }
}

function checkArguments(name: string, strip: (text: string, characters: string) => string) {
  return (text: unknown, characters: unknown): string => {
    if (typeof text === "string" && typeof characters === "string") return strip(text, characters);
    throw new Error(`${name}: expected a string and the characters to remove`);
  };
}

/** A node of a parsed template. Its fields are values, nodes, and arrays and maps of them. */
type Node = { type?: unknown } & Record<string, unknown>;

/** Replaces `text.strip(characters)` by a call of a function with both arguments, in all nodes below a node. */
function replaceStripMethods(value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  const children = value instanceof Map ? [...value.keys(), ...value.values()] : Object.values(value);
  for (const child of children) replaceStripMethods(child);
  const node = value as Node;
  if (node.type !== "CallExpression") return;
  const { callee, args } = node as unknown as { readonly callee: Node; readonly args: readonly unknown[] };
  if (callee.type !== "MemberExpression" || callee.computed === true || args.length !== 1) return;
  const { object, property } = callee as unknown as { readonly object: unknown; readonly property: Node };
  if (property.type !== "Identifier" || !stripMethods.has(String(property.value))) return;
  node.callee = Object.assign(Object.create(Object.getPrototypeOf(property)) as Node, property, {
    value: `${FUNCTION_PREFIX}${String(property.value)}`,
  });
  node.args = [object, ...args];
}
