import { type DType, reduceOps } from "@mosaic/core";
import type { Quotient } from "../symmetry/quotient.ts";
import type { TapeOp } from "../symbolic/tape.ts";
import type { PostedBatch } from "./batch.ts";
import { type Content, toContent, uninitializedContent, type Region } from "./content.ts";
import { type CombineContext, reduceMessages } from "./entries.ts";
import type { RankMemory } from "./rank-memory.ts";
import type { Relabeling } from "./relabeling.ts";

/**
 * One member of a collective: what the representative of its class brings, and the translation that leads to the member. What
 * the representative has for one member of its group, the member has for the one that the translation takes that one to.
 */
export interface CollectiveMember {
  readonly batch: PostedBatch;
  /** The representative's. */
  readonly memory: RankMemory;
  /** What it sends, as the representative has it. */
  readonly input: Content;
  readonly translation: number;
  /** The place, in the representative's group, of the rank that the translation takes to member i. */
  toRepresentativeIndex(i: number): number;
  /** The member that the translation takes the rank at a place of the representative's group to. */
  fromRepresentativeIndex(memberIndex: number): number;
}

/** A collective: its members by rank in the group, and those of them that are recorded ranks themselves, who take something. */
export interface PairedCollective {
  readonly members: readonly CollectiveMember[];
  readonly receivers: readonly number[];
}

/** A rank as a member of a group's collective, by what the representative of its class brings to its own group. */
// oxlint-disable-next-line max-params -- which rank of which group, and what its representative has
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
 * Carries a collective out on what the memories of its ranks hold. Sums are followed; what means and maxima make of rows is
 * unknown after. Returns what does not fit, if anything.
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
  /** Of each batch, where what it has for each member begins. */
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
      // All counts are right, so all members get the same.
      content ??= this.#concatenateInputs(sizes);
      memory.receive(batch.outputView, content);
    }
    return undefined;
  }

  /** What all members send, one after the other. */
  #concatenateInputs(sizes: readonly number[]): Content {
    const regions: Region[] = [];
    let start = 0;
    for (const [j, size] of sizes.entries()) {
      regions.push(...this.#translatedInput(j).shiftedRegions(start));
      start += size;
    }
    return toContent(regions);
  }

  /** What member j sends, or a range of it. */
  #translatedInput(j: number, start = 0, end = Number.POSITIVE_INFINITY): Content {
    const { input, translation } = this.#members[j]!;
    return this.#context.relabeling.translateContent(
      start === 0 && end === Infinity ? input : input.range(start, end),
      translation,
    );
  }

  /** counts: elements sent to each, then received from each. */
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
    // Where no rank is a translation of another, the sum is cut, not the terms.
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
