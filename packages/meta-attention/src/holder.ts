import { keep, Tensor } from "@mosaic/core";

/** Things that end together, the last first, and not with the `scope` that they are made in: what a backward needs, for one. */
export class Holder implements Disposable {
  readonly #held: Disposable[] = [];

  hold<T extends Disposable>(thing: T): T {
    if (thing instanceof Tensor) keep(thing);
    this.#held.push(thing);
    return thing;
  }

  [Symbol.dispose](): void {
    for (const thing of this.#held.splice(0).reverse()) thing[Symbol.dispose]();
  }
}
