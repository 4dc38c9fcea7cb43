import { isJsonObject, type Json } from "../config/fields.ts";

/** U+FFFD in UTF-8, which represents a byte that is not part of a character. */
const REPLACEMENT_BYTES = [0xef, 0xbf, 0xbd];
/** U+FEFF in UTF-8, which JavaScript's decoder drops once at the beginning. */
const BYTE_ORDER_MARK = [0xef, 0xbb, 0xbf];

/**
 * The tokens `<0x00>` to `<0xFF>` of a tokenizer with byte fallback. Python's tokenizers decodes each run of them as a
 * whole: if the run is not valid UTF-8, every byte becomes U+FFFD. @huggingface/tokenizers keeps the valid characters
 * of such a run, so the run is replaced by other bytes before decoding.
 */
export class ByteFallback {
  readonly #idByByte: readonly number[];
  readonly #byteById: ReadonlyMap<number, number>;
  readonly #specialIds: ReadonlySet<number>;
  readonly #utf8 = new TextDecoder("utf-8", { fatal: true });

  private constructor(idByByte: readonly number[], specialIds: ReadonlySet<number>) {
    this.#idByByte = idByByte;
    this.#byteById = new Map(idByByte.map((id, byte) => [id, byte]));
    this.#specialIds = specialIds;
  }

  /** Creates the byte fallback of a tokenizer; null if it has none. */
  static create(
    { tokenizer, config }: { readonly tokenizer: Json; readonly config: Json },
    tokenId: (token: string) => number | undefined,
  ): ByteFallback | null {
    if (!hasByteFallback(tokenizer.decoder)) return null;
    const idByByte = Array.from({ length: 256 }, (_, byte) =>
      tokenId(`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`),
    );
    if (!idByByte.every((id) => id !== undefined)) return null;
    return new ByteFallback(
      idByByte,
      new Set(listSpecialTokens(tokenizer, config).flatMap((token) => tokenId(token) ?? [])),
    );
  }

  /** Returns ids that @huggingface/tokenizers decodes to the text that Python's tokenizers decodes `ids` to. */
  toDecodableIds(ids: readonly number[], skipSpecialTokens: boolean): readonly number[] {
    if (!ids.some((id) => this.#byteById.has(id))) return ids;
    const decodableIds: number[] = [];
    let run: number[] = [];
    const endRun = (): void => {
      for (const byte of this.#toDecodableBytes(run)) decodableIds.push(this.#idByByte[byte]!);
      run = [];
    };
    for (const id of ids) {
      const byte = this.#byteById.get(id);
      if (byte !== undefined) run.push(byte);
      else if (!skipSpecialTokens || !this.#specialIds.has(id)) {
        endRun();
        decodableIds.push(id);
      }
    }
    endRun();
    return decodableIds;
  }

  #toDecodableBytes(run: readonly number[]): readonly number[] {
    try {
      this.#utf8.decode(Uint8Array.from(run));
    } catch {
      return run.flatMap(() => REPLACEMENT_BYTES);
    }
    const hasByteOrderMark = BYTE_ORDER_MARK.every((byte, i) => run[i] === byte);
    return hasByteOrderMark ? [...BYTE_ORDER_MARK, ...run] : run;
  }
}

/** Returns whether a decoder of tokenizer.json is, or contains, a ByteFallback. */
function hasByteFallback(decoder: unknown): boolean {
  if (!isJsonObject(decoder)) return false;
  return decoder.type === "ByteFallback" || (Array.isArray(decoder.decoders) && decoder.decoders.some(hasByteFallback));
}

/** Lists the special tokens as @huggingface/tokenizers does. */
function listSpecialTokens(tokenizer: Json, config: Json): readonly string[] {
  const addedTokens = Array.isArray(tokenizer.added_tokens) ? (tokenizer.added_tokens as readonly Json[]) : [];
  const specialTokens = addedTokens.filter(({ special }) => special === true).map(({ content }) => content);
  const additionalTokens = Array.isArray(config.additional_special_tokens) ? config.additional_special_tokens : [];
  return [...specialTokens, ...additionalTokens].filter((token): token is string => typeof token === "string");
}
