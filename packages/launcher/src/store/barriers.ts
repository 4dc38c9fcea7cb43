import { StoreError } from "./protocol.ts";
import type { Cancel } from "./table.ts";

interface Arrival {
  readonly member: string | undefined;
  readonly release: () => void;
}

interface Gathering {
  readonly count: number;
  readonly arrivals: Set<Arrival>;
}

/** Barriers by key. Each is empty again once released, so a name may be used for every step of a loop. */
export class Barriers {
  readonly #gatherings = new Map<string, Gathering>();

  /** Arrives; `release` is called when `count` have. The cancel withdraws the arrival. */
  arrive(key: string, count: number, arrival: Arrival): Cancel {
    if (!Number.isInteger(count) || count < 1)
      throw new StoreError("REQUEST", `store: barrier "${key}": count must be a positive integer, received ${count}`);
    const gathering = this.#gatherings.get(key) ?? { count, arrivals: new Set() };
    if (gathering.count !== count)
      throw new StoreError(
        "REQUEST",
        `store: barrier "${key}" gathers ${gathering.count} callers, and this one expects ${count}`,
      );
    this.#gatherings.set(key, gathering);
    gathering.arrivals.add(arrival);
    if (gathering.arrivals.size === count) {
      this.#gatherings.delete(key);
      for (const { release } of gathering.arrivals) release();
    }
    return () => {
      gathering.arrivals.delete(arrival);
      if (gathering.arrivals.size === 0 && this.#gatherings.get(key) === gathering) this.#gatherings.delete(key);
    };
  }

  /** Who waits at `key`, for the message of a timeout: `2 of 4 arrived (0, 3)`. */
  describe(key: string): string {
    const gathering = this.#gatherings.get(key);
    if (gathering === undefined) return "nobody waits";
    const members = [...gathering.arrivals].flatMap(({ member }) => (member === undefined ? [] : [member]));
    const names = members.length > 0 ? ` (${members.join(", ")})` : "";
    return `${gathering.arrivals.size} of ${gathering.count} arrived${names}`;
  }
}
