/** Tensors made while `allOrNothing` runs; undefined outside of it. */
let made: Disposable[] | undefined;

/** Says that a tensor was made. */
export function noteMade(tensor: Disposable): void {
  made?.push(tensor);
}

/**
 * Runs `body` (synchronous); if it throws, disposes every tensor that it made, so that an allocation that failed half way
 * leaves as much memory as there was, to try again with less.
 */
export function allOrNothing<T>(body: () => T): T {
  const outer = made;
  const own: Disposable[] = [];
  made = own;
  try {
    const result = body();
    if (outer) for (const tensor of own) outer.push(tensor);
    return result;
  } catch (error) {
    for (const tensor of own) tensor[Symbol.dispose]();
    throw error;
  } finally {
    made = outer;
  }
}

/** Runs `body` (synchronous), whose tensors outlive a failure of what surrounds it: leaves keep their gradients. */
export function lasting<T>(body: () => T): T {
  const outer = made;
  made = undefined;
  try {
    return body();
  } finally {
    made = outer;
  }
}
