// A rank of a job on several nodes: `node.mjs <action> [rank] [attempts]`. After a barrier of all ranks, one performs
// the action.
const { connectStore } = await import(process.env.TEST_INDEX);
const [action = "ends", culprit = "-1", attempts = "0"] = process.argv.slice(2);
const { RANK, WORLD_SIZE, MOSAIC_ATTEMPT, MOSAIC_TOKEN } = process.env;
const names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "MASTER_ADDR"];
if (MOSAIC_TOKEN !== undefined) throw new Error("a rank inherits the secret");
const store = await connectStore();
await store.barrier("all", Number(WORLD_SIZE), { member: RANK });
console.log(`attempt ${MOSAIC_ATTEMPT}: ${names.map((name) => process.env[name]).join(" ")}`);
if (RANK === culprit && attempts.split(",").includes(MOSAIC_ATTEMPT)) {
  if (action === "throws") throw new TypeError("bad loss");
  if (action === "exits") process.exit(42);
}
if (action !== "ends" && attempts.split(",").includes(MOSAIC_ATTEMPT)) {
  // The launcher must also end this process, which is in a separate session.
  const { spawn } = await import("node:child_process");
  spawn("sleep", ["600"], { detached: true, stdio: "ignore" });
  console.log(`rank ${RANK} waits`);
  setInterval(() => {}, 60_000);
} else await store.close();
