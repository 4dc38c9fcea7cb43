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
import { arrangements, raggedSizes } from "./shapes.ts";

const sizes = { ...raggedSizes, dtype: "bfloat16" } as const;
/** Hosts in order and not in order, of unequal sizes, with one rank each, and a single host. */
const hostAssignments: readonly (readonly number[])[] = [
  [0, 0, 1, 1, 1],
  [0, 1, 0, 1, 2, 0],
  [7, 3, 5],
  [0, 0, 0],
];
const flexOptions: readonly FlexOptions[] = [{}, { stages: 2 }, { stages: 0 }, { queriesTravel: true }];

/** Returns the number of rows sent to other hosts, each once for each host with a query that attends to it. */
function rowsBetweenHosts({ queries, keys, slices }: AttentionRecord, hosts: readonly number[]): number {
  let rows = 0;
  for (const [sp, ownHost] of hosts.entries()) {
    for (const start of positions(keys.spans({ sp }))) {
      const row = [{ start, length: 1, step: 1 }];
      const requiringHosts = hosts.filter((_, rank) => isVisibleUnchecked(queries.spans({ sp: rank }), row, slices));
      rows += [...new Set(requiringHosts)].filter((host) => host !== ownHost).length;
    }
  }
  return rows;
}

/** Returns the bytes sent between hosts in each pass. Each host in turn is the one that is counted. */
function bytesBetweenHosts(call: RecordOptions, hosts: readonly number[]): Record<"forward" | "backward", number> {
  const relativeAssignments = [...new Set(hosts)].map((originHost) =>
    hosts.map((host) => (host === originHost ? 0 : host + 1)),
  );
  const total = { forward: 0, backward: 0 };
  for (const { forward, backward } of countHostTraffic(call, relativeAssignments)) {
    total.forward += forward;
    total.backward += backward;
  }
  return total;
}

test.each(hostAssignments)(
  "flex on the hosts %j is proved correct and its traffic equals the closed form",
  (...hosts) => {
    const mesh = { sp: hosts.length };
    for (const [i, arrangement] of arrangements.entries()) {
      const options = { ...flexOptions[i % flexOptions.length], hierarchical: true };
      const call = { mesh, ...arrangement, ...sizes, hosts };
      const attentionRecord = record({ backend: flex(options), ...call });
      expect(prove(attentionRecord).violations).toEqual([]);
      const directTraffic = count(record({ backend: flex({ ...options, hierarchical: false }), ...call })).ranks;
      for (const [rank, { forward, backward }] of count(attentionRecord).ranks.entries()) {
        const { at } = attentionRecord.ranks[rank]!;
        const closedForm = flexTraffic({
          ...options,
          ...{ mesh, hosts, ...sizes },
          call: { at, mask: attentionRecord.slices, queries: attentionRecord.queries, keys: attentionRecord.keys },
        });
        for (const [counted, expected, unforwarded] of [
          [forward, closedForm.forward, directTraffic[rank]!.forward] as const,
          [backward, closedForm.backward, directTraffic[rank]!.backward] as const,
        ]) {
          expect(counted.sent.bytes).toBe(expected.bytesSent);
          expect(counted.received.bytes).toBe(expected.bytesReceived);
          expect(counted.sent.messages).toBe(expected.messagesSent);
          // In both forms, a rank receives exactly the rows that it requires.
          expect(counted.received.bytes).toBe(unforwarded.received.bytes);
        }
      }
    }
  },
);

test.each(hostAssignments)("between the hosts %j each row is sent once to each host that requires it", (...hosts) => {
  const elementsPerRow = 2 * sizes.batch * sizes.numKvHeads * sizes.headDim;
  let numReduced = 0;
  for (const [i, arrangement] of arrangements.entries()) {
    const call = { mesh: { sp: hosts.length }, ...arrangement, ...sizes };
    const { stages } = flexOptions[i % 3]!;
    const hierarchicalBytes = bytesBetweenHosts({ ...call, backend: flex({ stages, hierarchical: true }) }, hosts);
    const directBytes = bytesBetweenHosts({ ...call, backend: flex({ stages }) }, hosts);
    const rows = rowsBetweenHosts(record({ ...call, backend: flex() }), hosts);
    expect(hierarchicalBytes.forward).toBe(rows * elementsPerRow * 2);
    // Each rank returns its gradients separately, in float32.
    expect(hierarchicalBytes.backward).toBe(hierarchicalBytes.forward + 2 * directBytes.forward);
    expect(directBytes.backward).toBe(3 * directBytes.forward);
    if (hierarchicalBytes.forward < directBytes.forward) numReduced++;
  }
  const doRanksShareHosts = new Set(hosts).size > 1 && hosts.length > new Set(hosts).size;
  expect(numReduced > 5).toBe(doRanksShareHosts);
});

test("both hops of a stage are in progress while the previous step computes", () => {
  const attentionRecord = record({
    backend: flex({ stages: 2, hierarchical: true }),
    ...{ mesh: { sp: 4 }, hosts: [0, 0, 1, 1], tokens: 64, numHeads: 2, headDim: 4 },
  });
  const steps: string[] = [];
  const event = attentionRecord.ranks[1]!.tape.read();
  while (event.next()) {
    if (event.op === "mark") steps.push(`${attentionRecord.interned.strings[event.arg(0)]}:`);
    else if (event.op === "groupCast") steps.push("cast");
    else if (event.op === "groupReduce") steps.push("reduce");
    else if (event.op === "wait") steps.push("wait");
    else if (event.op === "attend" || event.op === "attendBackward") steps.push("compute");
  }
  expect(steps.join(" ")).toMatchInlineSnapshot(
    `"forward: cast cast cast cast compute wait wait compute wait wait compute backward: cast cast cast cast compute wait wait compute reduce wait wait compute wait reduce wait end:"`,
  );
});

test("ranks at the same place in hosts of equal size form one equivalence class", () => {
  const call = { backend: flex({ stages: 1, hierarchical: true }), tokens: 64, numHeads: 1, headDim: 4 };
  const attentionRecord = recordRepresentatives({ ...call, mesh: { sp: 8 }, hosts: [0, 0, 1, 1, 2, 2, 3, 3] });
  expect(attentionRecord.ranks.map(({ tape }) => tape.rank)).toEqual([0, 1]);
  expect(prove(attentionRecord).violations).toEqual([]);
  // Hosts of unequal size: no two ranks do the same.
  const unequalRecord = recordRepresentatives({ ...call, mesh: { sp: 8 }, hosts: [0, 0, 0, 1, 1, 2, 2, 2] });
  expect(unequalRecord.ranks).toHaveLength(8);
});

test("record and flexTraffic reject a host list of the wrong length", () => {
  const call = { backend: flex(), mesh: { sp: 3 }, tokens: 9, numHeads: 1, headDim: 4, placement: zigzag() };
  expect(() => record({ ...call, mask: masks.causal(), hosts: [0, 1] })).toThrow(
    /record: hosts: expected an array of 3 hosts, one per rank/,
  );
  const { queries, keys, slices } = record(call);
  const trafficCall = { at: { sp: 0 }, mask: slices, queries, keys };
  const sizeOptions = { batch: 1, numHeads: 1, numKvHeads: 1, headDim: 4, dtype: "float32" } as const;
  expect(() => flexTraffic({ mesh: { sp: 3 }, call: trafficCall, ...sizeOptions, hosts: [0] })).toThrow(
    /flexTraffic: hosts: expected an array of 3 host indices, one per rank/,
  );
});
