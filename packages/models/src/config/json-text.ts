/** Matches a string or a number of a JSON text. */
const STRING_OR_NUMBER_PATTERN = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const NUMBER_MARKER = "\u0000number ";

/**
 * Sets fields of a JSON object's text, or removes those that are undefined. The notation of numbers is preserved,
 * because transformers distinguishes 4.0 from 4, which JavaScript does not.
 */
export function editJson(text: string, fields: Readonly<Record<string, unknown>>): string {
  const markedText = text.replaceAll(STRING_OR_NUMBER_PATTERN, (literal) => {
    const isWholeFloat = /^-?\d/.test(literal) && /[.eE]/.test(literal) && Number.isInteger(Number(literal));
    return isWholeFloat ? JSON.stringify(NUMBER_MARKER + literal) : literal;
  });
  const editedFields = { ...(JSON.parse(markedText) as Readonly<Record<string, unknown>>), ...fields };
  const editedText = JSON.stringify(editedFields, null, 2);
  return `${editedText.replaceAll(/"\\u0000number (.*?)"/g, (_, literal: string) => literal)}\n`;
}
