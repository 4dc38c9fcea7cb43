// One rank that prints that it is ready and then waits: `wait.mjs [mode]`.
import { spawn } from "node:child_process";
import process from "node:process";

const [mode] = process.argv.slice(2);
const rank = process.env.RANK;
setInterval(() => {}, 60_000);

const modes = {
  "saves-and-ends": () => {
    process.on("SIGTERM", () => {
      console.log(`rank ${rank} saved`);
      process.exit(0);
    });
  },
  stubborn: () => {
    for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => console.log(`${rank} ${signal}`));
  },
  "checkpoints-on-usr2": () => {
    process.on("SIGUSR2", () => console.log(`rank ${rank} checkpoint`));
  },
  "has-children": () => {
    const quiet = { stdio: "ignore" };
    spawn("sleep", ["600"], quiet);
    spawn("sleep", ["600"], { ...quiet, detached: true });
  },
};
modes[mode]?.();
process.stdout.write(`rank ${rank} is ready\n`);
if (mode === "blocked") Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
