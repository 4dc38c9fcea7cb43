import type { Bench, Case, Result } from "./bench.ts";
import { compare, type Comparison, type Times } from "./compare.ts";
import { passed } from "./gate.ts";
import { bytesOf, flopsOf, nameOf, problemOf, type Shape } from "./problem.ts";

export const lengths: readonly number[] = [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];
/** float16 is the same kernels with another instruction: a few sizes tell. */
export const fewerLengths: readonly number[] = [4096, 16_384];

/** All problems, in the order in which they are measured: what the goals are about first. */
export function shapesOf(all: readonly number[], fewer: readonly number[]): readonly Shape[] {
  const inFloat16 = all.filter((n) => fewer.includes(n));
  return (["bf16", "fp16"] as const).flatMap((dtype) =>
    ([128, 64] as const).flatMap((d) =>
      (["full", "causal"] as const).flatMap((mask) =>
        (["forward", "backward"] as const).flatMap((direction) =>
          (dtype === "bf16" ? all : inFloat16).map((n) => ({ direction, dtype, mask, d, n })),
        ),
      ),
    ),
  );
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
