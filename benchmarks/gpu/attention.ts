import type { Bench, Case, Result } from "./bench.ts";
import { compare, type Comparison, type Times } from "./compare.ts";
import { passed } from "./gate.ts";
import { bytesOf, flopsOf, nameOf, problemOf, type Shape } from "./problem.ts";

/** The longest that a FlashAttention paper has comes first, then far ones: a run cut short has seen a bit of everything. */
export const lengths: readonly number[] = [16_384, 4096, 65_536, 1024, 8192, 32_768, 2048];
/** float16 is the same kernels with another instruction: a few sizes tell. */
export const fewerLengths: readonly number[] = [16_384, 4096];

/** All problems, in the order in which they are measured. */
export function shapesOf(all: readonly number[], fewer: readonly number[]): readonly Shape[] {
  const of = (dtype: Shape["dtype"], some: readonly number[]): readonly Shape[] =>
    some.flatMap((n) =>
      ([128, 64] as const).flatMap((d) =>
        (["full", "causal"] as const).flatMap((mask) =>
          (["forward", "backward"] as const).map((direction) => ({ direction, dtype, mask, d, n })),
        ),
      ),
    );
  const inFloat16 = all.filter((n) => fewer.includes(n));
  return [...of("bf16", all), ...of("fp16", inFloat16)];
}

/** One problem, everybody in turns. What did not pass the gate is left out. */
export function attentionCase(shape: Shape, kept: ReadonlyMap<string, Result>): Case {
  const name = `attention.${nameOf(shape)}`;
  return {
    name,
    part: "attention",
    async run(bench: Bench): Promise<Result> {
      const problem = problemOf(shape, bench.sizes);
      const right = await passed(bench, shape, kept);
      const contenders = (await bench.contenders()).filter((one) => right.has(one.name));
      const { times, refused } = withoutTwins(await compare(contenders, problem, bench.effort));
      return { case: name, problem, flops: flopsOf(problem), bytes: bytesOf(problem), times, refused };
    },
  };
}

/** Where Hopper has no kernels of its own, its column shall not show the portable ones under another name. */
function withoutTwins({ times, refused }: Comparison): Comparison {
  const { hopper, ...rest } = times;
  const namesOf = (time: Times | undefined): string => Object.keys(time?.kernels ?? {}).join();
  if (namesOf(hopper) !== namesOf(rest["portable"])) return { times, refused };
  return { times: rest, refused: hopper ? { ...refused, hopper: "the portable kernels ran" } : refused };
}
