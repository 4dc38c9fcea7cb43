import { expect, test } from "vitest";
import { launchEnvironment, localRank, localWorldSize } from "../src/launch-environment.ts";

const torchrunEnv = { RANK: "5", WORLD_SIZE: "8", LOCAL_RANK: "1", LOCAL_WORLD_SIZE: "4" };
const masterEnv = { MASTER_ADDR: "n0", MASTER_PORT: "29500" };
const openMpiEnv = {
  OMPI_COMM_WORLD_RANK: "2",
  OMPI_COMM_WORLD_SIZE: "4",
  OMPI_COMM_WORLD_LOCAL_RANK: "0",
  OMPI_COMM_WORLD_LOCAL_SIZE: "2",
  PMIX_NAMESPACE: "1982398465",
};
const mpichEnv = { PMI_RANK: "3", PMI_SIZE: "4", MPI_LOCALRANKID: "1", MPI_LOCALNRANKS: "2" };
const step = {
  SLURM_JOB_ID: "7",
  SLURM_STEP_ID: "1",
  SLURM_PROCID: "4",
  SLURM_NTASKS: "5",
  SLURM_LOCALID: "0",
  SLURM_NODEID: "2",
  SLURM_STEP_TASKS_PER_NODE: "2(x2),1",
  SLURM_STEP_NODELIST: "gpu[007-009],x1",
};

test("rank, world size and endpoint are read from the launcher's variables", () => {
  expect(launchEnvironment({})).toEqual({
    ...{ launcher: undefined, rank: 0, worldSize: 1, localRank: undefined, localWorldSize: undefined },
    ...{ attempt: 0, job: undefined, endpoint: undefined },
  });
  expect(
    launchEnvironment({ ...torchrunEnv, ...masterEnv, TORCHELASTIC_RUN_ID: "none", TORCHELASTIC_RESTART_COUNT: "2" }),
  ).toEqual({
    ...{ launcher: "torchrun", rank: 5, worldSize: 8, localRank: 1, localWorldSize: 4 },
    ...{ attempt: 2, job: "n0:29500", endpoint: { host: "n0", port: 29500 } },
  });
  expect(launchEnvironment({ ...torchrunEnv, ...masterEnv, MOSAIC_RUN_ID: "ab", MOSAIC_ATTEMPT: "1" })).toMatchObject({
    ...{ launcher: "mosaic-run", attempt: 1, job: "ab" },
  });
  expect(launchEnvironment(openMpiEnv)).toEqual({
    ...{ launcher: "Open MPI", rank: 2, worldSize: 4, localRank: 0, localWorldSize: 2 },
    ...{ attempt: 0, job: "pmix 1982398465", endpoint: undefined },
  });
  expect(launchEnvironment({ ...mpichEnv, ...masterEnv })).toMatchObject({
    ...{ launcher: "MPICH", rank: 3, worldSize: 4, localRank: 1, localWorldSize: 2, job: "n0:29500" },
  });
  expect(launchEnvironment({ ...step, SLURM_RESTART_COUNT: "3" })).toEqual({
    ...{ launcher: "SLURM", rank: 4, worldSize: 5, localRank: 0, localWorldSize: 1 },
    ...{ attempt: 3, job: "slurm 7.1", endpoint: { host: "gpu007", port: 20449 } },
  });
});

test("the innermost launcher takes precedence", () => {
  // mosaic-run in a SLURM task; torchrun in a process of mpirun; mpirun and Hydra in a SLURM task; an MPI program
  // started by srun.
  expect(launchEnvironment({ ...step, ...torchrunEnv, MOSAIC_RUN_ID: "ab" })).toMatchObject({
    launcher: "mosaic-run",
    rank: 5,
  });
  const twoRankEnv = { RANK: "1", WORLD_SIZE: "2", TORCHELASTIC_RUN_ID: "none" };
  expect(launchEnvironment({ ...openMpiEnv, ...twoRankEnv })).toMatchObject({
    launcher: "torchrun",
    rank: 1,
    worldSize: 2,
  });
  expect(launchEnvironment({ ...step, ...openMpiEnv })).toMatchObject({ launcher: "Open MPI", rank: 2 });
  expect(launchEnvironment({ ...step, ...mpichEnv })).toMatchObject({ launcher: "MPICH", rank: 3 });
  expect(launchEnvironment({ ...step, PMI_RANK: "4", PMI_SIZE: "5" })).toMatchObject({
    launcher: "SLURM",
    localRank: 0,
  });
});

test("batch scripts and interactive shells of SLURM are not treated as ranks", () => {
  const { SLURM_STEP_ID: _, ...batch } = step;
  for (const env of [batch, { ...step, SLURM_STEP_ID: "4294967290" }])
    expect(launchEnvironment(env)).toMatchObject({ launcher: undefined, rank: 0, worldSize: 1, endpoint: undefined });
});

test("rank 0 listens at MASTER_PORT, or at the next port if the store of torchrun uses it", () => {
  const parsePort = (env: Record<string, string>): number | undefined => launchEnvironment(env).endpoint?.port;
  expect(parsePort({ ...torchrunEnv, ...masterEnv, TORCHELASTIC_USE_AGENT_STORE: "True" })).toBe(29501);
  expect(parsePort({ ...torchrunEnv, ...masterEnv, TORCHELASTIC_USE_AGENT_STORE: "False" })).toBe(29500);
  expect(parsePort({ ...torchrunEnv, ...masterEnv, MOSAIC_MASTER_PORT: "4000" })).toBe(4000);
  expect(parsePort({ ...step, ...masterEnv })).toBe(29500);
  expect(parsePort({ ...step, SLURM_STEP_ID: "0" })).not.toBe(parsePort(step));
});

test("incomplete and invalid variables are rejected", () => {
  const expectRefused = (env: Record<string, string>, message: string | RegExp): void =>
    expect(() => launchEnvironment(env)).toThrow(message);
  expectRefused(
    { RANK: "0" },
    "environment variable WORLD_SIZE: expected an integer, because RANK is set, received none; set both",
  );
  expectRefused(
    { WORLD_SIZE: "2" },
    "environment variable RANK: expected an integer, because WORLD_SIZE is set, received none",
  );
  expectRefused({ PMI_RANK: "1" }, "environment variable PMI_SIZE: expected an integer, because PMI_RANK is set");
  expectRefused(
    { RANK: "4", WORLD_SIZE: "4" },
    "environment variable RANK: expected an integer below WORLD_SIZE = 4, received 4",
  );
  expectRefused(
    { ...openMpiEnv, OMPI_COMM_WORLD_RANK: "-1" },
    /OMPI_COMM_WORLD_RANK: expected an integer ≥ 0, received "-1"/,
  );
  expectRefused(
    { ...torchrunEnv, MASTER_ADDR: "n0", MASTER_PORT: "70000" },
    "MASTER_PORT: expected an integer from 1 to 65535",
  );
  expectRefused({ ...torchrunEnv, LOCAL_WORLD_SIZE: "0" }, 'LOCAL_WORLD_SIZE: expected an integer ≥ 1, received "0"');
  expect(launchEnvironment({ RANK: "", WORLD_SIZE: "" })).toMatchObject({ launcher: undefined });
});

test("RANK and WORLD_SIZE that contradict the launcher are rejected", () => {
  const message =
    /RANK and WORLD_SIZE: expected OMPI_COMM_WORLD_RANK 2 and OMPI_COMM_WORLD_SIZE 4, as set by Open MPI, received/;
  for (const [RANK, WORLD_SIZE] of [
    ["0", "1"],
    ["0", "4"],
    ["1", "2"],
  ] as const)
    expect(() => launchEnvironment({ ...openMpiEnv, RANK, WORLD_SIZE })).toThrow(message);
  expect(() => launchEnvironment({ ...step, RANK: "0", WORLD_SIZE: "1" })).toThrow(
    /expected SLURM_PROCID 4 .* unset RANK/,
  );
  expect(launchEnvironment({ ...openMpiEnv, RANK: "2", WORLD_SIZE: "4" })).toMatchObject({ rank: 2, localRank: 0 });
  expect(launchEnvironment({ ...openMpiEnv, RANK: "17", WORLD_SIZE: "32" })).toMatchObject({ rank: 17, worldSize: 32 });
});

test("local rank and local world size can be set without rank and world size", () => {
  expect([localRank({ LOCAL_RANK: "3" }), localWorldSize({ LOCAL_WORLD_SIZE: "4" })]).toEqual([3, 4]);
  expect([localRank(mpichEnv), localWorldSize(mpichEnv)]).toEqual([1, 2]);
  expect([localRank({}), localWorldSize({})]).toEqual([undefined, undefined]);
});
