import { run } from "./cli/run.ts";

// The exit code is set instead of passed to process.exit(), which would lose output that is still to be written.
process.exitCode = await run(process.argv.slice(2));
