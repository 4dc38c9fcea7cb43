import { flex, flexTraffic } from "@mosaic/backend-flex";
import { mesh2d, mesh2dTraffic } from "@mosaic/backend-mesh2d";
import { ring, ringTraffic } from "@mosaic/backend-ring";
import { ulysses, ulyssesTraffic } from "@mosaic/backend-ulysses";
import { isVisible, omitAxes, type Traffic } from "@mosaic/core";
import { describe, expect, test } from "vitest";
import { type AttentionRecord, count, prove, record, type RankTraffic } from "../src/index.ts";
import { arrangements, listGrids, nestedBackends, raggedSizes, schedules } from "./shapes.ts";

/** Traffic of one rank according to the closed form of its backend. */
type ClosedFormTraffic = { readonly forward: Traffic; readonly backward: Traffic };

function expectTraffic(
  attentionRecord: AttentionRecord,
  computeClosedForm: (at: Readonly<Record<string, number>>) => ClosedFormTraffic,
): void {
  for (const [rank, { forward, backward }] of count(attentionRecord).ranks.entries()) {
    const closedForm = computeClosedForm(attentionRecord.ranks[rank]!.at);
    expect(sumTraffic(forward)).toEqual(closedForm.forward);
    expect(sumTraffic(backward)).toEqual(closedForm.backward);
  }
}

function sumTraffic({ sent, received }: Pick<RankTraffic, "sent" | "received">): Traffic {
  return { bytesSent: sent.bytes, bytesReceived: received.bytes, messagesSent: sent.messages };
}

/** Returns the call of one rank as closed forms accept it. */
function createCall({ slices, queries, keys }: AttentionRecord, at: Readonly<Record<string, number>>) {
  return { at, mask: slices, queries, keys };
}

const sizes = { ...raggedSizes, dtype: "bfloat16" } as const;

describe.each(listGrids(8))("mesh2d of %d × %d", (rows, columns) => {
  test.each(schedules)(
    "is proved correct and its traffic equals the closed form, with the schedule $schedule",
    (scheduleOptions) => {
      const mesh = { sp: rows * columns };
      const shape = [rows, columns] as const;
      for (const arrangement of arrangements) {
        const attentionRecord = record({
          backend: mesh2d({ shape, ...scheduleOptions }),
          mesh,
          ...arrangement,
          ...sizes,
        });
        expect(prove(attentionRecord).violations).toEqual([]);
        expectTraffic(attentionRecord, (at) =>
          mesh2dTraffic({ mesh, shape, call: createCall(attentionRecord, at), ...sizes }),
        );
      }
    },
  );
});

test.each([1, 2, 3, 4, 5, 8])("ulysses on %d ranks is proved correct and its traffic equals the closed form", (sp) => {
  const mesh = { sp };
  for (const arrangement of arrangements) {
    const attentionRecord = record({ backend: ulysses(), mesh, ...arrangement, ...sizes });
    expect(prove(attentionRecord).violations).toEqual([]);
    expectTraffic(attentionRecord, (at) => ulyssesTraffic({ mesh, call: createCall(attentionRecord, at), ...sizes }));
  }
});

test.each([1, 2, 3, 4, 5, 8])("flex on %d ranks is proved correct and its traffic equals the closed form", (sp) => {
  const mesh = { sp };
  for (const stages of [undefined, 0, 2, { forward: 1, backward: 3 }]) {
    for (const arrangement of arrangements) {
      const attentionRecord = record({ backend: flex({ stages }), mesh, ...arrangement, ...sizes });
      expect(prove(attentionRecord).violations).toEqual([]);
      expectTraffic(attentionRecord, (at) =>
        flexTraffic({ mesh, stages, call: createCall(attentionRecord, at), ...sizes }),
      );
    }
  }
});

test("flex with queriesTravel is proved correct and its traffic equals the closed form", () => {
  const mesh = { sp: 5 };
  for (const arrangement of arrangements) {
    const [headSizes, queriesTravel] = [{ ...sizes, numKvHeads: 4 }, true];
    const attentionRecord = record({ backend: flex({ queriesTravel }), mesh, ...arrangement, ...headSizes });
    expect(prove(attentionRecord).violations).toEqual([]);
    expectTraffic(attentionRecord, (at) =>
      flexTraffic({ mesh, queriesTravel, call: createCall(attentionRecord, at), ...headSizes }),
    );
  }
});

describe.each(nestedBackends)("$name", ({ backend, mesh }) => {
  test("is proved correct for every mask and placement", () => {
    for (const arrangement of arrangements) {
      const attentionRecord = record({ backend, mesh, ...arrangement, ...sizes });
      expect(prove(attentionRecord).violations).toEqual([]);
    }
  });

  test("is proved correct for keys of a different length and beside data parallelism", () => {
    expect(prove(record({ backend, mesh: { dp: 2, ...mesh }, ...sizes, keyTokens: 41 })).violations).toEqual([]);
  });
});

test("the outer traffic of a ring inside ulysses equals the closed form of ulysses", () => {
  const { backend, mesh } = nestedBackends.find(({ name }) => name === "ring in ulysses")!;
  for (const arrangement of arrangements) {
    const attentionRecord = record({ backend, mesh, ...arrangement, ...sizes });
    for (const [rank, { forward }] of count(attentionRecord).ranks.entries()) {
      const call = createCall(attentionRecord, attentionRecord.ranks[rank]!.at);
      const inner = { name: "ring", axes: ["node"], attend() {}, attendBackward() {} };
      const outerTraffic = ulyssesTraffic({ axis: "gpu", inner, mesh, call, ...sizes });
      const { gpu } = forward.groups;
      expect(gpu ? sumTraffic(gpu) : { bytesSent: 0, bytesReceived: 0, messagesSent: 0 }).toEqual(outerTraffic.forward);
    }
  }
});

test("a ring inside a ring sends the closed form between nodes and runs the inner ring once per node", () => {
  const { backend, mesh } = nestedBackends[0]!;
  const attentionRecord = record({ backend, mesh, ...sizes, tokens: 66 });
  const width = sizes.batch * sizes.numKvHeads * sizes.headDim;
  for (const [rank, { forward }] of count(attentionRecord).ranks.entries()) {
    const call = createCall(attentionRecord, attentionRecord.ranks[rank]!.at);
    const innerRing = { name: "ring", axes: ["gpu"], attend() {}, attendBackward() {} };
    const nodeTraffic = ringTraffic({ axis: "node", inner: innerRing, mesh, call, width, dtype: "bfloat16" });
    expect(sumTraffic(forward.groups["node"]!)).toEqual(nodeTraffic.forward);
    const innerTraffic = ringTraffic({ axis: "gpu", mesh, call, width, dtype: "bfloat16" });
    expect(forward.groups["gpu"]!.sent.bytes).toBe(mesh["node"]! * innerTraffic.forward.bytesSent);
  }
});

test.each(["fused", "overlapped"] as const)(
  "a mesh2d inside a ring, %s, sends queries once and keys at every step with visible pairs",
  (schedule) => {
    const mesh = { node: 3, gpu: 6 };
    const innerMesh = mesh2d({ axis: "gpu", schedule });
    for (const arrangement of arrangements) {
      const attentionRecord = record({
        backend: ring({ axis: "node", inner: innerMesh }),
        mesh,
        ...arrangement,
        ...sizes,
      });
      expect(prove(attentionRecord).violations).toEqual([]);
      for (const [rank, { forward, backward }] of count(attentionRecord).ranks.entries()) {
        const { at } = attentionRecord.ranks[rank]!;
        const call = createCall(attentionRecord, at);
        const gridQueries = call.queries.spans(omitAxes(at, ["gpu"]));
        const keySources = [0, 2, 1]
          .map((step) => ({ ...at, node: (at["node"]! + step) % 3 }))
          .filter((place) => isVisible(gridQueries, call.keys.spans(omitAxes(place, ["gpu"])), call.mask));
        const closedForm = mesh2dTraffic({ axis: "gpu", mesh, call, from: keySources, ...sizes });
        expect(gpuTraffic(forward)).toEqual(closedForm.forward);
        expect(gpuTraffic(backward)).toEqual(closedForm.backward);
      }
    }
  },
);

function gpuTraffic({ groups: { gpu } }: RankTraffic): Traffic {
  return gpu ? sumTraffic(gpu) : { bytesSent: 0, bytesReceived: 0, messagesSent: 0 };
}
