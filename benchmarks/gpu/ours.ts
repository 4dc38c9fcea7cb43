import type * as mosaic from "@mosaic/attention";
import type { Contender, Errors, Sample } from "./contender.ts";
import { lapsOf } from "./laps.ts";
import { attend, disposeAll, drawOperands, type Operands, takeGradients } from "./operands.ts";
import type { Problem } from "./problem.ts";
import { checkAgainstDefinition, checkSamples } from "./right.ts";

/** Operands take turns, so that no run finds what the one before it left in the cache. */
const OPERAND_SETS = 2;

/** Mosaic's attention on one device, through the TypeScript API: from q, k, v in 16 bits to results in 16 bits. */
export class Ours implements Contender {
  readonly name: string;
  readonly #ctx: mosaic.Context;
  #problem: Problem | undefined;
  #sets: readonly Operands[] = [];

  constructor(name: string, ctx: mosaic.Context) {
    this.name = name;
    this.#ctx = ctx;
  }

  check(problem: Problem): Promise<Errors> {
    return checkAgainstDefinition(this.#ctx, problem);
  }

  /** Beside warming up it looks at some rows of the result: a kernel may be right at one size and wrong at another. */
  async prepare(problem: Problem): Promise<number> {
    await this.release();
    this.#problem = problem;
    this.#sets = Array.from({ length: OPERAND_SETS }, () => drawOperands(this.#ctx, problem));
    await checkSamples(this.#ctx, this.#sets[0]!, problem);
    const { seconds } = await this.sample(1);
    return seconds[0]!;
  }

  async sample(count: number): Promise<Sample> {
    const turns = Array.from({ length: count + 1 }, (_, turn) => this.#sets[turn % OPERAND_SETS]!);
    const isForward = this.#problem!.direction === "forward";
    const laps = await lapsOf(
      this.#ctx.device,
      turns.flatMap((operands) => (isForward ? [this.#forward(operands)] : this.#backward(operands))),
    );
    const told = laps.slice(isForward ? 1 : 2).filter((_, i) => isForward || i % 2 === 1);
    const names = Object.keys(told[0]!.kernels);
    const mean = (name: string): number => told.reduce((sum, { kernels }) => sum + kernels[name]!, 0) / told.length;
    return {
      seconds: told.map(({ seconds }) => seconds),
      kernels: Object.fromEntries(names.map((name) => [name, mean(name)])),
    };
  }

  #forward(operands: Operands): () => void {
    return () => attend(this.#ctx, operands, this.#problem!).dispose();
  }

  /** The forward is a step of its own, that nobody looks at. */
  #backward(operands: Operands): [() => void, () => void] {
    let out: mosaic.Tensor;
    return [
      () => {
        out = attend(this.#ctx, operands, this.#problem!);
      },
      () => {
        out.backward(operands[3]);
        out.dispose();
        disposeAll(takeGradients(operands));
      },
    ];
  }

  async release(): Promise<void> {
    for (const operands of this.#sets) disposeAll(operands);
    this.#sets = [];
    this.#problem = undefined;
    await this.#ctx.device.stream.synchronize();
  }
}
