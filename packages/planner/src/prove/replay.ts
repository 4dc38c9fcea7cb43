import { type KernelName, getOperands } from "@mosaic/core";
import type { AttentionRecord, RecordedRank } from "../record.ts";
import type { TapeReader } from "../symbolic/tape.ts";
import type { PostedBatch } from "./batch.ts";
import { ComputeReplay } from "./compute.ts";
import type { ReplayContext } from "./context.ts";
import type { PositionTable } from "./positions.ts";
import { RankMemory } from "./rank-memory.ts";
import { writeSinks } from "./sinks.ts";
import { type Rows, type RowSide, encodeValue } from "./values.ts";

/** State with which a rank is replayed. */
export interface ReplayState {
  /** Index of the rank in the record. */
  readonly index: number;
  readonly memory: RankMemory;
  /** Runs the rank's collectives, and marks them as done. */
  readonly streams: { post(index: number, event: TapeReader, phase: string): void };
}

/** Creates a rank's memory with its inputs. */
export function createInitialMemory(
  record: AttentionRecord,
  recordedRank: RecordedRank,
  table: PositionTable,
): RankMemory {
  const { tape, at, firstSequence, tensorViews } = recordedRank;
  const memory = new RankMemory(tape);
  const createRows = (side: RowSide): Rows => {
    return { batch: firstSequence, head: 0, column: 0, positions: table.fromSpans(record[side].spans(at)) };
  };
  // One object for the rows of queries and one for those of keys, so that matching rows are recognized by identity.
  const [queries, keys] = [createRows("queries"), createRows("keys")];
  for (const name of ["q", "dOut"] as const) memory.writeSingleRegion(tensorViews[name], encodeValue(name), queries);
  for (const name of ["k", "v"] as const) memory.writeSingleRegion(tensorViews[name], encodeValue(name), keys);
  writeSinks(memory, tensorViews.sinks, table);
  return memory;
}

/** Number of views in an event of a kernel, and how many of them, from the first on, it mutates. */
interface OperandCounts {
  /** Index of the first argument that is a view; default 0. */
  readonly firstOperandIndex?: number;
  readonly numWrittenOperands: number;
  readonly numOperands: number;
}

const countsByKernel = {
  attend: countOperands("attend"),
  attendBackward: countOperands("attendBackward"),
  merge: countOperands("merge"),
  rowDot: countOperands("rowDot"),
  fill: countOperands("fill"),
  copy: countOperands("copy"),
  add: countOperands("binary"),
};

function countOperands(kernel: KernelName): OperandCounts {
  const baseOperands = getOperands(kernel).filter(({ feature }) => feature === undefined);
  return {
    numWrittenOperands: baseOperands.filter(({ isMutated }) => isMutated).length,
    numOperands: baseOperands.length,
  };
}

/** Replays one rank's tape as far as possible without the other ranks. */
export class Replay {
  readonly rank: number;
  readonly #interned: AttentionRecord["interned"];
  readonly #reader: TapeReader;
  readonly #context: ReplayContext;
  readonly #memory: RankMemory;
  readonly #streams: ReplayState["streams"];
  readonly #index: number;
  readonly #compute: ComputeReplay;
  readonly #tensorViews: RecordedRank["tensorViews"];
  /** The collective that this rank waits for. */
  #awaitedCollective: PostedBatch | undefined;
  #hasEnded = false;

  constructor(context: ReplayContext, recordedRank: RecordedRank, state: ReplayState) {
    this.rank = recordedRank.tape.rank;
    this.#interned = context.record.interned;
    this.#reader = recordedRank.tape.read();
    this.#context = context;
    this.#memory = state.memory;
    this.#streams = state.streams;
    this.#index = state.index;
    this.#compute = new ComputeReplay(context, recordedRank, state.memory);
    this.#tensorViews = recordedRank.tensorViews;
  }

  /** Whether all results are computed. The remaining events only free memory. */
  get hasEnded(): boolean {
    return this.#hasEnded;
  }

  /** Runs until the end of the tape, or until a collective that is not done. */
  run(): void {
    while (!this.#hasEnded) {
      if (this.#awaitedCollective !== undefined) {
        if (!this.#awaitedCollective.isDone) return;
        this.#memory.release(this.#awaitedCollective);
        this.#awaitedCollective = undefined;
      }
      if (!this.#reader.next()) return;
      this.#step(this.#reader);
    }
  }

  #step(event: TapeReader): void {
    const compute = this.#compute;
    switch (event.op) {
      case "empty":
        return;
      case "free":
        return this.#memory.invalidate(event.arg(0));
      case "mark": {
        const phase = this.#interned.strings[event.arg(0)]!;
        this.#hasEnded = phase === "end";
        if (phase === "backward") this.#checkResultsWritten("out");
        if (phase === "end") this.#checkResultsWritten("dq", "dk", "dv");
        return compute.beginPhase(phase);
      }
      case "wait":
        this.#awaitedCollective = this.#memory.findPendingCollective(event.arg(0));
        return;
      case "attend":
        this.#checkRace(event, countsByKernel.attend);
        return compute.attend(event);
      case "attendBackward":
        this.#checkRace(event, countsByKernel.attendBackward);
        return compute.attendBackward(event);
      case "merge":
        this.#checkRace(event, countsByKernel.merge);
        return compute.merge(event);
      case "rowDot":
        this.#checkRace(event, countsByKernel.rowDot);
        return compute.rowDot(event);
      case "fill":
        this.#checkRace(event, countsByKernel.fill);
        return compute.fill(event);
      case "copy":
        this.#checkRace(event, countsByKernel.copy);
        return compute.copy(event);
      case "add":
        this.#checkRace(event, countsByKernel.add);
        return compute.add(event);
      case "compute":
        this.#checkRace(event, {
          firstOperandIndex: 2,
          numWrittenOperands: event.arg(1),
          numOperands: event.count - 2,
        });
        for (let i = 0; i < event.arg(1); i++) this.#memory.write(event.arg(2 + i), []);
        return;
      default:
        this.#streams.post(this.#index, event, compute.phase);
    }
  }

  /** Checks that no pending collective still writes results that are returned to the caller. */
  #checkResultsWritten(...names: readonly (keyof RecordedRank["tensorViews"])[]): void {
    for (const name of names) {
      const conflictingWork = this.#memory.conflictingWork(this.#tensorViews[name], false);
      if (conflictingWork === undefined) continue;
      this.#context.violations.report({
        kind: "race",
        rank: this.rank,
        message: `rank ${this.rank}, ${this.#compute.location}: ${name} is returned while collective #${conflictingWork}, which writes it, is pending; call wait() on the collective first`,
      });
    }
  }

  /** Checks that compute neither writes what a pending collective reads, nor touches what it writes. */
  #checkRace(
    event: TapeReader,
    { firstOperandIndex: first = 0, numWrittenOperands, numOperands: count }: OperandCounts,
  ): void {
    for (let i = 0; i < count; i++) {
      const conflictingWork = this.#memory.conflictingWork(event.arg(first + i), i < numWrittenOperands);
      if (conflictingWork === undefined) continue;
      const operation = event.op === "compute" ? this.#interned.strings[event.arg(0)] : event.op;
      this.#context.violations.report({
        kind: "race",
        rank: this.rank,
        message: `rank ${this.rank}, ${this.#compute.location}: ${operation} accesses memory of pending collective #${conflictingWork}; call wait() on the collective first`,
      });
      return;
    }
  }
}
