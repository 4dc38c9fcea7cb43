import {
  CheckedGroup,
  type CollectiveCall,
  type Device,
  type ProcessGroup,
  type TraceEvent,
  type Traffic,
  type Work,
} from "@mosaic/core";
import type { NativeRank, PostingGroup } from "./rank.ts";

/** A group that this rank is a member of. */
export interface GroupMembership {
  readonly name: string;
  /** Index of the group in native code. 0 is the world; closing it closes the rank. */
  readonly index: number;
  readonly rank: number;
  /** World ranks of the members. */
  readonly ranks: readonly number[];
  /** Host number of each member. */
  readonly hosts: readonly number[];
}

/** A process group whose collectives a native engine executes. */
export class NativeGroup extends CheckedGroup {
  readonly name: string;
  readonly rank: number;
  readonly ranks: readonly number[];
  readonly hosts: readonly number[];
  readonly #nativeRank: NativeRank;
  readonly #postingGroup: PostingGroup;
  #isClosed = false;

  constructor(nativeRank: NativeRank, { name, index, rank, ranks, hosts }: GroupMembership) {
    super();
    this.#nativeRank = nativeRank;
    this.#postingGroup = { index, name, rank, size: ranks.length };
    this.name = name;
    this.rank = rank;
    this.ranks = ranks;
    this.hosts = hosts;
  }

  /** Returns the group of all ranks, for a rank that has just connected. */
  static world(nativeRank: NativeRank, { rank, size }: { readonly rank: number; readonly size: number }): NativeGroup {
    const ranks = Array.from({ length: size }, (_, i) => i);
    return new NativeGroup(nativeRank, { name: "world", index: 0, rank, ranks, hosts: nativeRank.hosts });
  }

  get timeout(): number {
    return this.#nativeRank.timeout;
  }

  get device(): Device {
    return this.#nativeRank.device;
  }

  protected get isClosed(): boolean {
    return this.#isClosed || this.#nativeRank.isClosed;
  }

  protected post(call: CollectiveCall, label: string): Work {
    return this.#nativeRank.post(this.#postingGroup, call, label);
  }

  protected record(description: () => string): void {
    if (this.size > 1) this.#nativeRank.record(this.#postingGroup.index, description());
  }

  async split(color: number, name: string = `${this.name}/${color}`): Promise<ProcessGroup> {
    this.checkSplit(color, name);
    const membership = await this.#nativeRank.split(this.#postingGroup.index, color, name);
    const hosts = membership.ranks.map((memberRank) => this.#nativeRank.hosts[memberRank]!);
    return new NativeGroup(this.#nativeRank, { name, ...membership, hosts });
  }

  traffic(): Traffic {
    const [bytesSent, bytesReceived, messagesSent] = this.#nativeRank.traffic(this.#postingGroup.index);
    return { bytesSent, bytesReceived, messagesSent };
  }

  override markStep(): void {
    if (this.size > 1 && !this.isClosed) this.#nativeRank.markStep();
  }

  startTrace(): void {
    this.checkOpen("startTrace");
    this.#nativeRank.startTrace();
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    this.checkOpen("stopTrace");
    return this.#nativeRank.stopTrace();
  }

  /**
   * Closing the world closes this rank, after the operations that were posted have finished. Resources of other groups
   * are released with their rank.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    if (this.#postingGroup.index === 0) await this.#nativeRank.close();
  }
}
