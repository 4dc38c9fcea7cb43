// The process that opens the GPU. A kernel that accesses invalid memory or hangs ends only this process and one case.
import { createCases } from "./cases.ts";
import { describeHost, Session } from "./session.ts";
import { parseOptions } from "./options.ts";
import { type WorkerReply, Results } from "./run.ts";

const options = parseOptions(process.argv.slice(2))!;
const storedResults = new Map(new Results(options.file).byCase);
const cases = new Map(
  createCases(options.lengths, options.sizes, storedResults).map((benchmarkCase) => [
    benchmarkCase.name,
    benchmarkCase,
  ]),
);
const session = new Session(options);

process.on("message", async (name: string) => {
  const reply = await runCase(name);
  // A sticky CUDA error persists until the process exits.
  process.send!(reply, () => {
    if (reply.isSessionLost) process.exit(1);
  });
});
process.on("disconnect", () => process.exit());

async function runCase(name: string): Promise<WorkerReply> {
  try {
    const result =
      name === "host" ? await describeHost(options.device, session.baseline()) : await cases.get(name)!.run(session);
    storedResults.set(name, result);
    return { result };
  } catch (error) {
    const { name: errorName, message } = error as Error;
    return { error: message, isSessionLost: errorName === "DeviceError" };
  }
}
