/**
 * Returns rounds of disjoint pairs in which every host is paired with every other host once, by the circle method. With
 * an odd number of hosts, one host is idle in each round. A round lists the peer of each host; −1 for the idle host.
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
