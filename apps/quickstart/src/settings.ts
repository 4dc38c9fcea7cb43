/** What one run of the program does. */
export interface Settings {
  /** Length of the sequence; beyond the genome's 48 502 bases it is repeated. */
  readonly tokens: number;
  readonly ranks: number;
  readonly backend: string;
  readonly causal: boolean;
  readonly dtype: "float32" | "bfloat16" | "float16";
  readonly backward: boolean;
  readonly heads: number;
  /** Size of one head. */
  readonly dim: number;
  readonly seed: number;
  readonly json: boolean;
  /** Where the picture goes; empty for none. */
  readonly svg: string;
}
