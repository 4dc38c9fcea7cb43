import type { TraceEvent } from "@mosaic/core";
import type { CollectivesEngine, SplitResult } from "@mosaic/runtime";
import { type Joining, completions, type Member, native } from "./addon.ts";

/** One rank's engine: a communication thread, a stream, and NCCL's communicators. */
export class NcclEngine implements CollectivesEngine {
  readonly #member: Member;

  private constructor(member: Member) {
    this.#member = member;
  }

  /** Resolves when all ranks are connected with one another. */
  static async join(joining: Joining): Promise<NcclEngine> {
    let member: Member | undefined;
    try {
      await completions.expect(undefined, (completion) => {
        member = native((addon) => addon.connect(joining, completion));
      });
      return new NcclEngine(member!);
    } catch (error) {
      if (member) await new NcclEngine(member).close();
      throw error;
    }
  }

  post(group: number, call: Float64Array, label: string): number {
    return native((addon) => addon.post(this.#member, group, call, label));
  }

  wait(operation: number): void {
    native((addon) => addon.wait(this.#member, operation));
  }

  completed(): number {
    return native((addon) => addon.completed(this.#member));
  }

  async split(group: number, color: number, name: string): Promise<SplitResult> {
    let operation = 0;
    await completions.expect(undefined, (completion) => {
      operation = native((addon) => addon.split(this.#member, group, color, name, completion));
    });
    return native((addon) => addon.part(this.#member, operation));
  }

  traffic(group: number): readonly [bytesSent: number, bytesReceived: number, messagesSent: number] {
    return native((addon) => addon.traffic(this.#member, group));
  }

  startTrace(): void {
    native((addon) => addon.startTrace(this.#member));
  }

  async stopTrace(): Promise<readonly TraceEvent[]> {
    let announced = 0;
    await completions.expect(undefined, (completion) => {
      announced = completion;
      native((addon) => addon.stopTrace(this.#member, completion));
    });
    return native((addon) => addon.takeTrace(announced));
  }

  async close(): Promise<void> {
    await completions.expect(undefined, (completion) => native((addon) => addon.close(this.#member, completion)));
    native((addon) => addon.forget(this.#member));
  }
}
