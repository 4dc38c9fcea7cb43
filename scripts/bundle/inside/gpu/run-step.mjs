import { spawn } from "node:child_process";

const GRACE_MS = 5000;

/**
 * Runs a step for at most so many seconds, and hands what it prints to `log`. Resolves to `{ outcome, seconds }`; the outcome is
 * "ok", "exit 1" and the like, or "out of time".
 */
export function runStep({ command: [program, ...args], directory, env }, seconds, log) {
  const start = performance.now();
  return new Promise((resolve) => {
    // A group of its own, so that nothing that it started outlives it.
    const child = spawn(program, args, { cwd: directory, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
    const killGroup = (signal) => {
      if (child.pid === undefined) return; // It never began.
      try {
        process.kill(-child.pid, signal);
      } catch {} // It has ended.
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
