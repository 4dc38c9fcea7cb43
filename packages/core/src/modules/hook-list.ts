/** Removes a hook. Disposing it also removes the hook, so that `using` limits a hook to a block. */
export interface RemovableHandle extends Disposable {
  /** Removes the hook. Does nothing if it was removed before. */
  remove(): void;
}

/** Hooks in the order of registration. The same function may be registered several times. */
export class HookList<F> {
  /** Copied on each change, so that a call runs the hooks that were registered when it began to run them. */
  #registrations: readonly { readonly hook: F }[] = [];

  get hooks(): readonly F[] {
    return this.#registrations.map(({ hook }) => hook);
  }

  get isEmpty(): boolean {
    return this.#registrations.length === 0;
  }

  add(hook: F): RemovableHandle {
    const registration = { hook };
    this.#registrations = [...this.#registrations, registration];
    const remove = (): void => {
      this.#registrations = this.#registrations.filter((each) => each !== registration);
    };
    return { remove, [Symbol.dispose]: remove };
  }
}
