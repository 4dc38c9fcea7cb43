// A rank under SLURM: prints its rank variables, then performs one action until it is ended: `slurm-rank.mjs [action]`.
const { MOSAIC_ATTEMPT, MOSAIC_THREADS, SLURM_RESTART_COUNT = "0" } = process.env;
const names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR"];
const rank = process.env.RANK;
const [action] = process.argv.slice(2);
function saveCheckpoint() {
  console.log(`rank ${rank} saves`);
  setTimeout(() => {
    console.log(`rank ${rank} saved`);
    process.exit(0);
  }, 1000);
}
if (action === "waits" || (action === "waits-once" && SLURM_RESTART_COUNT === "0")) setInterval(() => {}, 60_000);
if (action === "checkpoints") {
  let checkpoints = 0;
  process.on("SIGUSR1", () => console.log(`rank ${rank} checkpoint ${++checkpoints}`));
  // Only one SIGTERM is handled. A second one would end the rank while it writes its last checkpoint.
  process.once("SIGTERM", saveCheckpoint);
  setInterval(() => {}, 60_000);
}
if (action === "saves") {
  let signals = 0;
  process.on("SIGTERM", () => (++signals === 1 ? saveCheckpoint() : undefined));
  setInterval(() => {}, 60_000);
}
const slurmPlacement = names.map((name) => process.env[name]).join(" ");
console.log(`attempt ${MOSAIC_ATTEMPT} start ${SLURM_RESTART_COUNT}: ${slurmPlacement} threads ${MOSAIC_THREADS}`);
