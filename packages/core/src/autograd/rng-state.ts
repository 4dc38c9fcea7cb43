/** Numbers of the random streams that a body took, in order. */
interface RngState {
  readonly numbers: number[];
  /** Those of the body around it, when it ran the first time. */
  readonly outer: RngState | undefined;
  /** Undefined while the body runs the first time; later, the place of the number that comes next. */
  next: number | undefined;
}

let activeState: RngState | undefined;

/** Runs bodies (synchronous): the first draws fresh numbers for its random tensors, each later one the same again. */
export function preserveRngState(): <T>(body: () => T) => T {
  const own: RngState = { numbers: [], outer: activeState, next: undefined };
  return (body) => {
    const before = activeState;
    activeState = own;
    try {
      return body();
    } finally {
      activeState = before;
      own.next = 0;
    }
  };
}

/** A number for a random tensor: a fresh one, or, in a body that runs again, the one that it had the first time. */
export function nextStreamNumber(fresh: () => number): number {
  return takeStreamNumber(activeState, fresh);
}

function takeStreamNumber(draws: RngState | undefined, fresh: () => number): number {
  if (!draws) return fresh();
  if (draws.next !== undefined) return draws.numbers[draws.next++] ?? fresh();
  const number = takeStreamNumber(draws.outer, fresh);
  draws.numbers.push(number);
  return number;
}
