import type { CollectivesEngine, SplitResult } from "@mosaic/runtime";
import type { TraceEvent } from "@mosaic/core";
import { type Member, native, nativeLater } from "./native.ts";

/** One rank's engine: the communication thread and shared memory that the addon knows as a member. */
export class LocalEngine implements CollectivesEngine {
  readonly #member: Member;

  constructor(member: Member) {
    this.#member = member;
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

  split(group: number, color: number, name: string): Promise<SplitResult> {
    return nativeLater((addon) => addon.split(this.#member, group, color, name));
  }

  traffic(group: number): readonly [bytesSent: number, bytesReceived: number, messagesSent: number] {
    const [bytesSent = 0, bytesReceived = 0, messagesSent = 0] = native((addon) => addon.traffic(this.#member, group));
    return [bytesSent, bytesReceived, messagesSent];
  }

  startTrace(): void {
    native((addon) => addon.startTrace(this.#member));
  }

  stopTrace(): readonly TraceEvent[] {
    return native((addon) => addon.stopTrace(this.#member));
  }

  close(): Promise<void> {
    return nativeLater((addon) => addon.close(this.#member));
  }
}
