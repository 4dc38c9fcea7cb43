import { type Check, type Finding, note, ok, problem } from "../finding.ts";

/** Whether this process is a rank of a job, and whether what it was told makes sense. */
export const job: Check = {
  name: "job",
  async run(system) {
    const { env } = system;
    const starter = starterOf(env);
    const findings: Finding[] = [];
    const { RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE } = env;
    if (RANK !== undefined) {
      const place = LOCAL_RANK === undefined ? "" : `, ${LOCAL_RANK} of ${LOCAL_WORLD_SIZE ?? "?"} on this host`;
      findings.push(ok(`rank ${RANK} of ${WORLD_SIZE ?? "?"}${place}, started by ${starter ?? "somebody"}`));
    } else if (starter !== undefined) findings.push(ok(`${starter}, not a rank of it`));
    if ((RANK === undefined) !== (WORLD_SIZE === undefined)) {
      findings.push(problem("of RANK and WORLD_SIZE only one is set", "start ranks with mosaic-run, or set both"));
    }
    if (RANK === undefined && Number(env["SLURM_NTASKS"] ?? 1) > 1) {
      findings.push(
        note(
          "SLURM starts several tasks, and none of them knows its rank",
          "ask for one task a node, and let mosaic-run start the ranks in it",
        ),
      );
    }
    const cuda = await system.ask("cuda");
    const gpus = "value" in cuda ? cuda.value.gpus.length : 0;
    if (gpus > 0 && Number(LOCAL_WORLD_SIZE ?? 1) > gpus && !env["MOSAIC_SHARE_GPUS"]) {
      findings.push(
        note(
          `${LOCAL_WORLD_SIZE} ranks on this host, and ${gpus} GPUs that a rank can see`,
          "mosaic-run --nproc-per-node gpu; SLURM: --gpus-per-node rather than --gpus-per-task; or MOSAIC_SHARE_GPUS=1",
        ),
      );
    }
    return findings;
  },
};

function starterOf(env: NodeJS.ProcessEnv): string | undefined {
  if (env["MOSAIC_RUN_ID"]) return `mosaic-run (${env["MOSAIC_RUN_ID"]})`;
  if (env["TORCHELASTIC_RUN_ID"]) return "torchrun";
  return env["SLURM_JOB_ID"] ? `SLURM job ${env["SLURM_JOB_ID"]}` : undefined;
}
