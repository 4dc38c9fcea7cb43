import { mesh2d } from "@mosaic/backend-mesh2d";
import { ring } from "@mosaic/backend-ring";
import { expect, test } from "vitest";
import { count, countLinks, predict, profiles, record } from "../../src/index.ts";
import { gatheringBackend } from "../gathering.ts";

const sizes = { tokens: 48, numHeads: 2, headDim: 4 } as const;

test("in a ring inside a ring, only the outer ring crosses nodes", () => {
  const backend = ring({ axis: "node", inner: ring({ axis: "gpu" }) });
  const attentionRecord = record({ ...sizes, backend, mesh: { node: 3, gpu: 2 } });
  const traffic = count(attentionRecord);
  for (const [rank, { forward, backward }] of countLinks(attentionRecord, { ranksPerNode: 2 }).entries()) {
    const { forward: forwardTraffic, backward: backwardTraffic } = traffic.ranks[rank]!;
    expect(forward["inter-node"].sent).toEqual(forwardTraffic.groups["node"]!.sent);
    expect(forward["intra-node"].received).toEqual(forwardTraffic.groups["gpu"]!.received);
    expect(backward["inter-node"].received).toEqual(backwardTraffic.groups["node"]!.received);
    expect(backward["intra-node"].sent).toEqual(backwardTraffic.groups["gpu"]!.sent);
    expect(forward.self.sent.messages).toBe(0);
  }
});

test("the traffic of all link classes adds up to the total, also with collectives", () => {
  for (const backend of [mesh2d({ shape: [2, 3] }), gatheringBackend()]) {
    const attentionRecord = record({ ...sizes, numHeads: 1, backend, mesh: { sp: 6 } });
    const traffic = count(attentionRecord);
    for (const [rank, phases] of countLinks(attentionRecord, profiles["h100-ib400"]).entries()) {
      for (const phase of ["forward", "backward"] as const) {
        const links = phases[phase];
        expect(links["intra-node"].sent).toEqual(traffic.ranks[rank]![phase].sent);
        const nodes = countLinks(attentionRecord, { ranksPerNode: 2 })[rank]![phase];
        expect(nodes["intra-node"].sent.bytes + nodes["inter-node"].sent.bytes).toBe(links["intra-node"].sent.bytes);
      }
    }
  }
});

test("a prediction has the time, the bytes and the memory of its record", () => {
  const mesh = { sp: 16 };
  const call = { tokens: 65_536, numHeads: 8, headDim: 128 } as const;
  const {
    sent,
    peakBytes,
    record: attentionRecord,
    ...prediction
  } = predict({ ...call, backend: ring(), mesh }, profiles["h100-ib400"]);
  const { forward, backward } = count(attentionRecord).ranks[7]!;
  // Rank 7 sends to rank 8, which is on the next node; all others send within their node.
  expect(sent["inter-node"].bytes).toBe(forward.sent.bytes + backward.sent.bytes);
  expect(sent["intra-node"].messages).toBe(forward.sent.messages + backward.sent.messages);
  expect(peakBytes).toBe(Math.max(...attentionRecord.ranks.map((rank) => rank.peakBytes)));
  expect(prediction.seconds).toBeCloseTo(prediction.forwardSeconds + prediction.backwardSeconds, 12);
  expect(prediction.seconds).toBeGreaterThan(prediction.computeSeconds);
  expect(prediction.simulation.ranks.length).toBe(16);
});

test("more ranks take less time, slower links take more, and only ranks that `keep` selects have events", () => {
  const call = { tokens: 1_048_576, numHeads: 8, headDim: 128, backend: ring() } as const;
  const predictSeconds = (sp: number, bandwidth: number): number => {
    const { links } = profiles["h100-ib400"];
    const profile = {
      ...profiles["h100-ib400"],
      links: { ...links, "inter-node": { ...links["inter-node"], bandwidth } },
    };
    const { seconds, simulation } = predict({ ...call, mesh: { sp } }, profile, { keep: (rank) => rank === 1 });
    expect(simulation.ranks.map(({ events }) => events.length > 0)).toEqual(
      simulation.ranks.map(({ rank }) => rank === 1),
    );
    return seconds;
  };
  expect(predictSeconds(16, 47e9)).toBeLessThan(predictSeconds(8, 47e9));
  expect(predictSeconds(16, 1e9)).toBeGreaterThan(predictSeconds(16, 47e9));
});
