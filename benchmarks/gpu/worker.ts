// The process that opens the GPU. A kernel that reads where it must not, or that never ends, costs this process and one case.
import { createCases } from "./cases.ts";
import { describeHost, Session } from "./session.ts";
import { read } from "./options.ts";
import { type WorkerReply, Results } from "./run.ts";

const options = read(process.argv.slice(2))!;
const storedResults = new Map(new Results(options.file).byCase);
const cases = new Map(createCases(options.lengths, options.sizes, storedResults).map((each) => [each.name, each]));
const session = new Session(options);

process.on("message", async (name: string) => {
  const answer = await run(name);
  // What CUDA calls a sticky error stays with the process.
  process.send!(answer, () => {
    if (answer.isSessionLost) process.exit(1);
  });
});
process.on("disconnect", () => process.exit());

async function run(name: string): Promise<WorkerReply> {
  try {
    const result =
      name === "host" ? await describeHost(options.device, session.peer()) : await cases.get(name)!.run(session);
    storedResults.set(name, result);
    return { result };
  } catch (error) {
    const { name: kind, message } = error as Error;
    return { error: message, isSessionLost: kind === "DeviceError" };
  }
}
