/** Removes a hook. Disposing it also removes the hook, so that `using` limits a hook to a block. */
export interface RemovableHandle extends Disposable {
  /** Removes the hook. Does nothing if it was removed before. */
  remove(): void;
}

/** Hooks in the order of registration. The same function may be registered several times. */
export class HookList<F> {
  #registrations: readonly { readonly hook: F }[] = [];
  #hooks: readonly F[] = [];

  /** Replaced on each change, so that a call runs the hooks that were registered when it began to run them. */
  get hooks(): readonly F[] {
    return this.#hooks;
  }

  get isEmpty(): boolean {
    return this.#hooks.length === 0;
  }

  add(hook: F): RemovableHandle {
    const registration = { hook };
    this.#setRegistrations([...this.#registrations, registration]);
    const remove = (): void => this.#setRegistrations(this.#registrations.filter((each) => each !== registration));
    return { remove, [Symbol.dispose]: remove };
  }

  #setRegistrations(registrations: readonly { readonly hook: F }[]): void {
    this.#registrations = registrations;
    this.#hooks = registrations.map(({ hook }) => hook);
  }
}
