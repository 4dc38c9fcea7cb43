import {
  checkArgument,
  type Coordinate,
  defineOptions,
  expectValue,
  option,
  OptionError,
  type OptionsOf,
} from "@mosaic/core";
import { haveEqualMessages } from "../prove/rank-check.ts";
import { PairCounts } from "../prove/visibility.ts";
import { type AttentionRecord, maxRecordedRanks, type RecordedRank, Recorder, type RecordOptions } from "../record.ts";
import { isEquivalent } from "./equivalence.ts";
import { Invariance } from "./invariance.ts";
import { Shards } from "./shards.ts";
import {
  GroupAction,
  type RankDigit,
  meshDigits,
  sampleRanks,
  movesByWholeNodes,
  Translations,
} from "./translations.ts";

export const recordRepresentativesOptions = defineOptions("recordRepresentatives", {
  /**
   * Ranks of a node, as in a profile. Ranks of one class then have the same local rank on different nodes, so that the
   * record can be simulated. Default: none; the record can be proved and counted, and classes are larger.
   */
  ranksPerNode: option.integer({ min: 1, optional: true }),
});
/** Restrictions on the ranks that may share a class. */
export type RecordRepresentativesOptions = OptionsOf<typeof recordRepresentativesOptions>;

/**
 * Records one rank for each class of ranks that do the same at their places in the mesh. This is enough to prove,
 * simulate and count what up to 65 536 ranks do, at the cost of a few.
 *
 * The classes are found automatically. They are those of the largest group of translations of the mesh (along its
 * axes, or along the rows and columns of a grid that a backend forms along an axis) that preserves the number of rows
 * of each shard, the number of visible pairs of each two shards, and which ranks share a node. Whether the backend
 * does the same everywhere is then tested by running it on the representatives, on adjacent and opposite ranks, and
 * on ranks spread over the mesh. `prove` checks this more closely. Where ranks differ, as under a causal mask with
 * contiguous placement, each rank is a class of its own.
 *
 * @example
 * ```ts
 * import { local, masks, zigzag } from "@mosaic/core";
 * import { count, prove, recordRepresentatives } from "@mosaic/planner";
 * const call = { backend: local(), tokens: 64, numHeads: 4, headDim: 8, mask: masks.causal(), placement: zigzag() };
 * const run = recordRepresentatives({ ...call, mesh: { dp: 4096 } });
 * run.ranks.length; // => 1
 * prove(run).total; // => 0
 * count(run).ranks[0]!.forward.sent.bytes; // => 0
 * ```
 * @throws OptionError as `record` does, and if there are more than 1 024 classes.
 */
export function recordRepresentatives(
  options: RecordOptions,
  classOptions?: RecordRepresentativesOptions,
): AttentionRecord {
  const { ranksPerNode } = recordRepresentativesOptions.parse(classOptions);
  return new SymmetrySearch("recordRepresentatives", options, ranksPerNode).record();
}

/**
 * Checks, before anything is recorded, that shards and their work are equal enough for `recordRepresentatives` with
 * any backend. This takes milliseconds, whereas recording takes seconds.
 *
 * @example
 * ```ts
 * import { local, masks } from "@mosaic/core";
 * import { checkRepresentatives } from "@mosaic/planner";
 * const call = { backend: { ...local(), axes: ["sp"] }, mesh: { sp: 2048 }, tokens: 4096, numHeads: 1, headDim: 8 };
 * checkRepresentatives("plan", call, 8); // => undefined
 * checkRepresentatives("plan", { ...call, mask: masks.causal() }, 8); // throws OptionError
 * ```
 * @throws OptionError that names `where` if there would be more than 1 024 classes.
 */
export function checkRepresentatives(where: string, options: RecordOptions, ranksPerNode: number): void {
  expectValue("checkRepresentatives", typeof where === "string", "the name of the caller", where);
  checkArgument(`${where}: ranksPerNode`, ranksPerNode, option.integer({ min: 1 }));
  new SymmetrySearch(where, options, ranksPerNode).checkShards();
}

/** The property in which ranks of different classes differ. */
type ClassDifference = "rows" | "pairs" | "behavior";

const differenceRemedies: Readonly<Record<ClassDifference, (shards: number) => string>> = {
  rows: (shards) => `make the number of tokens a multiple of ${2 * shards}, so that all shards have the same length`,
  pairs: () => "use a mask and a placement that give all ranks the same work, such as causal() with zigzag()",
  behavior: () => "use a backend that runs the same operations on every rank, or use fewer ranks",
};

/** Finds the classes of one mesh. */
class SymmetrySearch {
  readonly #where: string;
  readonly #recorder: Recorder;
  readonly #ranksPerNode: number | undefined;
  readonly #invariance: Invariance;
  readonly #pairCounts: PairCounts | undefined;
  /** Ranks that were recorded for comparison. */
  readonly #recordedRanks = new Map<number, RecordedRank>();
  /** Whether a translation of shards preserves rows and pairs, by axis, stride, length and step of its digit. */
  readonly #preservationCache = new Map<string, boolean>();
  #difference: ClassDifference = "behavior";

  constructor(where: string, options: RecordOptions, ranksPerNode: number | undefined) {
    this.#where = where;
    this.#recorder = new Recorder(where, options);
    this.#ranksPerNode = ranksPerNode;
    const { queries, keys, slices, interned } = this.#recorder;
    const { mesh } = this.#recorder.options;
    const [shards, samples] = [new Shards(queries, mesh), interned.sampleCount(interned.maskId(slices))];
    this.#invariance = new Invariance(shards, keys === queries ? shards : new Shards(keys, mesh), slices, samples);
    // A proof does not depend on the time of kernels.
    this.#pairCounts = ranksPerNode === undefined ? undefined : new PairCounts(this.#recorder.interned);
  }

  record(): AttentionRecord {
    const { size } = this.#recorder;
    if (size > maxRecordedRanks) this.checkShards();
    const translations = this.#translations();
    if (!translations.isIdentity) {
      if (translations.classes > maxRecordedRanks) throw this.#tooManyClassesError(translations.classes);
      const ranks = translations.representatives().map((rank) => this.#recordRank(rank));
      const record = this.#recorder.createRecord(ranks, translations);
      if (this.#matchesSamples(record)) return record;
    }
    if (size > maxRecordedRanks) throw this.#tooManyClassesError(size);
    return this.#recorder.createRecord(Array.from({ length: size }, (_, rank) => this.#recordRank(rank)));
  }

  /** Checks the mesh axes only. Grids that a backend forms have no fewer classes. */
  checkShards(): void {
    const digits = meshDigits(this.#mesh).map((digit) => this.#smallestStep(digit));
    const { classes } = new Translations(digits, this.#recorder.size);
    if (classes > maxRecordedRanks) throw this.#tooManyClassesError(classes);
  }

  get #mesh(): Coordinate {
    return this.#recorder.options.mesh;
  }

  /**
   * Returns, for each axis, the largest group of translations under which the backend does the same while the other
   * axes stay fixed.
   */
  #translations(): Translations {
    const digits = meshDigits(this.#mesh).flatMap((axis) => this.#candidateDigits(axis));
    return new Translations(digits, this.#recorder.size);
  }

  #candidateDigits(axis: RankDigit): RankDigit[] {
    let [bestDigits, maxTranslations] = [[{ ...axis, step: axis.length }], 1];
    // No grid has more translations than the axis itself could have.
    const maxUsefulTranslations =
      axis.length / divisors(axis.length).find((step) => this.#alignsWithNodes({ ...axis, step }))!;
    for (const candidate of [[axis], ...axisDigits(axis)]) {
      if (maxTranslations >= maxUsefulTranslations) break;
      const digits = candidate.map((digit) => this.#smallestStep(digit));
      const translations = new Translations(digits, this.#recorder.size);
      if (translations.order <= maxTranslations) continue;
      if (this.#isSymmetry(translations)) [bestDigits, maxTranslations] = [digits, translations.order];
      else this.#difference = "behavior";
    }
    return bestDigits;
  }

  /**
   * Returns the digit with the smallest step that preserves nodes, rows and pairs. If there is none, the step is the
   * length, which moves nothing.
   */
  #smallestStep(digit: RankDigit): RankDigit {
    const steps = divisors(digit.length).map((step) => ({ ...digit, step }));
    return steps.find(
      (each) => each.step === each.length || (this.#alignsWithNodes(each) && this.#preservesShards(each)),
    )!;
  }

  #alignsWithNodes(digit: RankDigit): boolean {
    const { step, length } = digit;
    if (step === length) return true;
    const isAlignedWithNodes = this.#ranksPerNode === undefined || movesByWholeNodes(digit, this.#ranksPerNode);
    return isAlignedWithNodes && this.#preservesHosts(digit);
  }

  /** Whether ranks that share a host still share one after a step of the digit. Backends may depend on hosts. */
  #preservesHosts(digit: RankDigit): boolean {
    const { hosts } = this.#recorder.options;
    if (!hosts) return true;
    const translations = new Translations([digit], hosts.length);
    const targetHostByHost = new Map<number, number>();
    return hosts.every((host, rank) => {
      const targetHost = hosts[translations.apply(digit.step * digit.stride, rank)]!;
      if (!targetHostByHost.has(host)) targetHostByHost.set(host, targetHost);
      return targetHostByHost.get(host) === targetHost;
    });
  }

  #preservesShards(digit: RankDigit): boolean {
    const { axis, stride, step, length } = digit;
    const key = `${axis} ${stride} ${length} ${step}`;
    let isPreserved = this.#preservationCache.get(key);
    if (isPreserved === undefined) this.#preservationCache.set(key, (isPreserved = this.#checkPreserved(digit)));
    return isPreserved;
  }

  #checkPreserved(digit: RankDigit): boolean {
    const { size, queries } = this.#recorder;
    const action = new GroupAction(new Translations([digit], size), this.#mesh, queries.axes);
    const translateShard = (shard: number): number => action.apply(digit.step * digit.stride, shard);
    if (!this.#invariance.preservesRows(translateShard)) {
      this.#difference = "rows";
      return false;
    }
    if (this.#invariance.preservesPairs(translateShard)) return true;
    // Backends derive from pairs only whether there are any.
    if (!this.#pairCounts && this.#invariance.isEveryShardVisible) return true;
    this.#difference = "pairs";
    return false;
  }

  /** Whether the backend does on adjacent and opposite ranks what it does on rank 0, and sends the same. */
  #isSymmetry(translations: Translations): boolean {
    const rankZero = this.#recordRank(0);
    const checkedRanks: RecordedRank[] = [];
    const comparison = { record: this.#recorder.createRecord([]), translations, pairs: this.#pairCounts };
    // Inner digits first, because neighbors along a row rule out most grids.
    for (const { stride, length, step } of translations.digits.toReversed()) {
      const numTranslations = length / step;
      for (const shift of new Set([1, numTranslations - 1, numTranslations >> 1])) {
        const rank = (shift % numTranslations) * step * stride;
        if (rank === 0) continue;
        const otherRank = this.#recordRank(rank);
        if (!isEquivalent(rankZero, otherRank, comparison)) return false;
        checkedRanks.push(otherRank);
      }
    }
    return haveEqualMessages(rankZero, checkedRanks, this.#recorder.createRecord([rankZero], translations));
  }

  /** Whether ranks spread over the mesh do what the representatives of their classes do. */
  #matchesSamples(record: AttentionRecord): boolean {
    const { classes } = record;
    const representativeByRank = new Map(record.ranks.map((each) => [each.tape.rank, each]));
    const comparison = { record, translations: classes, pairs: this.#pairCounts };
    const maxEvents = Math.max(...record.ranks.map(({ tape }) => tape.events));
    return sampleRanks(classes.ranks, maxEvents).every((rank) => {
      const representative = representativeByRank.get(classes.representative(rank))!;
      if (representative.tape.rank === rank) return true;
      return isEquivalent(representative, this.#recordedRanks.get(rank) ?? this.#recorder.recordRank(rank), comparison);
    });
  }

  #recordRank(rank: number): RecordedRank {
    let recordedRank = this.#recordedRanks.get(rank);
    if (!recordedRank) this.#recordedRanks.set(rank, (recordedRank = this.#recorder.recordRank(rank)));
    return recordedRank;
  }

  #tooManyClassesError(classes: number): OptionError {
    const { size, options, queries } = this.#recorder;
    const shards = queries.axes.reduce((product, axis) => product * options.mesh[axis]!, 1);
    const { mask } = options;
    const maskName = "name" in mask ? mask.name : `${mask.length} masks`;
    const problemDescription = `${maskName}, ${options.placement.name}, ${options.tokens} tokens`;
    return new OptionError({
      where: this.#where,
      expected: `at most ${maxRecordedRanks} equivalence classes of ranks`,
      received: `${size} ranks in ${classes} equivalence classes (${problemDescription})`,
      remedy: differenceRemedies[this.#difference](shards),
    });
  }
}

/** Returns the ways to arrange the ranks along an axis in rows and columns, with at least two of each. */
function axisDigits({ axis, stride, length }: RankDigit): RankDigit[][] {
  return divisors(length)
    .filter((columns) => columns > 1 && columns < length)
    .map((columns) => [
      { axis, stride: stride * columns, length: length / columns, step: 1 },
      { axis, stride, length: columns, step: 1 },
    ]);
}

function divisors(n: number): number[] {
  return Array.from({ length: n }, (_, i) => i + 1).filter((divisor) => n % divisor === 0);
}
