/** Numbers of random tensors that a body drew. */
interface Draws {
  readonly numbers: number[];
  /** Those of the body around it, when it ran the first time. */
  readonly outer: Draws | undefined;
  /** Undefined while the body runs the first time; later, the place of the number that comes next. */
  next: number | undefined;
}

let current: Draws | undefined;

/** Runs bodies (synchronous): the first draws fresh numbers for its random tensors, each later one the same again. */
export function repeatingDraws(): <T>(body: () => T) => T {
  const own: Draws = { numbers: [], outer: current, next: undefined };
  return (body) => {
    const before = current;
    current = own;
    try {
      return body();
    } finally {
      current = before;
      own.next = 0;
    }
  };
}

/** A number for a random tensor: a fresh one, or, in a body that runs again, the one that it had the first time. */
export function drawn(fresh: () => number): number {
  return drawnBy(current, fresh);
}

function drawnBy(draws: Draws | undefined, fresh: () => number): number {
  if (!draws) return fresh();
  if (draws.next !== undefined) return draws.numbers[draws.next++] ?? fresh();
  const number = drawnBy(draws.outer, fresh);
  draws.numbers.push(number);
  return number;
}
