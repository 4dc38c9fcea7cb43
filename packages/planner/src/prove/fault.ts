/** What is wrong with a record, and where. */
export interface Fault {
  /**
   * - duplicate, missing: pairs of queries and keys that count more than once, or never
   * - data: a kernel or a result has other rows than it should
   * - race: compute touches what a collective that was not waited for reads or writes, or one writes where it also reads
   * - message: a send without a receive, or with one of another size; collectives that do not fit
   * - cycle: ranks that wait for each other
   */
  readonly kind: "duplicate" | "missing" | "data" | "race" | "message" | "cycle";
  readonly rank: number;
  /** A sentence that names the place: rank, phase, tile or message. */
  readonly message: string;
}

/** One mistake shows in many places: the first ones are kept, the rest counted. */
export class Faults {
  readonly list: Fault[] = [];
  readonly #limit: number;
  #total = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  get total(): number {
    return this.#total;
  }

  report(fault: Fault): void {
    this.#total++;
    if (this.list.length < this.#limit) this.list.push(fault);
  }
}
