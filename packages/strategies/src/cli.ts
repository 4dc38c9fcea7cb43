import { run } from "./cli/run.ts";

// Set, not passed to process.exit(): what is still to be written would be lost.
process.exitCode = await run(process.argv.slice(2));
