import { existsSync } from "node:fs";
import { setImmediate } from "node:timers/promises";
import { processSuite, RankProcesses } from "@mosaic/conformance";
import { afterEach, describe, expect, test, vi } from "vitest";
import { openJob, script, sockets } from "./processes.ts";

// An agent must exit with its last rank and remove its socket.
afterEach(() => vi.waitFor(() => expect(sockets.filter((path) => existsSync(path))).toEqual([]), { timeout: 5000 }));

const program = { script, openJob };
const suite = processSuite({ ...program, withoutRankZero: /no agent listens at .*mosaic-run/ });

test.each(suite.map(({ name, run }) => [name, run] as const))("%s", (_, run) => run());

describe.each([2, 3, 5, 8])("%i processes", (size) => {
  test("compute the expected sums and leak no descriptors", async () => {
    await using processes = new RankProcesses(program);
    const ranks = await processes.startAll(size, "work");
    const workedEvents = await Promise.all(ranks.map((rank) => rank.waitForEvent("worked")));
    expect(workedEvents.map(({ half, sum }) => [half, sum])).toEqual(
      workedEvents.map((_, rank) => {
        const halfSize = Math.floor((size + 1 - (rank % 2)) / 2);
        return [halfSize, halfSize];
      }),
    );
    for (const { files } of workedEvents) expect(files).not.toContainEqual(expect.stringMatching(/memfd|shm/));
    const leftEvents = await Promise.all(ranks.map((rank) => rank.waitForEvent("left")));
    expect(leftEvents.map(({ leaked }) => leaked)).toEqual(leftEvents.map(() => 0));
    expect(await Promise.all(ranks.map((rank) => rank.exitStatus))).toEqual(ranks.map(() => 0));
  });
});

test("an agent that a rank started ends with that rank", async () => {
  await using processes = new RankProcesses(program);
  const job = await processes.openJob(2);
  const rank = processes.start("work", job.env(0));
  while (!existsSync(sockets.at(-1)!)) await setImmediate();
  rank.kill();
  expect(await rank.exitStatus).toBe("SIGKILL");
});

test("a rank whose timeout began first also reports the missing ranks", async () => {
  await using processes = new RankProcesses(program);
  const job = await processes.openJob(3);
  const timeouts = { MOSAIC_TEST_CONNECT_TIMEOUT: "3" };
  const earlyProcess = processes.start("work", { ...job.env(1), ...timeouts });
  await earlyProcess.waitForEvent("connecting");
  const host = processes.start("work", { ...job.env(0), ...timeouts });
  for (const rank of [earlyProcess, host]) {
    expect((await rank.waitForEvent("failed")).message).toMatch(
      /rendezvous timed out after 3 s: rank 2 of 3 is missing/,
    );
  }
});

test.each([
  [
    "mpirun of Open MPI",
    (rank: number) => ({
      PMIX_NAMESPACE: `test-${process.pid}`,
      OMPI_COMM_WORLD_RANK: `${rank}`,
      OMPI_COMM_WORLD_SIZE: "2",
      OMPI_COMM_WORLD_LOCAL_RANK: `${rank}`,
      OMPI_COMM_WORLD_LOCAL_SIZE: "2",
    }),
  ],
  [
    "mpirun of MPICH",
    (rank: number) => ({
      MASTER_ADDR: "127.0.0.1",
      MASTER_PORT: `${1 + (process.pid % 65_000)}`,
      PMI_RANK: `${rank}`,
      PMI_SIZE: "2",
      MPI_LOCALRANKID: `${rank}`,
      MPI_LOCALNRANKS: "2",
    }),
  ],
  [
    "srun",
    (rank: number) => ({
      SLURM_JOB_ID: `${process.pid}`,
      SLURM_STEP_ID: "0",
      SLURM_PROCID: `${rank}`,
      SLURM_NTASKS: "2",
      SLURM_LOCALID: `${rank}`,
      SLURM_NODEID: "0",
      SLURM_STEP_TASKS_PER_NODE: "2",
      SLURM_STEP_NODELIST: "n0",
    }),
  ],
])("ranks of %s connect by means of its environment variables", async (_, env) => {
  await using processes = new RankProcesses(program);
  const emptyVariables = Object.fromEntries(Object.keys((await processes.openJob(2)).env(0)).map((name) => [name, ""]));
  sockets.pop();
  const ranks = [0, 1].map((rank) => processes.start("work", { ...emptyVariables, ...env(rank) }));
  for (const rank of ranks) expect((await rank.waitForEvent("worked")).sum).toBe(1);
  expect(await Promise.all(ranks.map((rank) => rank.exitStatus))).toEqual([0, 0]);
});

test("ranks of several hosts are rejected", async () => {
  await using processes = new RankProcesses(program);
  const job = await processes.openJob(2);
  const rank = processes.start("work", { ...job.env(0), LOCAL_WORLD_SIZE: "1" });
  expect((await rank.waitForEvent("failed")).message).toMatch(
    /expected all ranks on this host, received 1 of 2 ranks.*span hosts, such as @mosaic\/collectives-ucx/,
  );
  expect(await rank.exitStatus).toBe(0);
});
