import { formatValue, OptionError } from "../errors.ts";
import { isPromise } from "../scope.ts";

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

/** Returns the result of a forward pre-hook: new arguments, or nothing. `where` is the name of the module's class. */
export function checkPreHookResult(where: string, result: unknown): readonly unknown[] | undefined {
  if (result === undefined || result === null) return undefined;
  if (Array.isArray(result)) return result;
  throw new OptionError({
    where: `${where}: forward pre-hook`,
    expected: "an array of the arguments of forward, or undefined",
    received: formatValue(result),
    remedy: isPromise(result) ? "pass a synchronous function" : "return the arguments in an array, such as [x]",
  });
}

/** Returns the result of a forward hook. A promise may only replace that of an asynchronous forward. */
export function checkHookResult(where: string, result: unknown, output: unknown): unknown {
  if (!isPromise(result) || isPromise(output)) return result;
  throw new OptionError({
    where: `${where}: forward hook`,
    expected: "a new result of forward, or undefined",
    received: "a promise, as of an async function",
    remedy: "pass a synchronous function; it may start a read() and handle its promise with then()",
  });
}
