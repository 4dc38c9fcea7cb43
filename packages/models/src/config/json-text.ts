/** A string, or a number, of a JSON text. */
const literals = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const marker = "\u0000number ";

/**
 * A JSON object's text with some fields set, or removed where undefined. Numbers stay as they were written: transformers distinguishes 4.0 from 4,
 * which JavaScript does not.
 */
export function editJson(text: string, fields: Readonly<Record<string, unknown>>): string {
  const marked = text.replaceAll(literals, (literal) => {
    const isWholeFloat = /^-?\d/.test(literal) && /[.eE]/.test(literal) && Number.isInteger(Number(literal));
    return isWholeFloat ? JSON.stringify(marker + literal) : literal;
  });
  const edited = { ...(JSON.parse(marked) as Readonly<Record<string, unknown>>), ...fields };
  const written = JSON.stringify(edited, null, 2);
  return `${written.replaceAll(/"\\u0000number (.*?)"/g, (_, literal: string) => literal)}\n`;
}
