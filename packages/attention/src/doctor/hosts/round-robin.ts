/**
 * Rounds of disjoint pairs in which every host is paired with every other once: the circle method. An odd number has an empty place, so that
 * one of each round rests. Each round has, by host, the peer; -1 for who rests.
 */
export function listRoundRobinPairs(count: number): readonly (readonly number[])[] {
  const evenCount = count + (count % 2);
  return Array.from({ length: Math.max(0, evenCount - 1) }, (_, round) => {
    const rotation = [0, ...Array.from({ length: evenCount - 1 }, (__, i) => 1 + ((i + round) % (evenCount - 1)))];
    const peers = Array.from({ length: count }, () => -1);
    for (let i = 0; i < evenCount / 2; i++) {
      const [a, b] = [rotation[i]!, rotation[evenCount - 1 - i]!];
      if (a < count && b < count) [peers[a], peers[b]] = [b, a];
    }
    return peers;
  });
}
