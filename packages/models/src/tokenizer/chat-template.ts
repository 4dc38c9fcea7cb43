import { Template } from "@huggingface/jinja";

/** Methods of strings that take the characters to remove, which @huggingface/jinja ignores. */
const stripMethods = new Map<string, (text: string, characters: string) => string>([
  ["strip", (text, characters) => stripEnd(stripStart(text, characters), characters)],
  ["lstrip", stripStart],
  ["rstrip", stripEnd],
]);
/** Prefix of the functions that replace the methods. Templates cannot contain such a name. */
const FUNCTION_PREFIX = "strip method ";

/** The function of templates that rejects messages, and the name of the function that replaces it. */
const RAISE_EXCEPTION = "raise_exception";
const REJECT = "reject messages";

/** A template rejected its messages with `raise_exception`. */
export class MessagesRejectedError extends Error {
  override readonly name: string = "MessagesRejectedError";
}

function rejectMessages(message: unknown): never {
  throw new MessagesRejectedError(String(message));
}

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
    replaceCalls(this.#template.parsed);
  }

  /** Throws a MessagesRejectedError if the template calls `raise_exception`, and another Error if it fails. */
  render(variables: Readonly<Record<string, unknown>>): string {
    const functions = [...stripMethods].map(([name, strip]) => [FUNCTION_PREFIX + name, checkArguments(name, strip)]);
    return this.#template.render({ ...variables, ...Object.fromEntries(functions), [REJECT]: rejectMessages });
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

/**
 * Replaces `text.strip(characters)` by a call of a function with both arguments, and the function `raise_exception`, in
 * all nodes below a node.
 */
function replaceCalls(value: unknown): void {
  if (typeof value !== "object" || value === null) return;
  const children = value instanceof Map ? [...value.keys(), ...value.values()] : Object.values(value);
  for (const child of children) replaceCalls(child);
  const node = value as Node;
  if (node.type !== "CallExpression") return;
  const { callee, args } = node as unknown as { readonly callee: Node; readonly args: readonly unknown[] };
  if (callee.type === "Identifier" && callee["value"] === RAISE_EXCEPTION) callee["value"] = REJECT;
  if (callee.type !== "MemberExpression" || callee.computed === true || args.length !== 1) return;
  const { object, property } = callee as unknown as { readonly object: unknown; readonly property: Node };
  if (property.type !== "Identifier" || !stripMethods.has(String(property.value))) return;
  node.callee = Object.assign(Object.create(Object.getPrototypeOf(property)) as Node, property, {
    value: `${FUNCTION_PREFIX}${String(property.value)}`,
  });
  node.args = [object, ...args];
}
