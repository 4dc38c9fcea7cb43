import type { Context } from "@mosaic/attention";
import { type CausalLM, loadModel } from "@mosaic/models";
import { readCorpus } from "./corpus.ts";
import { scoreText } from "./held-out.ts";
import type { ModelSettings } from "./settings.ts";
import { encodeBooks } from "./tokenizer/corpus-tokens.ts";

/** What a needle states: one of these, in turn. */
const names = ["Abraham", "David", "Moses", "Joseph", "Samuel", "Solomon", "Aaron", "Saul"] as const;
const [statement, question] = [
  " And the name of the keeper of the gate was",
  "\nAnd the name of the keeper of the gate was",
] as const;

/** How often a model finds what stands at one depth of texts of one length. */
export interface NeedleCell {
  readonly length: number;
  /** 0: at the begin of the text; 1: just before the question. */
  readonly depth: number;
  /** Share of the texts in which the right name is the most probable of the candidates. */
  readonly accuracy: number;
}

/** What needles were found. */
export interface NeedleResult {
  readonly cells: readonly NeedleCell[];
  readonly trials: number;
  readonly chance: number;
}

const depths = [0, 0.25, 0.5, 0.75, 1] as const;

/** Lengths that are measured: the longest, and it halved. */
export function needleLengths(longest: number): readonly number[] {
  return [longest / 8, longest / 4, longest / 2, longest].map(Math.floor).filter((each) => each >= 48);
}

/** A text of `length` tokens with a statement at a depth, and the question at its end. */
export function hideNeedle(
  filler: readonly number[],
  needle: { readonly statement: readonly number[]; readonly question: readonly number[] },
  at: { readonly length: number; readonly depth: number },
): readonly number[] {
  const rest = filler.slice(0, at.length - needle.statement.length - needle.question.length);
  const place = Math.round(rest.length * at.depth);
  return [...rest.slice(0, place), ...needle.statement, ...rest.slice(place), ...needle.question];
}

/**
 * Needle in a haystack (Kamradt 2023): held-out text with a sentence that names somebody, which its end repeats as far as the name. Counts
 * how often the right one of up to eight names is the most probable. Collective.
 */
export async function measureNeedles(
  ctx: Context,
  settings: ModelSettings,
  progress: (share: number) => void,
): Promise<NeedleResult> {
  const { backend, trials } = settings;
  using model = await loadModel(ctx, settings.model, {
    backend,
    placement: backend === "local" ? "contiguous" : "zigzag",
  });
  const heldOut = encodeBooks(model.tokenizer!, readCorpus().heldOut);
  const filler = heldOut.flat().filter((token) => token !== 0);
  // By their first tokens, which must differ.
  const firstToken = (name: string): number => model.tokenizer!.encode(` ${name}`)[0]!;
  const candidates = names.filter((name, i) => names.findIndex((each) => firstToken(each) === firstToken(name)) === i);
  // Each name as often as any other: a model that always gives the same one finds as many as chance does.
  const texts = candidates.length * Math.ceil(trials / candidates.length);
  const lengths = needleLengths(settings.length || model.config.maxLength);
  const cells: NeedleCell[] = [];
  for (const length of lengths) {
    for (const depth of depths) {
      let found = 0;
      for (let trial = 0; trial < texts; trial++) {
        const start = (trial * 7919) % (filler.length - length);
        const name = trial % candidates.length;
        const text = { filler: filler.slice(start, start + length), candidates, name, length, depth };
        if ((await findName(ctx, model, text)) === name) found++;
      }
      cells.push({ length, depth, accuracy: found / texts });
      progress(cells.length / (lengths.length * depths.length));
    }
  }
  return { cells, trials: texts, chance: 1 / candidates.length };
}

interface NeedleText {
  readonly filler: readonly number[];
  readonly candidates: readonly string[];
  /** The number of the right one. */
  readonly name: number;
  readonly length: number;
  readonly depth: number;
}

/** The number of the most probable name, by its first token. */
async function findName(ctx: Context, model: CausalLM, text: NeedleText): Promise<number> {
  const { filler, candidates, name, length, depth } = text;
  const encode = (words: string): number[] => model.tokenizer!.encode(words);
  const needle = { statement: encode(`${statement} ${candidates[name]!}.`), question: encode(question) };
  const tokens = hideNeedle(filler, needle, { length, depth });
  const questions = candidates.map((each) =>
    tokens.map((_, at) => (at === tokens.length - 1 ? encode(` ${each}`)[0]! : -100)),
  );
  const losses = await scoreText(ctx, model, { tokens, questions });
  return losses.indexOf(Math.min(...losses));
}
