import {
  splitRows,
  dot,
  logSumExp,
  weightedSum,
  normalize,
  addVectors,
  type Rows,
  softmax,
  sumValues,
} from "./rows.ts";

// The mathematics of docs/algorithms.md for the whole sequence on one device, in float64. Only the forward: gradients
// are computed by finite differences. Values without a derivative, or with a stopped gradient, are passed as `frozen`.

export type Values = Readonly<Record<string, Float64Array>>;

export interface Problem {
  readonly embed: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly summaryDim: number;
  readonly metaHeads: number;
  readonly summaryHeads: number;
  readonly combine: "soft" | "exact";
  readonly gate: boolean;
  /** Factor on q·k. */
  readonly scale: number;
  /** Whether chunks are routed by the tokens before them. */
  readonly causal: boolean;
  /** Positions of the tokens of every chunk. */
  readonly chunks: readonly (readonly number[])[];
  /** Returns whether a key is visible to a query. */
  readonly isVisible: (query: number, key: number) => boolean;
}

/**
 * Returns whether chunk i may attend to chunk j: never to itself, to a later one if causal, or to one without visible
 * keys.
 */
export function canAttend({ causal, chunks, isVisible }: Problem, i: number, j: number): boolean {
  return (causal ? j < i : j !== i) && chunks[i]!.some((query) => chunks[j]!.some((key) => isVisible(query, key)));
}

/** Values that are constant when derivatives are computed. */
export interface FrozenRouting {
  readonly chosen: readonly (readonly number[])[];
  /** ln ρ, whose value "exact" subtracts again. */
  readonly logRouting: Rows;
  /** The share of attention on each chunk: mean over heads and rows, and the maximum (`peak`). */
  readonly mass: Rows;
  readonly peak: Rows;
  /** The input of the summaries if exact. */
  readonly x: Rows;
}

export interface RoutedReference {
  readonly out: Rows;
  readonly scores: Rows;
  readonly logRouting: Rows;
  readonly routing: Rows;
  readonly chunkAttention: Rows;
  readonly mass: Rows;
  readonly peak: Rows;
  /** The logits of full attention, by row, head and token. */
  readonly logits: readonly Rows[];
  readonly gate: Rows;
}

class Layers {
  readonly #values: Values;
  constructor(values: Values) {
    this.#values = values;
  }
  get(name: string): Float64Array {
    return this.#values[name]!;
  }
  linear(name: string, x: Rows): number[][] {
    const weight = splitRows(this.get(`${name}.weight`), x[0]!.length);
    const bias = this.#values[`${name}.bias`];
    return x.map((row) => weight.map((w, i) => dot(row, w) + (bias ? bias[i]! : 0)));
  }
}

/** Computes the reference for one sequence x [n,E]. */
export function computeReference(problem: Problem, values: Values, x: Rows, frozen?: FrozenRouting): RoutedReference {
  const layers = new Layers(values);
  const chunkByToken = x.map((_, at) => problem.chunks.findIndex((tokens) => tokens.includes(at)));
  const routerInput = problem.combine === "exact" && frozen ? frozen.x : x;
  const summaries = problem.chunks.map((tokens) =>
    summarize(
      problem,
      layers,
      tokens.map((token) => routerInput[token]!),
    ),
  );
  const { scores, chunkAttention } = route(problem, layers, summaries);
  const routing = scores.map(softmax);
  const logRouting = scores.map((row) => row.map((score) => score - logSumExp(row)));
  const looks = frozen?.chosen ?? scores.map(() => []);
  const attention = attend(problem, { qkv: layers.linear("qkv_proj", x), chunkOf: chunkByToken, looks });
  const { own, combined, mass, peak, logits } = combine(problem, attention, { scores, logRouting, frozen, looks });
  const gate = problem.gate
    ? layers
        .linear(
          "gate_proj",
          own.map((row, i) => [...row, ...combined[i]!]),
        )
        .map((row) => row.map(sigmoid))
    : own.map((row) => row.map(() => 1));
  const gatedOut = gate.map((row, i) => row.map((g, e) => g * combined[i]![e]! + (1 - g) * own[i]![e]!));
  const out = layers.linear("out_proj", gatedOut);
  return { out, scores, logRouting, routing, chunkAttention, mass, peak, logits, gate };
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

function summarize({ embed, summaryHeads }: Problem, layers: Layers, tokens: Rows): number[] {
  const queries = splitRows(layers.get("summary.query"), embed);
  const size = embed / summaryHeads;
  const values = splitRows(layers.get("summary.value"), embed);
  const weights = queries.map((query) => softmax(tokens.map((token) => dot(query, token) / Math.sqrt(embed))));
  const content = weights.flatMap((weight, g) => {
    const pooled = weightedSum(weight, tokens);
    return values.slice(g * size, (g + 1) * size).map((row) => dot(row, pooled));
  });
  const pattern = tokens.map((_, s) => sumValues(weights.map((weight) => weight[s]!)) / summaryHeads);
  const ascendingPattern = pattern.toSorted((a, b) => a - b);
  const n = ascendingPattern.length;
  const statistics = [
    -sumValues(pattern.map((a) => a * Math.log(a + 1e-8))),
    ascendingPattern.at(-1)!,
    sumValues(ascendingPattern.map((a, i) => ((2 * (i + 1) - n - 1) / n) * a)),
    sumValues(ascendingPattern.slice(-5)),
  ];
  const hidden = layers.linear("summary.statistics_in", [statistics])[0]!.map((h) => Math.max(0, h));
  const statisticsEmbedding = layers.linear("summary.statistics_out", [hidden])[0]!;
  return layers.linear("summary.combine", [[...content, ...statisticsEmbedding]])[0]!;
}

function route(problem: Problem, layers: Layers, summaries: Rows): { scores: Rows; chunkAttention: Rows } {
  const { summaryDim, metaHeads, causal } = problem;
  const normalizedSummaries = summaries.map(normalize);
  const qkv = layers.linear("meta.qkv_proj", normalizedSummaries);
  const size = summaryDim / metaHeads;
  const heads = Array.from({ length: metaHeads }, (_, h) => {
    const projectionPart = (row: readonly number[], partIndex: number): number[] =>
      row.slice(partIndex * summaryDim + h * size, partIndex * summaryDim + (h + 1) * size);
    const weights = qkv.map((row, i) =>
      softmax(
        qkv.map((other, l) =>
          causal && l > i
            ? Number.NEGATIVE_INFINITY
            : dot(projectionPart(row, 0), projectionPart(other, 1)) / Math.sqrt(size),
        ),
      ),
    );
    const found = weights.map((weight) =>
      weightedSum(
        weight,
        qkv.map((row) => projectionPart(row, 2)),
      ),
    );
    return { weights, found };
  });
  const update = layers.linear(
    "meta.out_proj",
    normalizedSummaries.map((_, i) => heads.flatMap(({ found }) => found[i]!)),
  );
  const refined = normalizedSummaries.map((row, i) => addVectors(row, update[i]!));
  const shiftedSummaries = causal ? [new Array<number>(summaryDim).fill(0), ...refined.slice(0, -1)] : refined;
  const queries = layers.linear("meta.query_proj", shiftedSummaries);
  const keys = layers.linear("meta.key_proj", refined);
  const scores = queries.map((query, i) =>
    keys.map((key, j) =>
      canAttend(problem, i, j) ? dot(query, key) / Math.sqrt(summaryDim) : Number.NEGATIVE_INFINITY,
    ),
  );
  const chunkAttention = normalizedSummaries.map((_, i) =>
    normalizedSummaries.map((_, l) => sumValues(heads.map(({ weights }) => weights[i]![l]!)) / metaHeads),
  );
  return { scores, chunkAttention };
}

interface HeadState {
  /** For each chunk that was attended to, the attention over only that chunk, and its lse. */
  readonly states: ReadonlyMap<number, { readonly out: number[]; readonly lse: number }>;
  /** Logits of all tokens that are visible in full attention; −Infinity for others. */
  readonly logits: number[];
}

interface Attended {
  readonly rows: readonly (readonly HeadState[])[];
  readonly chunkOf: readonly number[];
}

function attend(
  { numHeads, numKvHeads, headDim: size, scale, isVisible, chunks }: Problem,
  { qkv, chunkOf, looks }: { qkv: Rows; chunkOf: readonly number[]; looks: readonly (readonly number[])[] },
): Attended {
  const rows = qkv.map((row, at) =>
    Array.from({ length: numHeads }, (_, h): HeadState => {
      const sliceHead = (features: readonly number[], number: number): number[] =>
        features.slice(number * size, (number + 1) * size);
      const kvHead = numHeads + Math.floor((h * numKvHeads) / numHeads);
      const logits = qkv.map((other, token) =>
        isVisible(at, token) ? dot(sliceHead(row, h), sliceHead(other, kvHead)) * scale : Number.NEGATIVE_INFINITY,
      );
      const states = [chunkOf[at]!, ...looks[chunkOf[at]!]!].map((chunk) => {
        const tokens = chunks[chunk]!;
        const scores = tokens.map((token) => logits[token]!);
        const values = tokens.map((token) => sliceHead(qkv[token]!, kvHead + numKvHeads));
        return [chunk, { out: weightedSum(softmax(scores), values), lse: logSumExp(scores) }] as const;
      });
      return { states: new Map(states), logits };
    }),
  );
  return { rows, chunkOf };
}

interface Router {
  readonly scores: Rows;
  readonly logRouting: Rows;
  readonly frozen: FrozenRouting | undefined;
  readonly looks: readonly (readonly number[])[];
}

function combine(
  problem: Problem,
  { rows, chunkOf }: Attended,
  router: Router,
): Pick<RoutedReference, "mass" | "peak" | "logits"> & { own: Rows; combined: Rows } {
  const { scores, logRouting, frozen, looks } = router;
  const own = rows.map((heads, at) => heads.flatMap(({ states }) => states.get(chunkOf[at]!)!.out));
  const combined = rows.map((heads, at) => {
    const i = chunkOf[at]!;
    const chosen = looks[i]!;
    if (chosen.length === 0) return own[at]!;
    return heads.flatMap(({ states }) => {
      if (problem.combine === "soft") {
        return weightedSum(
          softmax(chosen.map((j) => scores[i]![j]!)),
          chosen.map((j) => states.get(j)!.out),
        );
      }
      const bias = (j: number): number => (j === i ? 0 : logRouting[i]![j]! - frozen!.logRouting[i]![j]!);
      const softmaxChunks = [i, ...chosen];
      return weightedSum(
        softmax(softmaxChunks.map((j) => states.get(j)!.lse + bias(j))),
        softmaxChunks.map((j) => states.get(j)!.out),
      );
    });
  });
  const pairShares = (i: number, j: number): number[] =>
    rows.flatMap((heads, at) =>
      chunkOf[at] !== i
        ? []
        : heads.map(({ states }) => {
            const totalLse = logSumExp([...states.values()].map(({ lse }) => lse));
            const lse = states.get(j)?.lse ?? Number.NEGATIVE_INFINITY;
            return lse === Number.NEGATIVE_INFINITY ? 0 : Math.exp(lse - totalLse);
          }),
    );
  const poolPairs = (pool: (shares: readonly number[]) => number): Rows =>
    problem.chunks.map((_, i) => problem.chunks.map((_, j) => pool(pairShares(i, j))));
  const mass = poolPairs((masses) => sumValues(masses) / masses.length);
  const peak = poolPairs((masses) => Math.max(...masses));
  return { own, combined, mass, peak, logits: rows.map((heads) => heads.map(({ logits }) => logits)) };
}
