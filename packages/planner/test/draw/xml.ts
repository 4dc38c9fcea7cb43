/** An element of a parsed document. */
export interface Element {
  readonly name: string;
  readonly attributes: Readonly<Record<string, string>>;
  readonly children: readonly Element[];
  /** Text of the element and its children. */
  readonly text: string;
}

interface OpenElement {
  name: string;
  attributes: Record<string, string>;
  children: Element[];
  text: string;
}

const TOKEN = /<(\/?)([a-zA-Z][\w-]*)((?:\s+[a-zA-Z][\w:-]*="[^"<]*")*)\s*(\/?)>|([^<]+)|([\s\S])/gy;
// The characters that XML 1.0 allows.
const CHARACTERS = /^[\t\n\r\u0020-\ud7ff\ue000-\ufffd\u{10000}-\u{10ffff}]*$/u;

/** Parses an XML document of elements and text; throws if it is not well-formed. */
export function parse(xml: string): Element {
  if (!CHARACTERS.test(xml)) throw new Error("a character that XML does not have");
  const root: OpenElement = { name: "", attributes: {}, children: [], text: "" };
  const stack = [root];
  for (const [token, closing, name, attributeText, selfClosing, text, stray] of xml.matchAll(TOKEN)) {
    const top = stack.at(-1)!;
    if (stray !== undefined) throw new Error(`unexpected ${stray} after ${top.name} ${top.text.slice(-40)}`);
    if (text !== undefined) top.text += decode(text);
    else if (closing) {
      if (top.name !== name) throw new Error(`</${name}> closes <${top.name}>`);
      stack.pop();
      stack.at(-1)!.text += top.text;
      stack.at(-1)!.children.push(top);
    } else {
      const element = { name: name!, attributes: parseAttributes(token, attributeText!), children: [], text: "" };
      if (selfClosing) top.children.push(element);
      else stack.push(element);
    }
  }
  if (stack.length > 1) throw new Error(`<${stack.at(-1)!.name}> is not closed`);
  if (root.children.length !== 1) throw new Error(`${root.children.length} roots`);
  return root.children[0]!;
}

function parseAttributes(tag: string, attributeText: string): Record<string, string> {
  const entries = [...attributeText.matchAll(/([\w:-]+)="([^"]*)"/g)].map(
    ([, key, value]) => [key!, decode(value!)] as const,
  );
  if (new Set(entries.map(([key]) => key)).size < entries.length) throw new Error(`an attribute twice: ${tag}`);
  return Object.fromEntries(entries);
}

function decode(text: string): string {
  if (/&(?!(amp|lt|gt|quot);)/.test(text)) throw new Error(`a bare & in ${text}`);
  return text.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&quot;", '"').replaceAll("&amp;", "&");
}

/** Returns all elements with this name, at any depth, in document order. */
export function findElements(element: Element, name: string): readonly Element[] {
  return element.children.flatMap((child) => [...(child.name === name ? [child] : []), ...findElements(child, name)]);
}
