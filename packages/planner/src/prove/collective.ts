import { type DType, reduceOps } from "@mosaic/core";
import type { Quotient } from "../symmetry/quotient.ts";
import type { TapeOp } from "../symbolic/tape.ts";
import type { PostedBatch } from "./batch.ts";
import { type Content, toContent, uninitializedContent, type Region } from "./content.ts";
import { type CombineContext, reduceMessages } from "./entries.ts";
import type { RankMemory } from "./rank-memory.ts";
import type { Relabeling } from "./relabeling.ts";

/**
 * One member of a collective: the input of the representative of its class, and the translation that maps the
 * representative to the member. The representative's data for one member of its own group is the member's data for the
 * translated one.
 */
export interface CollectiveMember {
  readonly batch: PostedBatch;
  /** Memory of the representative. */
  readonly memory: RankMemory;
  /** Data that it sends, as the representative has it. */
  readonly input: Content;
  readonly translation: number;
  /** Returns the group rank, in the representative's group, of the rank that the translation maps to member i. */
  toRepresentativeIndex(i: number): number;
  /** Returns the member to which the translation maps a group rank of the representative's group. */
  fromRepresentativeIndex(memberIndex: number): number;
}

/** A collective: its members by group rank, and the group ranks of the recorded members, whose output is written. */
export interface PairedCollective {
  readonly members: readonly CollectiveMember[];
  readonly receivers: readonly number[];
}

/** Creates the member for a rank of a group, from the input of its class's representative in its own group. */
// oxlint-disable-next-line max-params -- a rank of a group, and the input of its representative
export function createMember(
  quotient: Quotient,
  rank: number,
  group: number,
  memberInput: Pick<CollectiveMember, "batch" | "memory" | "input">,
): CollectiveMember {
  const translation = quotient.classes.translationTo(rank);
  if (memberInput.batch.group === group && translation === 0)
    return { ...memberInput, translation, toRepresentativeIndex: (i) => i, fromRepresentativeIndex: (i) => i };
  const { classes } = quotient;
  const inverse = classes.inverse(translation);
  return {
    ...memberInput,
    translation,
    toRepresentativeIndex: (i) =>
      quotient.groupRank(memberInput.batch.group, classes.apply(inverse, quotient.worldRank(group, i))),
    fromRepresentativeIndex: (memberIndex) =>
      quotient.groupRank(group, classes.apply(translation, quotient.worldRank(memberInput.batch.group, memberIndex))),
  };
}

/**
 * Runs a collective on the memories of its ranks. Sums are tracked; rows are unknown after a mean or maximum. Returns a
 * description of the first mismatch, if any.
 */
export function runCollective(
  collective: PairedCollective,
  context: CombineContext & { readonly relabeling: Relabeling },
): string | undefined {
  return new CollectiveReplay(collective, context).run();
}

class CollectiveReplay {
  readonly #members: readonly CollectiveMember[];
  readonly #receivers: readonly number[];
  readonly #context: CombineContext & { readonly relabeling: Relabeling };
  readonly #op: TapeOp;
  /** For each batch, the offset of its data for each member. */
  readonly #offsets = new Map<PostedBatch, Float64Array>();

  constructor({ members, receivers }: PairedCollective, context: CombineContext & { readonly relabeling: Relabeling }) {
    this.#members = members;
    this.#receivers = receivers;
    this.#context = context;
    this.#op = members[0]!.batch.op;
  }

  run(): string | undefined {
    const dtypeMismatch = this.#dtypeMismatch();
    if (dtypeMismatch) return dtypeMismatch;
    switch (this.#op) {
      case "allGather":
        return this.#allGather();
      case "allToAll":
        return this.#allToAll();
      case "broadcast":
        return this.#broadcast();
      case "allReduce":
      case "reduceScatter":
        return this.#reduce();
      default:
        return undefined;
    }
  }

  #dtypeMismatch(): string | undefined {
    const dtypeOf = ({ batch, memory }: CollectiveMember): DType | undefined =>
      batch.outputView < 0 ? undefined : memory.view(batch.outputView).dtype;
    const first = dtypeOf(this.#members[0]!);
    const mismatch = this.#members.findIndex((member) => dtypeOf(member) !== first);
    return mismatch < 0
      ? undefined
      : `${this.#op}: dtype mismatch: group rank ${mismatch} has ${dtypeOf(this.#members[mismatch]!)}, group rank 0 has ${first}`;
  }

  #allGather(): string | undefined {
    const sizes = this.#members.map(({ batch, memory }) => viewSize(memory, batch.inputView));
    let content: Content | undefined;
    for (const receiver of this.#receivers) {
      const { batch, memory } = this.#members[receiver]!;
      const mismatch = batch.counts.findIndex((count, j) => count !== sizes[j]);
      if (mismatch >= 0)
        return `allGather: group rank ${receiver} expects ${batch.counts[mismatch]} elements from group rank ${mismatch}, which sends ${sizes[mismatch]}`;
      // All counts are right, so all members receive the same.
      content ??= this.#concatenateInputs(sizes);
      memory.receive(batch.outputView, content);
    }
    return undefined;
  }

  /** Concatenates the inputs of all members. */
  #concatenateInputs(sizes: readonly number[]): Content {
    const regions: Region[] = [];
    let start = 0;
    for (const [j, size] of sizes.entries()) {
      regions.push(...this.#translatedInput(j).shiftedRegions(start));
      start += size;
    }
    return toContent(regions);
  }

  /** Returns the input of member j, or a range of it, translated. */
  #translatedInput(j: number, start = 0, end = Number.POSITIVE_INFINITY): Content {
    const { input, translation } = this.#members[j]!;
    return this.#context.relabeling.translateContent(
      start === 0 && end === Infinity ? input : input.range(start, end),
      translation,
    );
  }

  /** counts: elements sent to each member, then received from each. */
  #allToAll(): string | undefined {
    const size = this.#members.length;
    for (const receiver of this.#receivers) {
      const { batch, memory } = this.#members[receiver]!;
      const regions: Region[] = [];
      let start = 0;
      for (const [j, sender] of this.#members.entries()) {
        const memberIndex = sender.toRepresentativeIndex(receiver);
        const sentCount = sender.batch.counts[memberIndex]!;
        const count = batch.counts[size + j]!;
        if (sentCount !== count) {
          return `allToAll: group rank ${receiver} expects ${count} elements from group rank ${j}, which sends ${sentCount}`;
        }
        const offset = this.#memberOffset(sender.batch, memberIndex);
        regions.push(...this.#translatedInput(j, offset, offset + count).shiftedRegions(start));
        start += count;
      }
      memory.receive(batch.outputView, toContent(regions));
    }
    return undefined;
  }

  #broadcast(): string | undefined {
    const roots = this.#members.map((member) => member.fromRepresentativeIndex(member.batch.root));
    const [root] = roots as [number];
    const mismatch = roots.findIndex((each) => each !== root);
    if (mismatch >= 0)
      return `broadcast: root mismatch: group rank ${mismatch} has root ${roots[mismatch]}, group rank 0 has root ${root}`;
    const { batch: rootBatch, memory: rootMemory } = this.#members[root]!;
    const size = viewSize(rootMemory, rootBatch.outputView);
    for (const receiver of this.#receivers) {
      const { batch, memory } = this.#members[receiver]!;
      const expected = viewSize(memory, batch.outputView);
      if (expected !== size) {
        return `broadcast: group rank ${receiver} expects ${expected} elements from group rank ${root}, which sends ${size}`;
      }
      if (receiver !== root) memory.receive(batch.outputView, this.#translatedInput(root));
    }
    return undefined;
  }

  #reduce(): string | undefined {
    const [{ batch: first, memory: firstMemory }] = this.#members as [CollectiveMember];
    const getReduceOpName = (member: number): string | undefined => reduceOps[this.#members[member]!.batch.root];
    const mismatch = this.#members.findIndex(({ batch }) => batch.root !== first.root);
    if (mismatch >= 0)
      return `${this.#op}: reduction mismatch: group rank ${mismatch} uses ${getReduceOpName(mismatch)}, group rank 0 uses ${getReduceOpName(0)}`;
    const size = viewSize(firstMemory, first.inputView);
    const sizes = this.#members.map(({ batch, memory }) => viewSize(memory, batch.inputView));
    const mismatchedMember = sizes.findIndex((each) => each !== size);
    if (mismatchedMember >= 0)
      return `${this.#op}: size mismatch: group rank ${mismatchedMember} has ${sizes[mismatchedMember]} elements, group rank 0 has ${size}`;
    return this.#op === "allReduce" ? this.#allReduce() : this.#reduceScatter();
  }

  #allReduce(): undefined {
    const sum = this.#sumTerms((j) => this.#translatedInput(j));
    for (const receiver of this.#receivers) {
      const { batch, memory } = this.#members[receiver]!;
      memory.receive(batch.outputView, sum);
    }
  }

  #reduceScatter(): string | undefined {
    const outputSizes = this.#members.map(({ batch, memory }) => viewSize(memory, batch.outputView));
    // Without translations, the whole sum is computed once and then cut.
    const isUntranslated = this.#members.every(({ translation }) => translation === 0);
    const sum = isUntranslated ? this.#sumTerms((j) => this.#translatedInput(j)) : undefined;
    for (const receiver of this.#receivers) {
      const { batch, memory } = this.#members[receiver]!;
      const mismatch = batch.counts.findIndex((count, j) => count !== outputSizes[j]);
      if (mismatch >= 0) {
        return `reduceScatter: group rank ${receiver} expects an output of ${batch.counts[mismatch]} elements on group rank ${mismatch}, which has ${outputSizes[mismatch]}`;
      }
      const readShare = (j: number): Content => {
        const sender = this.#members[j]!;
        const senderOffset = this.#memberOffset(sender.batch, sender.toRepresentativeIndex(receiver));
        return this.#translatedInput(j, senderOffset, senderOffset + outputSizes[receiver]!);
      };
      const offset = this.#memberOffset(batch, receiver);
      memory.receive(
        batch.outputView,
        sum?.range(offset, offset + outputSizes[receiver]!) ?? this.#sumTerms(readShare),
      );
    }
    return undefined;
  }

  #sumTerms(term: (j: number) => Content): Content {
    const isSum = reduceOps[this.#members[0]!.batch.root] === "sum";
    return isSum
      ? reduceMessages(
          this.#members.map((_, j) => term(j)),
          this.#context,
        )
      : uninitializedContent;
  }

  #memberOffset(batch: PostedBatch, memberIndex: number): number {
    let offsets = this.#offsets.get(batch);
    if (!offsets) {
      const { counts } = batch;
      offsets = new Float64Array(this.#members.length);
      for (let i = 1; i < offsets.length; i++) offsets[i] = offsets[i - 1]! + counts[i - 1]!;
      this.#offsets.set(batch, offsets);
    }
    return offsets[memberIndex]!;
  }
}

function viewSize(memory: RankMemory, view: number): number {
  return view < 0 ? 0 : memory.view(view).layout.size;
}
