import { type Check, note, ok, problem, explained } from "../finding.ts";

export const nccl: Check = {
  name: "NCCL",
  async run(system) {
    const cuda = await system.ask("cuda");
    const count = "value" in cuda ? cuda.value.gpus.length : 0;
    if (system.version("@mosaic/collectives-nccl") === undefined) {
      if (count < 2) return [];
      return [note(`${count} GPUs, and nothing that connects them`, "npm install @mosaic/collectives-nccl")];
    }
    const found = await system.ask("nccl");
    if ("value" in found) return [ok(`${found.value.version}, ${found.value.library}`)];
    const [text, remedy] = explained(found.error);
    if (count > 1 || found.error.name === "AddonLoadError") return [problem(text, remedy)];
    return [count === 1 ? note(`${text}: needed between several GPUs only`, remedy) : note("not needed without a GPU")];
  },
};
