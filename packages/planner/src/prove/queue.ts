/** First in, first out. Most hold one thing or two, and millions of them pass: taking one moves none of the others. */
export class Queue<T> {
  readonly #items: (T | undefined)[] = [];
  #begin = 0;
  #end = 0;

  get length(): number {
    return this.#end - this.#begin;
  }

  get first(): T | undefined {
    return this.#begin < this.#end ? this.#items[this.#begin] : undefined;
  }

  push(item: T): void {
    this.#items[this.#end++] = item;
  }

  shift(): T | undefined {
    if (this.#begin === this.#end) return undefined;
    const item = this.#items[this.#begin];
    this.#items[this.#begin++] = undefined;
    if (this.#begin === this.#end) this.#begin = this.#end = 0;
    return item;
  }

  some(is: (item: T) => boolean): boolean {
    for (let i = this.#begin; i < this.#end; i++) if (is(this.#items[i]!)) return true;
    return false;
  }
}
