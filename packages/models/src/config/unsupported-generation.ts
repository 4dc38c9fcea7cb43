import { formatValue } from "@mosaic/core";
import { FileError } from "@mosaic/nn";
import type { Json } from "./fields.ts";

/**
 * A field of generation_config.json with values that change what transformers generates, or that it rejects, and that are
 * not supported here.
 */
interface UnsupportedField {
  /** Whether transformers reads the field only when sampling. */
  readonly isOfSampling?: boolean;
  /** The value that has no effect, in addition to null and empty values. */
  readonly neutral?: number | false;
  /** The option of `generate` that replaces the field. */
  readonly option?: "stopStrings" | "temperature" | "topK";
  /** The values that are supported, if some are. */
  readonly supported?: { readonly expected: string; readonly isSupported: (value: number) => boolean };
}

const unsupportedFields: Readonly<Record<string, UnsupportedField>> = {
  num_beams: { neutral: 1 },
  num_beam_groups: { neutral: 1 },
  num_return_sequences: { neutral: 1 },
  penalty_alpha: { neutral: 0 },
  dola_layers: {},
  guidance_scale: { neutral: 1 },
  temperature: {
    isOfSampling: true,
    option: "temperature",
    supported: { expected: "a number > 0", isSupported: (value) => value > 0 },
  },
  top_k: {
    isOfSampling: true,
    option: "topK",
    supported: { expected: "an integer ≥ 0", isSupported: (value) => value >= 0 },
  },
  typical_p: { neutral: 1, isOfSampling: true },
  top_h: { isOfSampling: true },
  epsilon_cutoff: { neutral: 0, isOfSampling: true },
  eta_cutoff: { neutral: 0, isOfSampling: true },
  no_repeat_ngram_size: { neutral: 0 },
  encoder_no_repeat_ngram_size: { neutral: 0 },
  encoder_repetition_penalty: { neutral: 1 },
  exponential_decay_length_penalty: {},
  min_length: { neutral: 0 },
  min_new_tokens: { neutral: 0 },
  max_time: {},
  stop_strings: { option: "stopStrings" },
  bad_words_ids: {},
  force_words_ids: {},
  constraints: {},
  sequence_bias: {},
  suppress_tokens: {},
  begin_suppress_tokens: {},
  forced_bos_token_id: {},
  forced_eos_token_id: {},
  forced_decoder_ids: {},
  token_healing: { neutral: false },
  watermarking_config: {},
};

/** A field that has an effect in transformers, and its value. */
export interface UnsupportedSetting {
  readonly path: string;
  readonly name: string;
  readonly value: unknown;
}

/** Lists the unsupported settings of a generation_config.json. They are an error only when text is generated. */
export function listUnsupportedSettings(path: string, json: Json): readonly UnsupportedSetting[] {
  return Object.entries(unsupportedFields)
    .map(([name, { neutral, supported }]) => ({ name, value: json[name] ?? null, neutral, supported }))
    .filter(({ value, neutral }) => !isEmptyValue(value) && value !== neutral)
    .filter(({ value, supported }) => !supported?.isSupported(value as number))
    .map(({ name, value }) => ({ path, name, value }));
}

function isEmptyValue(value: unknown): boolean {
  return value === null || value === "" || (typeof value === "object" && Object.keys(value).length === 0);
}

/** Throws a FileError for a setting that would change what is generated with these options. */
export function rejectUnsupportedSettings(
  settings: readonly UnsupportedSetting[],
  options: {
    readonly doSample: boolean;
    readonly stopStrings?: readonly string[] | undefined;
    readonly temperature?: number | undefined;
    readonly topK?: number | undefined;
  },
): void {
  for (const { path, name, value } of settings) {
    const { neutral, isOfSampling = false, option, supported } = unsupportedFields[name]!;
    if ((isOfSampling && !options.doSample) || (option && options[option] !== undefined)) continue;
    const alternative = option ? `pass ${option}, or ` : isOfSampling ? "pass doSample: false, or " : "";
    throw new FileError({
      where: `${path}: ${name}`,
      expected: `${supported?.expected ?? neutral ?? "null"} or no such field`,
      received: formatValue(value),
      remedy: `generate does not support it: ${alternative}remove the field from the file`,
    });
  }
}
