/** The stretches [from, to) of 0 … count − 1 in which a rule holds. */
export function runsWhere(count: number, holds: (at: number) => boolean): (readonly [from: number, to: number])[] {
  const runs: (readonly [number, number])[] = [];
  for (let from = 0; from < count; ) {
    let to = from;
    while (to < count && holds(to)) to++;
    if (to > from) runs.push([from, to]);
    from = to + 1;
  }
  return runs;
}
