import { flex, flexTraffic } from "@mosaic/backend-flex";
import { mesh2d, mesh2dTraffic } from "@mosaic/backend-mesh2d";
import { ring, ringTraffic } from "@mosaic/backend-ring";
import { ulysses, ulyssesTraffic } from "@mosaic/backend-ulysses";
import { isVisible, omitAxes, type Traffic } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { type AttentionRecord, count, prove, record, type RankTraffic } from "../src/index.ts";
import { arrangements, gridsUpTo, nestedBackends, ragged, schedules } from "./shapes.ts";

/** What one rank's backend states in closed form that it sends and receives. */
type Closed = { readonly forward: Traffic; readonly backward: Traffic };

function expectTraffic(run: AttentionRecord, closedOf: (at: Readonly<Record<string, number>>) => Closed): void {
  for (const [rank, { forward, backward }] of count(run).ranks.entries()) {
    const closed = closedOf(run.ranks[rank]!.at);
    expect(sumTraffic(forward)).toEqual(closed.forward);
    expect(sumTraffic(backward)).toEqual(closed.backward);
  }
}

function sumTraffic({ sent, received }: Pick<RankTraffic, "sent" | "received">): Traffic {
  return { bytesSent: sent.bytes, bytesReceived: received.bytes, messagesSent: sent.messages };
}

/** The call of one rank as closed forms take it. */
function createCall({ slices, queries, keys }: AttentionRecord, at: Readonly<Record<string, number>>) {
  return { at, mask: slices, queries, keys };
}

const sizes = { ...ragged, dtype: "bfloat16" } as const;

describe.each(gridsUpTo(8))("mesh2d of %d × %d", (rows, columns) => {
  test.each(schedules)("is right and sends what its closed form states, by the schedule $schedule", (way) => {
    const mesh = { sp: rows * columns };
    const shape = [rows, columns] as const;
    for (const arrangement of arrangements) {
      const run = record({ backend: mesh2d({ shape, ...way }), mesh, ...arrangement, ...sizes });
      expect(prove(run).violations).toEqual([]);
      expectTraffic(run, (at) => mesh2dTraffic({ mesh, shape, call: createCall(run, at), ...sizes }));
    }
  });
});

test.each([1, 2, 3, 4, 5, 8])("ulysses of %d is right and sends what its closed form states", (sp) => {
  const mesh = { sp };
  for (const arrangement of arrangements) {
    const run = record({ backend: ulysses(), mesh, ...arrangement, ...sizes });
    expect(prove(run).violations).toEqual([]);
    expectTraffic(run, (at) => ulyssesTraffic({ mesh, call: createCall(run, at), ...sizes }));
  }
});

test.each([1, 2, 3, 4, 5, 8])("flex of %d is right and sends what its closed form states", (sp) => {
  const mesh = { sp };
  for (const stages of [undefined, 0, 2, { forward: 1, backward: 3 }]) {
    for (const arrangement of arrangements) {
      const run = record({ backend: flex({ stages }), mesh, ...arrangement, ...sizes });
      expect(prove(run).violations).toEqual([]);
      expectTraffic(run, (at) => flexTraffic({ mesh, stages, call: createCall(run, at), ...sizes }));
    }
  }
});

test("flex whose queries travel is right and sends what its closed form states", () => {
  const mesh = { sp: 5 };
  for (const arrangement of arrangements) {
    const [heads, queriesTravel] = [{ ...sizes, numKvHeads: 4 }, true];
    const run = record({ backend: flex({ queriesTravel }), mesh, ...arrangement, ...heads });
    expect(prove(run).violations).toEqual([]);
    expectTraffic(run, (at) => flexTraffic({ mesh, queriesTravel, call: createCall(run, at), ...heads }));
  }
});

describe.each(nestedBackends)("$name", ({ backend, mesh }) => {
  test("is right for every mask and placement", () => {
    for (const arrangement of arrangements) {
      const run = record({ backend, mesh, ...arrangement, ...sizes });
      expect(prove(run).violations).toEqual([]);
    }
  });

  test("is right for keys of another length, and beside data parallelism", () => {
    expect(prove(record({ backend, mesh: { dp: 2, ...mesh }, ...sizes, keyTokens: 41 })).violations).toEqual([]);
  });
});

test("of a nest each level sends what its own closed form states", () => {
  const { backend, mesh } = nestedBackends.find(({ name }) => name === "ring in ulysses")!;
  for (const arrangement of arrangements) {
    const run = record({ backend, mesh, ...arrangement, ...sizes });
    for (const [rank, { forward }] of count(run).ranks.entries()) {
      const call = createCall(run, run.ranks[rank]!.at);
      const inner = { name: "ring", axes: ["node"], attend() {}, attendBackward() {} };
      const outside = ulyssesTraffic({ axis: "gpu", inner, mesh, call, ...sizes });
      const { gpu } = forward.groups;
      expect(gpu ? sumTraffic(gpu) : { bytesSent: 0, bytesReceived: 0, messagesSent: 0 }).toEqual(outside.forward);
    }
  }
});

test("a ring within a ring moves what the ring of one level would, and its own besides", () => {
  const { backend, mesh } = nestedBackends[0]!;
  const run = record({ backend, mesh, ...sizes, tokens: 66 });
  const width = sizes.batch * sizes.numKvHeads * sizes.headDim;
  for (const [rank, { forward }] of count(run).ranks.entries()) {
    const call = createCall(run, run.ranks[rank]!.at);
    const within = { name: "ring", axes: ["gpu"], attend() {}, attendBackward() {} };
    const nodes = ringTraffic({ axis: "node", inner: within, mesh, call, width, dtype: "bfloat16" });
    expect(sumTraffic(forward.groups["node"]!)).toEqual(nodes.forward);
    const gpus = ringTraffic({ axis: "gpu", mesh, call, width, dtype: "bfloat16" });
    expect(forward.groups["gpu"]!.sent.bytes).toBe(mesh["node"]! * gpus.forward.bytesSent);
  }
});

test.each(["fused", "overlapped"] as const)(
  "a mesh2d within a ring, %s, sends queries once, and keys at every step that sees any",
  (schedule) => {
    const mesh = { node: 3, gpu: 6 };
    const within = mesh2d({ axis: "gpu", schedule });
    for (const arrangement of arrangements) {
      const run = record({ backend: ring({ axis: "node", inner: within }), mesh, ...arrangement, ...sizes });
      expect(prove(run).violations).toEqual([]);
      for (const [rank, { forward, backward }] of count(run).ranks.entries()) {
        const { at } = run.ranks[rank]!;
        const call = createCall(run, at);
        const team = call.queries.spans(omitAxes(at, ["gpu"]));
        const from = [0, 2, 1]
          .map((step) => ({ ...at, node: (at["node"]! + step) % 3 }))
          .filter((place) => isVisible(team, call.keys.spans(omitAxes(place, ["gpu"])), call.mask));
        const closed = mesh2dTraffic({ axis: "gpu", mesh, call, from, ...sizes });
        expect(gpuTraffic(forward)).toEqual(closed.forward);
        expect(gpuTraffic(backward)).toEqual(closed.backward);
      }
    }
  },
);

function gpuTraffic({ groups: { gpu } }: RankTraffic): Traffic {
  return gpu ? sumTraffic(gpu) : { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };
}
