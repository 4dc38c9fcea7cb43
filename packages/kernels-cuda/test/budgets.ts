/** What ptxas made of one kernel for one GPU. */
export interface Usage {
  readonly kernel: string;
  readonly gpu: string;
  readonly registers: number;
  /** Bytes that are stored to memory and loaded back because registers ran out. */
  readonly spilled: number;
}

/** What a kernel may take at most: the first budget whose pattern matches its name counts. */
export interface Budget {
  readonly kernels: RegExp;
  readonly registers: number;
  readonly spilled: number;
}

const ENTRY = /Compiling entry function '(\w+)' for '(\w+)'/;

/** Reads the output of `ptxas -v`. */
export function parseUsages(text: string): Usage[] {
  const kernelReports = text.split(/^(?=.*Compiling entry function)/m).filter((part) => ENTRY.test(part));
  return kernelReports.map((kernelReport) => {
    const [, kernel, gpu] = ENTRY.exec(kernelReport)!;
    const spilled = /(\d+) bytes spill stores/.exec(kernelReport)?.[1] ?? Number.NaN;
    const registers = /Used (\d+) registers/.exec(kernelReport)?.[1] ?? Number.NaN;
    return { kernel: kernel!, gpu: gpu!, registers: Number(registers), spilled: Number(spilled) };
  });
}

/** What ptxas reports of wgmma that it had to serialize, or to fence by itself: notes C7500 and up. */
export function parseNotes(text: string): string[] {
  return text.split("\n").filter((line) => /\(C75\d\d\)/.test(line));
}

/** One line for each kernel that takes more than it may, or has no budget. */
export function listOverBudget(usages: readonly Usage[], budgets: readonly Budget[]): string[] {
  return usages.flatMap(({ kernel, gpu, registers, spilled }) => {
    const budget = budgets.find(({ kernels }) => kernels.test(kernel));
    if (budget !== undefined && registers <= budget.registers && spilled <= budget.spilled) return [];
    const allowanceText = budget ? `may take ${budget.registers} and ${budget.spilled}` : "has no budget";
    return [`${kernel} for ${gpu}: ${registers} registers, ${spilled} bytes spilled; ${allowanceText}`];
  });
}
