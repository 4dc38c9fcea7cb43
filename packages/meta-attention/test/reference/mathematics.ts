import { cut, dot, logSumExp, mixed, normalized, plus, type Rows, softmax, total } from "./rows.ts";

// The mathematics of docs/algorithms.md for the whole sequence on one machine, in float64, forward only: gradients are taken
// by differences. What has no derivative there, or is stopped, is given as `frozen`.

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
  /** Whether chunks are routed by what was before them. */
  readonly causal: boolean;
  /** Positions of the tokens of every chunk. */
  readonly chunks: readonly (readonly number[])[];
  /** Whether a query sees a key. */
  readonly isVisible: (query: number, key: number) => boolean;
}

/** Whether chunk i may look at chunk j: never at itself, ahead, or where it sees nothing. */
export function canAttend({ causal, chunks, isVisible }: Problem, i: number, j: number): boolean {
  return (causal ? j < i : j !== i) && chunks[i]!.some((query) => chunks[j]!.some((key) => isVisible(query, key)));
}

/** What is constant where derivatives are taken. */
export interface FrozenRouting {
  readonly chosen: readonly (readonly number[])[];
  /** ln ρ, whose value `exact` takes away again. */
  readonly logRouting: Rows;
  /** The share of attention on each chunk: mean of heads and rows, and the largest. */
  readonly mass: Rows;
  readonly peak: Rows;
  /** What summaries are made of if exact. */
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
  /** By row, head and token, full attention's logits and which chunk each token is in. */
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
    const weight = cut(this.get(`${name}.weight`), x[0]!.length);
    const bias = this.#values[`${name}.bias`];
    return x.map((row) => weight.map((w, i) => dot(row, w) + (bias ? bias[i]! : 0)));
  }
}

/** One sequence x [n,E]. */
export function mathematics(problem: Problem, values: Values, x: Rows, frozen?: FrozenRouting): RoutedReference {
  const layers = new Layers(values);
  const chunkOf = x.map((_, at) => problem.chunks.findIndex((tokens) => tokens.includes(at)));
  const seen = problem.combine === "exact" && frozen ? frozen.x : x;
  const summaries = problem.chunks.map((tokens) =>
    summary(
      problem,
      layers,
      tokens.map((token) => seen[token]!),
    ),
  );
  const { scores, chunkAttention } = route(problem, layers, summaries);
  const routing = scores.map(softmax);
  const logRouting = scores.map((row) => row.map((score) => score - logSumExp(row)));
  const looks = frozen?.chosen ?? scores.map(() => []);
  const attended = attend(problem, { qkv: layers.linear("qkv_proj", x), chunkOf, looks });
  const { own, combined, mass, peak, logits } = combine(problem, attended, { scores, logRouting, frozen, looks });
  const gate = problem.gate
    ? layers
        .linear(
          "gate_proj",
          own.map((row, i) => [...row, ...combined[i]!]),
        )
        .map((row) => row.map(sigmoid))
    : own.map((row) => row.map(() => 1));
  const blended = gate.map((row, i) => row.map((g, e) => g * combined[i]![e]! + (1 - g) * own[i]![e]!));
  const out = layers.linear("out_proj", blended);
  return { out, scores, logRouting, routing, chunkAttention, mass, peak, logits, gate };
}

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));

function summary({ embed, summaryHeads }: Problem, layers: Layers, tokens: Rows): number[] {
  const queries = cut(layers.get("summary.query"), embed);
  const size = embed / summaryHeads;
  const values = cut(layers.get("summary.value"), embed);
  const weights = queries.map((query) => softmax(tokens.map((token) => dot(query, token) / Math.sqrt(embed))));
  const content = weights.flatMap((weight, g) => {
    const pooled = mixed(weight, tokens);
    return values.slice(g * size, (g + 1) * size).map((row) => dot(row, pooled));
  });
  const pattern = tokens.map((_, s) => total(weights.map((weight) => weight[s]!)) / summaryHeads);
  const rising = pattern.toSorted((a, b) => a - b);
  const n = rising.length;
  const statistics = [
    -total(pattern.map((a) => a * Math.log(a + 1e-8))),
    rising.at(-1)!,
    total(rising.map((a, i) => ((2 * (i + 1) - n - 1) / n) * a)),
    total(rising.slice(-5)),
  ];
  const hidden = layers.linear("summary.statistics_in", [statistics])[0]!.map((h) => Math.max(0, h));
  const spread = layers.linear("summary.statistics_out", [hidden])[0]!;
  return layers.linear("summary.combine", [[...content, ...spread]])[0]!;
}

function route(problem: Problem, layers: Layers, summaries: Rows): { scores: Rows; chunkAttention: Rows } {
  const { summaryDim, metaHeads, causal } = problem;
  const normal = summaries.map(normalized);
  const qkv = layers.linear("meta.qkv_proj", normal);
  const size = summaryDim / metaHeads;
  const heads = Array.from({ length: metaHeads }, (_, h) => {
    const part = (row: readonly number[], which: number): number[] =>
      row.slice(which * summaryDim + h * size, which * summaryDim + (h + 1) * size);
    const weights = qkv.map((row, i) =>
      softmax(
        qkv.map((other, l) =>
          causal && l > i ? Number.NEGATIVE_INFINITY : dot(part(row, 0), part(other, 1)) / Math.sqrt(size),
        ),
      ),
    );
    const found = weights.map((weight) =>
      mixed(
        weight,
        qkv.map((row) => part(row, 2)),
      ),
    );
    return { weights, found };
  });
  const update = layers.linear(
    "meta.out_proj",
    normal.map((_, i) => heads.flatMap(({ found }) => found[i]!)),
  );
  const refined = normal.map((row, i) => plus(row, update[i]!));
  const asking = causal ? [new Array<number>(summaryDim).fill(0), ...refined.slice(0, -1)] : refined;
  const queries = layers.linear("meta.query_proj", asking);
  const keys = layers.linear("meta.key_proj", refined);
  const scores = queries.map((query, i) =>
    keys.map((key, j) =>
      canAttend(problem, i, j) ? dot(query, key) / Math.sqrt(summaryDim) : Number.NEGATIVE_INFINITY,
    ),
  );
  const chunkAttention = normal.map((_, i) =>
    normal.map((_, l) => total(heads.map(({ weights }) => weights[i]![l]!)) / metaHeads),
  );
  return { scores, chunkAttention };
}

interface HeadState {
  /** By chunk: attention over it alone, and its lse; chunks not looked at are missing. */
  readonly states: ReadonlyMap<number, { readonly out: number[]; readonly lse: number }>;
  /** Of all tokens that full attention would see; −Infinity for others. */
  readonly logits: number[];
}

interface Attended {
  readonly rows: readonly (readonly HeadState[])[];
  readonly chunkOf: readonly number[];
}

function attend(
  { numHeads, numKvHeads, headDim: size, isVisible, chunks }: Problem,
  { qkv, chunkOf, looks }: { qkv: Rows; chunkOf: readonly number[]; looks: readonly (readonly number[])[] },
): Attended {
  const rows = qkv.map((row, at) =>
    Array.from({ length: numHeads }, (_, h): HeadState => {
      const head = (of: readonly number[], number: number): number[] => of.slice(number * size, (number + 1) * size);
      const kvHead = numHeads + Math.floor((h * numKvHeads) / numHeads);
      const logits = qkv.map((other, token) =>
        isVisible(at, token) ? dot(head(row, h), head(other, kvHead)) / Math.sqrt(size) : Number.NEGATIVE_INFINITY,
      );
      const states = [chunkOf[at]!, ...looks[chunkOf[at]!]!].map((chunk) => {
        const tokens = chunks[chunk]!;
        const scores = tokens.map((token) => logits[token]!);
        const values = tokens.map((token) => head(qkv[token]!, kvHead + numKvHeads));
        return [chunk, { out: mixed(softmax(scores), values), lse: logSumExp(scores) }] as const;
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
        return mixed(
          softmax(chosen.map((j) => scores[i]![j]!)),
          chosen.map((j) => states.get(j)!.out),
        );
      }
      const bias = (j: number): number => (j === i ? 0 : logRouting[i]![j]! - frozen!.logRouting[i]![j]!);
      const all = [i, ...chosen];
      return mixed(
        softmax(all.map((j) => states.get(j)!.lse + bias(j))),
        all.map((j) => states.get(j)!.out),
      );
    });
  });
  const shares = (i: number, j: number): number[] =>
    rows.flatMap((heads, at) =>
      chunkOf[at] !== i
        ? []
        : heads.map(({ states }) => {
            const all = logSumExp([...states.values()].map(({ lse }) => lse));
            const lse = states.get(j)?.lse ?? Number.NEGATIVE_INFINITY;
            return lse === Number.NEGATIVE_INFINITY ? 0 : Math.exp(lse - all);
          }),
    );
  const pairs = (pool: (shares: readonly number[]) => number): Rows =>
    problem.chunks.map((_, i) => problem.chunks.map((_, j) => pool(shares(i, j))));
  const mass = pairs((of) => total(of) / of.length);
  const peak = pairs((of) => Math.max(...of));
  return { own, combined, mass, peak, logits: rows.map((heads) => heads.map(({ logits }) => logits)) };
}
