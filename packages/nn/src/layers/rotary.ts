import {
  defineOp,
  type Device,
  formatDevice,
  formatShape,
  keep,
  type PositionEncoding,
  positions,
  rowSharding,
  ShapeError,
  type Span,
  spansLength,
  type Tensor,
  checkArgument,
  defineOptions,
  option,
  type OptionsOf,
  checkTensor,
  expectValue,
} from "@mosaic/core";
import { type RopeFrequencies, type RopeScaling, unscaledFrequencies } from "./rope-scaling.ts";

// x [B,H,S,D]: S rows, at the positions of some spans. The D features form D/2 pairs that are rotated.

export const rotaryOptions = defineOptions("RotaryEmbedding", {
  /** Pair i is rotated by base^(−2i/D) radians per position. Default 10000. */
  base: option.number({ above: 0, default: 10_000 }),
  /**
   * Whether pairs are (0, 1), (2, 3), … as in the paper, instead of (0, D/2), (1, D/2 + 1), … as in GPT-NeoX and Llama.
   * Default false.
   */
  interleaved: option.boolean({ default: false }),
  /**
   * Extends the embedding beyond the sequence lengths of its training, such as `ropeScaling.yarn({ … })`. Default:
   * none.
   */
  scaling: option.custom("a RopeScaling, such as ropeScaling.yarn({ … })", option.hasMethods<RopeScaling>("compute"), {
    optional: true,
  }),
});
/** Options of RotaryEmbedding. */
export type RotaryOptions = OptionsOf<typeof rotaryOptions>;

/** Cosine and sine of each row's angles, [S,D/2] float32. */
interface RotaryTable {
  readonly cos: Tensor;
  readonly sin: Tensor;
}

interface RotationOptions extends RotaryTable {
  readonly interleaved: boolean;
}

const rotaryOp = defineOp({
  name: "rotary",
  sharding: rowSharding,
  forward([x]: [Tensor], { cos, sin, interleaved }: RotationOptions, isRecorded) {
    const output = rotate(x, { cos, sin, interleaved }, false);
    // Tables may be released before the backward.
    const saveTable = (table: Tensor): Tensor | null => (isRecorded ? table.detach() : null);
    return { output, saved: { cos: saveTable(cos), sin: saveTable(sin), interleaved } };
  },
  // The backward of a rotation is the inverse rotation. A factor in the tables applies to both.
  backward: ({ cos, sin, interleaved }, dOut) => [rotate(dOut, { cos: cos!, sin: sin!, interleaved }, true)],
});

/** Rotates x, or rotates it back if `inverse`. The output has the memory order [B,S,H,D]. */
function rotate(x: Tensor, options: RotationOptions, inverse: boolean): Tensor {
  const [b, h, s, d] = x.shape as [number, number, number, number];
  using memory = x.device.empty([b, s, h, d], x.dtype);
  const out = memory.permute([0, 2, 1, 3]);
  if (x.size > 0) x.device.kernels.rotary(out, x, { ...options, inverse });
  return out;
}

/** Number of table elements that are on the host at a time. */
const CHUNK_SIZE = 2 ** 18;

/**
 * Computes the tables of some positions. Allocates them on the device first, so that tables beyond its memory limit
 * fail before anything is computed.
 */
function computeRotaryTable(
  device: Device,
  rows: Int32Array,
  { inverseFrequencies: frequencies, attentionFactor }: RopeFrequencies,
): RotaryTable {
  const numPairs = frequencies.length;
  const cos = device.empty([rows.length, numPairs], "float32");
  let sin: Tensor | undefined;
  try {
    sin = device.empty([rows.length, numPairs], "float32");
    const angles = new Float64Array(Math.min(CHUNK_SIZE, cos.size));
    for (let chunkStart = 0; chunkStart < cos.size; chunkStart += CHUNK_SIZE) {
      const angleChunk = angles.subarray(0, Math.min(CHUNK_SIZE, cos.size - chunkStart));
      for (let i = 0; i < angleChunk.length; i++) {
        angleChunk[i] = rows[Math.floor((chunkStart + i) / numPairs)]! * frequencies[(chunkStart + i) % numPairs]!;
      }
      writeAt(
        cos,
        chunkStart,
        angleChunk.map((angle) => attentionFactor * Math.cos(angle)),
      );
      writeAt(
        sin,
        chunkStart,
        angleChunk.map((angle) => attentionFactor * Math.sin(angle)),
      );
    }
    return { cos, sin };
  } catch (error) {
    cos.dispose();
    sin?.dispose();
    throw error;
  }
}

/** Writes values to consecutive elements of a dense tensor, starting at `offset`. */
function writeAt(out: Tensor, offset: number, values: Float64Array): void {
  using chunkView = out.view({ shape: [values.length], strides: [1], offset });
  out.device.write(chunkView, values);
}

function isPositiveEvenInteger(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 2 && (value as number) % 2 === 0;
}

/** Maximum number of cached tables. The least recently used one is evicted. */
const MAX_CACHED_TABLES = 4;

/** Number of positions of a table that single rows share, so that a decoded token needs no table of its own. */
const BLOCK_LENGTH = 256;

/**
 * Rotary position embedding (Su et al. 2021): rotates pairs of features of queries and keys by angles proportional to
 * the *global* position, so that q·k depends on the distance of their positions, on whichever ranks they are. Pass it
 * to an attention module as `positions`, or call `encode`. Angles are computed in float64. `scaling` extends the
 * context, as in Llama 3.1, Qwen and gpt-oss.
 *
 * @example
 * ```ts
 * import { init, MultiAxisAttention, randn } from "@mosaic/core";
 * import { cpu } from "@mosaic/kernels-cpu";
 * import { RotaryEmbedding } from "@mosaic/nn";
 * await using ctx = await init({ device: cpu(), rank: 0, worldSize: 1 });
 * using rotary = new RotaryEmbedding(8);
 * using attn = new MultiAxisAttention(ctx, { embedDim: 16, numHeads: 2, attentionAxis: 1, positions: rotary });
 * using x = randn(ctx, [1, 10, 16]);
 * using out = attn.forward(x);
 * out.shape; // => [1, 10, 16]
 * ```
 * Tables are computed on demand for the positions that are encoded. The four most recently used tables are cached.
 *
 * @throws OptionError for a head size that is not even; from `encode`, OutOfMemoryError for tables beyond the device's
 * limit.
 */
export class RotaryEmbedding implements PositionEncoding, Disposable {
  readonly headDim: number;
  readonly #base: number;
  readonly #interleaved: boolean;
  readonly #scaling: RopeScaling | undefined;
  readonly #tables = new Map<string, RotaryTable & { readonly device: Device }>();

  constructor(headDim: number, options?: RotaryOptions) {
    const { base, interleaved, scaling } = rotaryOptions.parse(options);
    checkArgument("RotaryEmbedding: headDim", headDim, option.custom("an even number ≥ 2", isPositiveEvenInteger));
    this.headDim = headDim;
    this.#base = base;
    this.#interleaved = interleaved;
    this.#scaling = scaling;
  }

  /**
   * Returns the angles of the pairs at position 1, [D/2], and the factor on queries and keys. `sequenceLength`, the
   * length of the whole sequence, is required for a scaling that depends on it.
   *
   * @throws OptionError if it is required and missing.
   */
  frequencies(sequenceLength?: number): RopeFrequencies {
    const [headDim, base] = [this.headDim, this.#base];
    if (!this.#scaling) return { inverseFrequencies: unscaledFrequencies({ headDim, base }), attentionFactor: 1 };
    const length = option.integer({ min: 0 });
    if (this.#scaling.dependsOnLength) checkArgument("RotaryEmbedding: sequenceLength", sequenceLength, length);
    return this.#scaling.compute({ headDim, base, sequenceLength });
  }

  /**
   * Rotates x [B,H,S,D], whose rows have the positions of `spans` in a sequence of `sequenceLength` rows. The length is
   * used only by scalings that depend on it; attention modules pass it.
   */
  encode(x: Tensor, spans: readonly Span[], sequenceLength?: number): Tensor {
    checkTensor("RotaryEmbedding: x", x);
    const length = spansLength(spans);
    if (x.rank !== 4 || x.shape[3] !== this.headDim || x.shape[2] !== length) {
      throw new ShapeError({
        where: "RotaryEmbedding",
        expected: `x [B,H,${length},${this.headDim}]`,
        received: formatShape(x.shape),
        ...(x.rank === 4 &&
          x.shape[3] !== this.headDim && { remedy: `pass new RotaryEmbedding(${x.shape[3]}) for this head size` }),
      });
    }
    const areIntegers = spans.every((span) => Object.values(span).every((each) => Number.isSafeInteger(each)));
    expectValue("RotaryEmbedding: spans", areIntegers, "spans of integers", spans);
    const table = this.#getAngles(x.device, spans, sequenceLength);
    using cos = table.cos;
    using sin = table.sin;
    return rotaryOp([x], { cos, sin, interleaved: this.#interleaved });
  }

  /** Returns views of a table. The caller disposes them. */
  #getAngles(device: Device, spans: readonly Span[], sequenceLength: number | undefined): RotaryTable {
    const [{ start, length } = { start: 0, length: 0 }, ...otherSpans] = spans;
    const isOnePosition = length === 1 && otherSpans.length === 0 && start >= 0;
    if (!isOnePosition || this.#scaling?.dependsOnLength) {
      const { cos, sin } = this.#getTable(device, spans, sequenceLength);
      return { cos: cos.detach(), sin: sin.detach() };
    }
    const row = start % BLOCK_LENGTH;
    const blockSpan = { start: start - row, length: BLOCK_LENGTH, step: 1 };
    const { cos, sin } = this.#getTable(device, [blockSpan], sequenceLength);
    return { cos: cos.slice(0, row, row + 1), sin: sin.slice(0, row, row + 1) };
  }

  #getTable(device: Device, spans: readonly Span[], sequenceLength: number | undefined): RotaryTable {
    const length = this.#scaling?.dependsOnLength ? String(sequenceLength) : "";
    const key = `${formatDevice(device)} ${length} ${JSON.stringify(spans)}`;
    const cachedTable = this.#tables.get(key);
    // Inserted again at each use, so that the first entry of the map is the least recently used one.
    this.#tables.delete(key);
    if (cachedTable?.device === device) {
      this.#tables.set(key, cachedTable);
      return cachedTable;
    }
    cachedTable?.cos.dispose();
    cachedTable?.sin.dispose();
    const newTable = computeRotaryTable(device, positions(spans), this.frequencies(sequenceLength));
    // The tables outlive the scope of the forward in which they are created.
    this.#tables.set(key, { cos: keep(newTable.cos), sin: keep(newTable.sin), device });
    this.#evictOldest();
    return newTable;
  }

  #evictOldest(): void {
    const [oldestEntry] = this.#tables;
    if (!oldestEntry || this.#tables.size <= MAX_CACHED_TABLES) return;
    this.#tables.delete(oldestEntry[0]);
    oldestEntry[1].cos.dispose();
    oldestEntry[1].sin.dispose();
  }

  /** Releases the tables. */
  dispose(): void {
    this[Symbol.dispose]();
  }

  [Symbol.dispose](): void {
    for (const { cos, sin } of this.#tables.values()) for (const each of [cos, sin]) each.dispose();
    this.#tables.clear();
  }
}
