import { spawn } from "node:child_process";

const GRACE_MS = 5000;

/**
 * Runs a step for at most `seconds` seconds, and passes its output to `log`. Resolves to `{ outcome, seconds }`, where
 * the outcome is "ok", "out of time", or, for example, "exit 1".
 */
export function runStep({ command: [program, ...args], directory, env }, seconds, log) {
  const start = performance.now();
  return new Promise((resolve) => {
    // The step has its own process group, so that no process that it starts outlives it.
    const child = spawn(program, args, { cwd: directory, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
    const killGroup = (signal) => {
      if (child.pid === undefined) return; // It was not started.
      try {
        process.kill(-child.pid, signal);
      } catch {} // It has exited.
    };
    let hasTimedOut = false;
    const timers = [
      setTimeout(() => ((hasTimedOut = true), killGroup("SIGTERM")), seconds * 1000),
      setTimeout(() => killGroup("SIGKILL"), seconds * 1000 + GRACE_MS),
    ];
    const finish = (outcome) => {
      timers.forEach(clearTimeout);
      resolve({ outcome, seconds: (performance.now() - start) / 1000 });
    };
    for (const stream of [child.stdout, child.stderr]) stream.on("data", log);
    child.on("error", ({ message }) => finish(message));
    child.on("exit", () => killGroup("SIGTERM"));
    child.on("close", (code, signal) =>
      finish(hasTimedOut ? "out of time" : code === 0 ? "ok" : signal ? `ended by ${signal}` : `exit ${code}`),
    );
  });
}
