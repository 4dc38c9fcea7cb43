/** Resources of one kernel for one GPU, as reported by ptxas. */
export interface Usage {
  readonly kernel: string;
  readonly gpu: string;
  readonly registers: number;
  /** Bytes of spill stores: registers that are saved to memory and loaded back because there are too few. */
  readonly spilled: number;
}

/** Limits for a kernel: the first budget whose pattern matches its name applies. */
export interface Budget {
  readonly kernels: RegExp;
  readonly registers: number;
  readonly spilled: number;
}

const ENTRY = /Compiling entry function '(\w+)' for '(\w+)'/;

/** Parses the output of `ptxas -v`. */
export function parseUsages(text: string): Usage[] {
  const kernelReports = text.split(/^(?=.*Compiling entry function)/m).filter((part) => ENTRY.test(part));
  return kernelReports.map((kernelReport) => {
    const [, kernel, gpu] = ENTRY.exec(kernelReport)!;
    const spilled = /(\d+) bytes spill stores/.exec(kernelReport)?.[1] ?? Number.NaN;
    const registers = /Used (\d+) registers/.exec(kernelReport)?.[1] ?? Number.NaN;
    return { kernel: kernel!, gpu: gpu!, registers: Number(registers), spilled: Number(spilled) };
  });
}

/** Returns ptxas's notes on wgmma that it serialized or fenced itself: C7500 and up. */
export function parseNotes(text: string): string[] {
  return text.split("\n").filter((line) => /\(C75\d\d\)/.test(line));
}

/** Returns one line per kernel that exceeds its budget or has none. */
export function listOverBudget(usages: readonly Usage[], budgets: readonly Budget[]): string[] {
  return usages.flatMap(({ kernel, gpu, registers, spilled }) => {
    const budget = budgets.find(({ kernels }) => kernels.test(kernel));
    if (budget !== undefined && registers <= budget.registers && spilled <= budget.spilled) return [];
    const allowanceText = budget ? `may take ${budget.registers} and ${budget.spilled}` : "has no budget";
    return [`${kernel} for ${gpu}: ${registers} registers, ${spilled} bytes spilled; ${allowanceText}`];
  });
}
