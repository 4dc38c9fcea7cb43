// Texts as GPT-2 cuts them: words with the space before them, each byte written as a printable character.

/** Hugging Face's ByteLevel: contractions, words, numbers, signs, white space. */
const wordPattern = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** The words of a text; together they are the text. */
export function splitWords(text: string): readonly string[] {
  return text.match(wordPattern) ?? [];
}

/** The character of each byte: itself where it is printable, else one from 256 on. */
const byteToCharacter: readonly string[] = (() => {
  const isPrintable = (byte: number): boolean => (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let nextCodePoint = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : nextCodePoint++));
})();

/** All 256 characters, in the order of their code points. */
export const alphabet: readonly string[] = byteToCharacter.toSorted((a, b) => a.codePointAt(0)! - b.codePointAt(0)!);

/** A word by the characters of its bytes. */
export function byteCharacters(word: string): readonly string[] {
  return [...new TextEncoder().encode(word)].map((byte) => byteToCharacter[byte]!);
}
