// The bytes of collectives between several hosts: those of the engine over UCX are those that the planner counts.
import { world } from "@mosaic/collectives-ucx";
import { type AttentionBackend, type Context, type DType, dtypeBytes, empty, scope } from "@mosaic/core";
import { cpu } from "@mosaic/kernels-cpu";
import { count, countLinks, record } from "@mosaic/planner";
import { expect, test, vi } from "vitest";

vi.stubEnv("UCX_TLS", "tcp");

const dtypes: readonly DType[] = ["float32", "bfloat16", "float16"];

/** From this size on, engine and planner divide a broadcast among the ranks of a host. */
const MIN_DIVIDED_BROADCAST_BYTES = 64 * 1024;

/** Posts collectives with odd sizes, empty shares, small and large tensors, in every dtype. */
function postCollectives(ctx: Context): void {
  const { size, rank, world: group } = ctx;
  const counts = Array.from({ length: size }, (_, member) => (member === 1 ? 0 : 1001 * member + 7));
  const total = counts.reduce((sum, each) => sum + each, 0);
  scope(() => {
    for (const dtype of dtypes) {
      const divided = MIN_DIVIDED_BROADCAST_BYTES / dtypeBytes[dtype];
      const [part, whole] = [empty(ctx, [counts[rank]!], { dtype }), empty(ctx, [total], { dtype })];
      group.allGather(whole, part, { counts }).wait();
      group.reduceScatter(part, whole, "sum", { counts }).wait();
      for (const root of [0, size - 1]) {
        for (const elements of [3, divided - 1, divided, 99_999])
          group.broadcast(empty(ctx, [elements], { dtype }), root).wait();
      }
      // Up to 8 KiB the engine sums in one step, which the planner does not model.
      group.allReduce(empty(ctx, [20_011], { dtype })).wait();
    }
  });
}

const backend: AttentionBackend = {
  name: "scripted",
  axes: [],
  attend: (ctx) => postCollectives(ctx),
  attendBackward() {},
};

test.each([
  ["2 hosts of 2 ranks", [0, 0, 1, 1]],
  ["2 hosts, ranks alternate", [0, 1, 0, 1, 0]],
  ["3 hosts of 3, 1 and 2 ranks, out of order", [2, 0, 0, 1, 0, 2]],
  ["a rank on each host", [0, 1, 2]],
])("the planner counts the bytes of the engine on %s", async (_, hosts) => {
  const size = hosts.length;
  const recorded = record({ backend, mesh: { sp: size }, tokens: 8 * size, numHeads: 1, headDim: 4, hosts });
  const expected = count(recorded).ranks.map(({ forward }) => forward);
  const contexts = await world(size, { ucx: { network: "lo" }, hosts, timeout: 30, device: () => cpu({ threads: 1 }) });
  try {
    for (const ctx of contexts) postCollectives(ctx);
    await Promise.all(contexts.map((ctx) => ctx.device.stream.synchronize()));
    const traffic = contexts.map((ctx) => ctx.world.traffic());
    expect(traffic.map(({ bytesSent }) => bytesSent)).toEqual(expected.map(({ sent }) => sent.bytes));
    expect(traffic.map(({ bytesReceived }) => bytesReceived)).toEqual(expected.map(({ received }) => received.bytes));
  } finally {
    await Promise.all(contexts.map((ctx) => ctx.close()));
  }
});

test("the planner counts a broadcast once for each other node", () => {
  const broadcast: AttentionBackend = {
    ...backend,
    attend: (ctx) => scope(() => ctx.world.broadcast(empty(ctx, [1000]), 1).wait()),
  };
  const recorded = record({ backend: broadcast, mesh: { sp: 6 }, tokens: 48, numHeads: 1, headDim: 4 });
  const links = countLinks(recorded, { ranksPerNode: 2 }).map(({ forward }) => forward);
  // Rank 1 sends to ranks 3 and 5, which forward to ranks 2 and 4.
  expect(links.map((link) => link["inter-node"].sent.bytes)).toEqual([0, 8000, 0, 0, 0, 0]);
  expect(links.map((link) => link["intra-node"].sent.bytes)).toEqual([0, 4000, 0, 4000, 0, 4000]);
});
