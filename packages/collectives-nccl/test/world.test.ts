import { expect, test } from "vitest";
import { openRanks } from "./ranks.ts";

test("one thread that posts for many GPUs tells NCCL and CUDA to wait for none of them", async () => {
  for (const name of ["NCCL_RUNTIME_CONNECT", "NCCL_P2P_DIRECT_DISABLE", "CUDA_MODULE_LOADING"])
    delete process.env[name];
  process.env.NCCL_RUNTIME_CONNECT = "1";
  await using ranks = await openRanks(2);
  expect(ranks.groups).toHaveLength(2);
  const { NCCL_RUNTIME_CONNECT, NCCL_P2P_DIRECT_DISABLE, CUDA_MODULE_LOADING } = process.env;
  expect({ NCCL_RUNTIME_CONNECT, NCCL_P2P_DIRECT_DISABLE, CUDA_MODULE_LOADING }).toEqual({
    NCCL_RUNTIME_CONNECT: "1", // what somebody asked for stays
    NCCL_P2P_DIRECT_DISABLE: "1",
    CUDA_MODULE_LOADING: "EAGER",
  });
});
