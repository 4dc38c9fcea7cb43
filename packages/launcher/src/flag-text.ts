/** Returns whether a text turns a flag on or off, in any case; undefined for any other text. */
export function parseFlag(text: string): boolean | undefined {
  const lowerCaseText = text.toLowerCase();
  if (["1", "true", "yes", "on"].includes(lowerCaseText)) return true;
  return ["", "0", "false", "no", "off"].includes(lowerCaseText) ? false : undefined;
}
