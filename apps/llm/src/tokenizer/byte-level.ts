// Splits texts as GPT-2 does: into words with the preceding space, with each byte represented by a printable character.

/** Pattern of Hugging Face's ByteLevel: contractions, words, numbers, punctuation, white space. */
const wordPattern = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu;

/** Splits a text into words, whose concatenation is the text. */
export function splitWords(text: string): readonly string[] {
  return text.match(wordPattern) ?? [];
}

/** The character of each byte: the byte itself if it is printable, else a character from 256 on. */
const byteToCharacter: readonly string[] = (() => {
  const isPrintable = (byte: number): boolean => (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
  let nextCodePoint = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : nextCodePoint++));
})();

/** All 256 characters, in the order of their code points. */
export const alphabet: readonly string[] = byteToCharacter.toSorted((a, b) => a.codePointAt(0)! - b.codePointAt(0)!);

/** Returns the characters of a word's bytes. */
export function byteCharacters(word: string): readonly string[] {
  return [...new TextEncoder().encode(word)].map((byte) => byteToCharacter[byte]!);
}
