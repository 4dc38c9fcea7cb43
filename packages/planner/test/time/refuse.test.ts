import { ring } from "@mosaic/backend-ring";
import { expect, test } from "vitest";
import { type AttentionBackend, type ProcessGroup, type Transfer } from "@mosaic/core";
import { profiles, record, simulate } from "../../src/index.ts";
import { interceptedRing } from "../fault-injection.ts";
import { runScript, toyProfile } from "./toy.ts";

const call = { mesh: { sp: 3 }, tokens: 12, numHeads: 1, headDim: 4, dtype: "float32" } as const;
const createSimulation = (backend: AttentionBackend) => (): unknown =>
  simulate(record({ backend, ...call }), toyProfile);

test("simulate rejects a send without a receive and names the waiting rank", () => {
  const dropReceives = (group: ProcessGroup, transfers: readonly Transfer[]): readonly Transfer[] =>
    group.rank === 1 ? transfers.filter((transfer) => "to" in transfer) : transfers;
  expect(createSimulation(interceptedRing(dropReceives))).toThrow(
    /simulate: expected a record without deadlocks, mismatched sends or mismatched collectives, received rank \d waits/,
  );
});

test("simulate rejects a message whose sender and receiver expect different sizes", () => {
  const simulateScript = (): unknown =>
    runScript({ sp: 2 }, toyProfile, ({ ctx, rank, tensor }) => {
      ctx.world.sendRecv([rank === 0 ? { tensor: tensor(3), to: 1 } : { tensor: tensor(2), from: 0 }]).wait();
    });
  expect(simulateScript).toThrow("sends 12 bytes to rank 1, but its sendRecv #0 expects 8 bytes");
});

test("simulate rejects a cycle of waiting ranks", () => {
  const simulateScript = (): unknown =>
    runScript({ sp: 2 }, toyProfile, ({ ctx, rank, tensor }) => {
      // Each rank sends first and then receives, so that no receive is ever reached.
      ctx.world.sendRecv([{ tensor: tensor(1), to: 1 - rank }]);
      ctx.world.sendRecv([{ tensor: tensor(1), from: 1 - rank }]).wait();
    });
  expect(simulateScript).toThrow("rank 0 waits in sendRecv #0; rank 1 waits in sendRecv #0; call prove(record)");
});

test("simulate rejects different collectives with the same number", () => {
  const simulateScript = (): unknown =>
    runScript({ sp: 2 }, toyProfile, ({ ctx, rank, tensor }) => {
      if (rank === 0) ctx.world.barrier().wait();
      else ctx.world.allReduce(tensor(2)).wait();
    });
  expect(simulateScript).toThrow(
    /rank 0 posted barrier as barrier #0, but rank 1 posted allReduce|rank 1 posted allReduce as .*, but rank 0 posted barrier/,
  );
});

test("simulate rejects a dtype that the profile lacks", () => {
  const attentionRecord = record({ ...call, backend: ring(), dtype: "float32" });
  expect(() => simulate(attentionRecord, profiles["h100-ib400"])).toThrow(
    "profile: kernels.attend: expected float32, received bfloat16, float16; measure or set the speed",
  );
});
