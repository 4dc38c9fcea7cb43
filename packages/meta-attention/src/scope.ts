/** Things that end together, the last first. */
export class Scope implements Disposable {
  readonly #held: Disposable[] = [];

  hold<T extends Disposable>(thing: T): T {
    this.#held.push(thing);
    return thing;
  }

  [Symbol.dispose](): void {
    for (const thing of this.#held.splice(0).reverse()) thing[Symbol.dispose]();
  }
}
