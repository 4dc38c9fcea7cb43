import { flex, flexTraffic, type FlexOptions } from "@mosaic/backend-flex";
import { masks, positions, zigzag } from "@mosaic/core";
import { isVisibleUnchecked } from "@mosaic/core/context-parallel";
import { expect, test } from "vitest";
import {
  type AttentionRecord,
  count,
  countHostTraffic,
  prove,
  record,
  recordRepresentatives,
  type RecordOptions,
} from "../src/index.ts";
import { arrangements, ragged } from "./shapes.ts";

const sizes = { ...ragged, dtype: "bfloat16" } as const;
/** In order, and not; unequal ones; one rank on each, and one host. */
const hostsOf: readonly (readonly number[])[] = [
  [0, 0, 1, 1, 1],
  [0, 1, 0, 1, 2, 0],
  [7, 3, 5],
  [0, 0, 0],
];
const choices: readonly FlexOptions[] = [{}, { stages: 2 }, { stages: 0 }, { queriesTravel: true }];

/** Rows that cross to another host, each once for each host some query of which sees it. */
function rowsBetweenHosts({ queries, keys, slices }: AttentionRecord, hosts: readonly number[]): number {
  let rows = 0;
  for (const [sp, own] of hosts.entries()) {
    for (const start of positions(keys.spans({ sp }))) {
      const row = [{ start, length: 1, step: 1 }];
      const seeing = hosts.filter((_, rank) => isVisibleUnchecked(queries.spans({ sp: rank }), row, slices));
      rows += [...new Set(seeing)].filter((host) => host !== own).length;
    }
  }
  return rows;
}

/** Bytes that cross in either pass: each host in turn is the one that is counted. */
function bytesBetweenHosts(call: RecordOptions, hosts: readonly number[]): Record<"forward" | "backward", number> {
  const arranged = [...new Set(hosts)].map((one) => hosts.map((host) => (host === one ? 0 : host + 1)));
  const total = { forward: 0, backward: 0 };
  for (const { forward, backward } of countHostTraffic(call, arranged)) {
    total.forward += forward;
    total.backward += backward;
  }
  return total;
}

test.each(hostsOf)("flex over the hosts %j is right and sends what its closed form states", (...hosts) => {
  const mesh = { sp: hosts.length };
  for (const [i, arrangement] of arrangements.entries()) {
    const options = { ...choices[i % choices.length], hierarchical: true };
    const call = { mesh, ...arrangement, ...sizes, hosts };
    const run = record({ backend: flex(options), ...call });
    expect(prove(run).violations).toEqual([]);
    const direct = count(record({ backend: flex({ ...options, hierarchical: false }), ...call })).ranks;
    for (const [rank, { forward, backward }] of count(run).ranks.entries()) {
      const { at } = run.ranks[rank]!;
      const closed = flexTraffic({
        ...options,
        ...{ mesh, hosts, ...sizes },
        call: { at, mask: run.slices, queries: run.queries, keys: run.keys },
      });
      for (const [found, expected, without] of [
        [forward, closed.forward, direct[rank]!.forward] as const,
        [backward, closed.backward, direct[rank]!.backward] as const,
      ]) {
        expect(found.sent.bytes).toBe(expected.bytesSent);
        expect(found.received.bytes).toBe(expected.bytesReceived);
        expect(found.sent.messages).toBe(expected.messagesSent);
        // Whichever way, a rank receives the rows that it requires, and no other.
        expect(found.received.bytes).toBe(without.received.bytes);
      }
    }
  }
});

test.each(hostsOf)("between the hosts %j a row costs once for each host that requires it", (...hosts) => {
  const perRow = 2 * sizes.batch * sizes.numKvHeads * sizes.headDim;
  let fewer = 0;
  for (const [i, arrangement] of arrangements.entries()) {
    const call = { mesh: { sp: hosts.length }, ...arrangement, ...sizes };
    const { stages } = choices[i % 3]!;
    const found = bytesBetweenHosts({ ...call, backend: flex({ stages, hierarchical: true }) }, hosts);
    const direct = bytesBetweenHosts({ ...call, backend: flex({ stages }) }, hosts);
    const rows = rowsBetweenHosts(record({ ...call, backend: flex() }), hosts);
    expect(found.forward).toBe(rows * perRow * 2);
    // Gradients return each by itself, in float32.
    expect(found.backward).toBe(found.forward + 2 * direct.forward);
    expect(direct.backward).toBe(3 * direct.forward);
    if (found.forward < direct.forward) fewer++;
  }
  const areShared = new Set(hosts).size > 1 && hosts.length > new Set(hosts).size;
  expect(fewer > 5).toBe(areShared);
});

test("both hops of a stage are under way while the step before it computes", () => {
  const run = record({
    backend: flex({ stages: 2, hierarchical: true }),
    ...{ mesh: { sp: 4 }, hosts: [0, 0, 1, 1], tokens: 64, numHeads: 2, headDim: 4 },
  });
  const steps: string[] = [];
  const event = run.ranks[1]!.tape.read();
  while (event.next()) {
    if (event.op === "mark") steps.push(`${run.interned.strings[event.arg(0)]}:`);
    else if (event.op === "groupCast") steps.push("cast");
    else if (event.op === "groupReduce") steps.push("reduce");
    else if (event.op === "wait") steps.push("wait");
    else if (event.op === "attend" || event.op === "attendBackward") steps.push("compute");
  }
  expect(steps.join(" ")).toMatchInlineSnapshot(
    `"forward: cast cast compute wait wait cast cast compute wait wait compute backward: cast cast compute wait wait cast cast compute reduce wait wait compute wait reduce wait end:"`,
  );
});

test("ranks of a class are on hosts of their own, in the same places", () => {
  const call = { backend: flex({ stages: 1, hierarchical: true }), tokens: 64, numHeads: 1, headDim: 4 };
  const run = recordRepresentatives({ ...call, mesh: { sp: 8 }, hosts: [0, 0, 1, 1, 2, 2, 3, 3] });
  expect(run.ranks.map(({ tape }) => tape.rank)).toEqual([0, 1]);
  expect(prove(run).violations).toEqual([]);
  // Hosts of unequal size: no rank does what another does.
  const unequal = recordRepresentatives({ ...call, mesh: { sp: 8 }, hosts: [0, 0, 0, 1, 1, 2, 2, 2] });
  expect(unequal.ranks).toHaveLength(8);
});

test("hosts of another number of ranks are rejected", () => {
  const call = { backend: flex(), mesh: { sp: 3 }, tokens: 9, numHeads: 1, headDim: 4, placement: zigzag() };
  expect(() => record({ ...call, mask: masks.causal(), hosts: [0, 1] })).toThrow(
    /record: hosts: expected an array of 3 hosts, one per rank/,
  );
  const { queries, keys, slices } = record(call);
  const place = { at: { sp: 0 }, mask: slices, queries, keys };
  const rest = { batch: 1, numHeads: 1, numKvHeads: 1, headDim: 4, dtype: "float32" } as const;
  expect(() => flexTraffic({ mesh: { sp: 3 }, call: place, ...rest, hosts: [0] })).toThrow(
    /flexTraffic: hosts: expected an array of 3 host indices, one per rank/,
  );
});
