import type { Tile } from "../../src/attention/tile.ts";
import type { Kernels } from "../../src/kernels/kernels.ts";
import { visibleKeyRange } from "../../src/mask/slice.ts";
import { positions } from "../../src/placement/span.ts";
import type { Tensor } from "../../src/tensor.ts";
import type { Memory } from "./memory.ts";
import { philox } from "./random.ts";

// One score at a time. B batch, H heads, Hkv KV heads, Sq and Sk rows, D head size, Dv that of the values.
//
// Scores are float32, as on any device: of 1e9 the difference to a float32 lse is right only if both were rounded.

/** For each local query of a batch element the local keys it sees; a pair covered by two slices is a fault of the caller. */
function visible({ q, k, mask: shared, modifiers }: Tile, batch: number): number[][] {
  const { sampleMasks, origin } = modifiers ?? {};
  const mask = sampleMasks ? [...shared, ...sampleMasks[(origin?.batch ?? 0) + batch]!] : shared;
  const keys = [...positions(k)];
  return [...positions(q)].map((at) => {
    const seen: number[] = [];
    for (const slice of mask) {
      if (at < slice.q0 || at >= slice.q1) continue;
      const { start, end } = visibleKeyRange(slice, at);
      for (const [j, key] of keys.entries()) if (key >= start && key < end) seen.push(j);
    }
    if (new Set(seen).size !== seen.length) throw new Error(`query ${at} sees a key twice`);
    return seen;
  });
}

/** A query and a key by their rows here: of a sample, of a query head. */
interface Pair {
  readonly at: readonly number[];
  readonly query: number;
  readonly key: number;
}

/** Global positions of a row of queries [b, h, s] and of a row of keys. */
function pairsOf(tile: Tile): (at: readonly number[], key: number) => Pair {
  const [queries, keys] = [[...positions(tile.q)], [...positions(tile.k)]];
  return (at, key) => ({ at, query: queries[at[2]!]!, key: keys[key]! });
}

/** What modifies the scores of a call. */
function modifierOf({ modifiers = {} }: Tile, memory: Memory) {
  const { softcap, slopes, dropout, origin = { batch: 0, head: 0 } } = modifiers;
  const perHead = slopes ? memory.load(slopes) : undefined;
  const words = (x: number): [number, number] => [x >>> 0, Math.floor(x / 2 ** 32)];
  const callKey = dropout && philox([...words(dropout.stream), 0, 0], words(dropout.seed)).slice(0, 2);
  return {
    score(scaled: number, { at, query, key }: Pair): number {
      const capped = softcap === undefined ? scaled : softcap * Math.tanh(scaled / softcap);
      return capped - (perHead ? perHead[origin.head + at[1]!]! * Math.abs(query - key) : 0);
    },
    derivative: (scaled: number) => (softcap === undefined ? 1 : 1 - Math.tanh(scaled / softcap) ** 2),
    /** What a weight counts. */
    kept({ at, query, key }: Pair): number {
      if (!dropout) return 1;
      const sample = dropout.batchOffset + origin.batch + at[0]!;
      const word = philox([Math.floor(key / 4), query, sample, origin.head + at[1]!], callKey!)[key % 4]!;
      return word >>> 8 < dropout.probability * 2 ** 24 ? 0 : 1 / (1 - dropout.probability);
    },
  };
}

export function attend(memory: Memory): Pick<Kernels, "attend" | "attendBackward" | "merge"> {
  /** Values of a 4-D tensor by (b, h, s), each a row of D. */
  const listRows = (x: Tensor) => {
    const values = memory.load(x);
    const [, h, s, d] = x.shape as [number, number, number, number];
    return {
      values,
      row: (at: readonly number[]) => {
        const first = ((at[0]! * h + at[1]!) * s + at[2]!) * d;
        return { first, row: values.slice(first, first + d) };
      },
    };
  };
  const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);

  /** Calls `use` with every query row: its KV head, its number in [B,H,S] and what it sees. */
  function eachQuery(
    q: Tensor,
    k: Tensor,
    tile: Tile,
    use: (at: number[], key: number[], seen: number[]) => void,
  ): void {
    const [batch, heads, rows] = q.shape as [number, number, number, number];
    for (let b = 0; b < batch; b++) {
      const seen = visible(tile, b);
      for (let h = 0; h < heads; h++) {
        const keyHead = Math.floor((h * k.shape[1]!) / heads);
        for (let s = 0; s < rows; s++) use([b, h, s], [b, keyHead], seen[s]!);
      }
    }
  }

  return {
    attend(state, q, { k, v }, tile) {
      const [queries, keys, values, out] = [listRows(q), listRows(k), listRows(v), listRows(state.out)];
      const [lse, modifier, pairOf] = [memory.load(state.lse), modifierOf(tile, memory), pairsOf(tile)];
      let n = -1;
      eachQuery(q, k, tile, (at, head, seen) => {
        n++;
        if (seen.length === 0) return;
        const query = queries.row(at).row;
        const scores = seen.map((j) => {
          const scaled = memory.float32(tile.scale * dot(query, keys.row([...head, j]).row));
          return modifier.score(scaled, pairOf(at, j));
        });
        const most = Math.max(lse[n]!, ...scores);
        if (most === -Infinity) return;
        const sum = scores.reduce((total, score) => total + Math.exp(score - most), Math.exp(lse[n]! - most));
        const { first, row } = out.row(at);
        const before = Math.exp(lse[n]! - most) / sum;
        for (const d of row.keys()) out.values[first + d] = before === 0 ? 0 : row[d]! * before;
        for (const [i, j] of seen.entries()) {
          const weight = (Math.exp(scores[i]! - most) / sum) * modifier.kept(pairOf(at, j));
          for (const [d, value] of values.row([...head, j]).row.entries()) out.values[first + d]! += weight * value;
        }
        lse[n] = most + Math.log(sum);
      });
      memory.store(state.out, out.values);
      memory.store(state.lse, lse);
    },

    attendBackward(grads, q, saved, { k, v }, tile) {
      const [queries, keys, values, dOuts] = [listRows(q), listRows(k), listRows(v), listRows(saved.dOut)];
      const [dq, dk, dv] = [listRows(grads.dq), listRows(grads.dk), listRows(grads.dv)];
      const [lse, delta] = [memory.load(saved.lse), memory.load(saved.delta)];
      const [modifier, pairOf] = [modifierOf(tile, memory), pairsOf(tile)];
      let n = -1;
      eachQuery(q, k, tile, (at, head, seen) => {
        n++;
        const { row: query, first } = queries.row(at);
        const dOut = dOuts.row(at).row;
        for (const j of seen) {
          const { row: key, first: firstKey } = keys.row([...head, j]);
          const { row: value, first: firstValue } = values.row([...head, j]);
          const scaled = memory.float32(tile.scale * dot(query, key));
          const score = modifier.score(scaled, pairOf(at, j));
          const kept = modifier.kept(pairOf(at, j));
          const weight = lse[n] === -Infinity ? 0 : Math.min(1, Math.exp(score - lse[n]!));
          const dScore = weight * (kept * dot(dOut, value) - delta[n]!) * modifier.derivative(scaled) * tile.scale;
          for (const d of query.keys()) {
            dq.values[first + d]! += dScore * key[d]!;
            dk.values[firstKey + d]! += dScore * query[d]!;
          }
          for (const d of value.keys()) dv.values[firstValue + d]! += weight * kept * dOut[d]!;
        }
      });
      memory.store(grads.dq, dq.values);
      memory.store(grads.dk, dk.values);
      memory.store(grads.dv, dv.values);
    },

    merge(into, from) {
      const d = into.out.shape.at(-1)!;
      const [a, b] = [memory.load(into.lse), memory.load(from.lse)];
      const [x, y] = [memory.load(into.out), memory.load(from.out)];
      const sums = a.map((lse, i) => {
        const most = Math.max(lse, b[i]!);
        const [own, other] = [lse, b[i]!].map((each) => (each === most ? 1 : Math.exp(each - most)));
        return { most, own: own!, other: other! };
      });
      const merged = sums.map(({ most, own, other }) => (most === -Infinity ? most : most + Math.log(own + other)));
      memory.store(
        into.out,
        x.map((value, i) => {
          const row = Math.floor(i / d);
          const { own, other } = sums[row]!;
          // What lies in `out` of a row that has seen nothing is not looked at.
          if (b[row] === -Infinity) return value;
          return a[row] === -Infinity ? y[i]! : (own * value + other * y[i]!) / (own + other);
        }),
      );
      memory.store(into.lse, merged);
    },
  };
}
