import type { Tile } from "../../src/attention/tile.ts";
import type { Kernels } from "../../src/kernels/kernels.ts";
import { visibleKeyRange } from "../../src/mask/slice.ts";
import { positions } from "../../src/placement/span.ts";
import type { Tensor } from "../../src/tensor.ts";
import type { Memory } from "./memory.ts";
import { philox } from "./random.ts";

// Reference attention that computes one score at a time. B batch, H heads, Hkv KV heads, Sq and Sk rows, D head size,
// Dv head size of the values.
//
// Scores are rounded to float32, as on any device: for a score of 1e9, the difference to a float32 lse is correct only
// if both are rounded.

/**
 * Returns, for each local query of a batch element, the visible local keys. Throws if two slices cover the same pair.
 */
function listVisibleKeys({ q, k, mask: sharedMask, modifiers }: Tile, batch: number): number[][] {
  const { sampleMasks, origin } = modifiers ?? {};
  const mask = sampleMasks ? [...sharedMask, ...sampleMasks[(origin?.batch ?? 0) + batch]!] : sharedMask;
  const keys = [...positions(k)];
  return [...positions(q)].map((query) => {
    const visibleKeys: number[] = [];
    for (const slice of mask) {
      if (query < slice.q0 || query >= slice.q1) continue;
      const { start, end } = visibleKeyRange(slice, query);
      for (const [j, key] of keys.entries()) if (key >= start && key < end) visibleKeys.push(j);
    }
    if (new Set(visibleKeys).size !== visibleKeys.length) throw new Error(`query ${query} sees a key twice`);
    return visibleKeys;
  });
}

/** A pair of query and key: the local index [b, h, s] of the query, and the global positions of both. */
interface QueryKeyPair {
  readonly queryIndex: readonly number[];
  readonly query: number;
  readonly key: number;
}

/** Returns a function that looks up the global positions of a query index [b, h, s] and a row of keys. */
function createPairLookup(tile: Tile): (queryIndex: readonly number[], key: number) => QueryKeyPair {
  const [queries, keys] = [[...positions(tile.q)], [...positions(tile.k)]];
  return (queryIndex, key) => ({ queryIndex, query: queries[queryIndex[2]!]!, key: keys[key]! });
}

/** Creates the functions that apply a call's modifiers to scores and weights. */
function createScoreModifier({ modifiers = {} }: Tile, memory: Memory) {
  const { softcap, slopes, dropout, origin = { batch: 0, head: 0 } } = modifiers;
  const slopesByHead = slopes ? memory.load(slopes) : undefined;
  const splitWords = (x: number): [number, number] => [x >>> 0, Math.floor(x / 2 ** 32)];
  const callKey = dropout && philox([...splitWords(dropout.stream), 0, 0], splitWords(dropout.seed)).slice(0, 2);
  return {
    score(scaledScore: number, { queryIndex: at, query, key }: QueryKeyPair): number {
      const cappedScore = softcap === undefined ? scaledScore : softcap * Math.tanh(scaledScore / softcap);
      return cappedScore - (slopesByHead ? slopesByHead[origin.head + at[1]!]! * Math.abs(query - key) : 0);
    },
    derivative: (scaled: number) => (softcap === undefined ? 1 : 1 - Math.tanh(scaled / softcap) ** 2),
    /** Returns the factor of a weight: 0 if it is dropped. */
    dropoutFactor({ queryIndex: at, query, key }: QueryKeyPair): number {
      if (!dropout) return 1;
      const sample = dropout.batchOffset + origin.batch + at[0]!;
      const word = philox([Math.floor(key / 4), query, sample, origin.head + at[1]!], callKey!)[key % 4]!;
      return word >>> 8 < dropout.probability * 2 ** 24 ? 0 : 1 / (1 - dropout.probability);
    },
  };
}

export function attend(memory: Memory): Pick<Kernels, "attend" | "attendBackward" | "merge"> {
  /** Returns access to the rows [D] of a 4-D tensor by (b, h, s). */
  const listRows = (x: Tensor) => {
    const values = memory.load(x);
    const [, h, s, d] = x.shape as [number, number, number, number];
    return {
      values,
      row: (queryIndex: readonly number[]) => {
        const firstElement = ((queryIndex[0]! * h + queryIndex[1]!) * s + queryIndex[2]!) * d;
        return { first: firstElement, row: values.slice(firstElement, firstElement + d) };
      },
    };
  };
  const dot = (a: readonly number[], b: readonly number[]) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);

  /** Calls `visit` with every query row: its index [b, h, s], its [b, KV head], and its visible keys. */
  function forEachQuery(
    q: Tensor,
    k: Tensor,
    tile: Tile,
    visit: (queryIndex: number[], key: number[], visibleKeys: number[]) => void,
  ): void {
    const [batch, heads, rows] = q.shape as [number, number, number, number];
    for (let b = 0; b < batch; b++) {
      const visibleKeys = listVisibleKeys(tile, b);
      for (let h = 0; h < heads; h++) {
        const kvHead = Math.floor((h * k.shape[1]!) / heads);
        for (let s = 0; s < rows; s++) visit([b, h, s], [b, kvHead], visibleKeys[s]!);
      }
    }
  }

  return {
    attend(state, q, { k, v }, tile) {
      const [queries, keys, values, out] = [listRows(q), listRows(k), listRows(v), listRows(state.out)];
      const [lse, modifier, getPair] = [
        memory.load(state.lse),
        createScoreModifier(tile, memory),
        createPairLookup(tile),
      ];
      let n = -1;
      forEachQuery(q, k, tile, (queryIndex, head, visibleKeys) => {
        n++;
        if (visibleKeys.length === 0) return;
        const query = queries.row(queryIndex).row;
        const scores = visibleKeys.map((j) => {
          const scaled = memory.float32(tile.scale * dot(query, keys.row([...head, j]).row));
          return modifier.score(scaled, getPair(queryIndex, j));
        });
        const maxScore = Math.max(lse[n]!, ...scores);
        if (maxScore === -Infinity) return;
        const sum = scores.reduce((total, score) => total + Math.exp(score - maxScore), Math.exp(lse[n]! - maxScore));
        const { first: firstElement, row } = out.row(queryIndex);
        const previousWeight = Math.exp(lse[n]! - maxScore) / sum;
        for (const d of row.keys()) out.values[firstElement + d] = previousWeight === 0 ? 0 : row[d]! * previousWeight;
        for (const [i, j] of visibleKeys.entries()) {
          const weight = (Math.exp(scores[i]! - maxScore) / sum) * modifier.dropoutFactor(getPair(queryIndex, j));
          for (const [d, value] of values.row([...head, j]).row.entries())
            out.values[firstElement + d]! += weight * value;
        }
        lse[n] = maxScore + Math.log(sum);
      });
      memory.store(state.out, out.values);
      memory.store(state.lse, lse);
    },

    attendBackward(grads, q, saved, { k, v }, tile) {
      const [queries, keys, values, dOuts] = [listRows(q), listRows(k), listRows(v), listRows(saved.dOut)];
      const [dq, dk, dv] = [listRows(grads.dq), listRows(grads.dk), listRows(grads.dv)];
      const [lse, delta] = [memory.load(saved.lse), memory.load(saved.delta)];
      const [modifier, pairOf] = [createScoreModifier(tile, memory), createPairLookup(tile)];
      let n = -1;
      forEachQuery(q, k, tile, (queryIndex, head, visibleKeys) => {
        n++;
        const { row: query, first: firstElement } = queries.row(queryIndex);
        const dOut = dOuts.row(queryIndex).row;
        for (const j of visibleKeys) {
          const { row: key, first: keyOffset } = keys.row([...head, j]);
          const { row: value, first: valueOffset } = values.row([...head, j]);
          const scaled = memory.float32(tile.scale * dot(query, key));
          const score = modifier.score(scaled, pairOf(queryIndex, j));
          const dropoutFactor = modifier.dropoutFactor(pairOf(queryIndex, j));
          const weight = lse[n] === -Infinity ? 0 : Math.min(1, Math.exp(score - lse[n]!));
          const dScore =
            weight * (dropoutFactor * dot(dOut, value) - delta[n]!) * modifier.derivative(scaled) * tile.scale;
          for (const d of query.keys()) {
            dq.values[firstElement + d]! += dScore * key[d]!;
            dk.values[keyOffset + d]! += dScore * query[d]!;
          }
          for (const d of value.keys()) dv.values[valueOffset + d]! += weight * dropoutFactor * dOut[d]!;
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
      const mergedLse = sums.map(({ most, own, other }) => (most === -Infinity ? most : most + Math.log(own + other)));
      memory.store(
        into.out,
        x.map((value, i) => {
          const row = Math.floor(i / d);
          const { own, other } = sums[row]!;
          // `out` of a row without visible keys is ignored.
          if (b[row] === -Infinity) return value;
          return a[row] === -Infinity ? y[i]! : (own * value + other * y[i]!) / (own + other);
        }),
      );
      memory.store(into.lse, mergedLse);
    },
  };
}
