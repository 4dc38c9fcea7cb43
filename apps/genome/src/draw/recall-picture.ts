import { rect } from "@mosaic/planner/svg";
import type { Comparison, MethodResult, PlantedResult, PlantedRun } from "../results.ts";
import { type Axis, paletteColor, curve, label, line, linearAxis, note, svg, ticks } from "./plot.ts";

const [WIDTH, HEIGHT] = [880, 470];
const [TOP, BOTTOM] = [110, 390];
/** What routing is to reach on planted repeats. */
const TARGET_RECALL = 0.95;

/** On the left λ itself, chosen chunks against exact attention's mass; on the right planted repeats, found ones by steps. */
export function recallPicture({ methods }: Comparison, { runs }: PlantedResult): string {
  const y = linearAxis([0, 1], [BOTTOM, TOP]);
  const { chunks, chunkLength } = runs[0]!.settings;
  return svg(
    {
      width: WIDTH,
      height: HEIGHT,
      title: "Does the router find what attention would look at?",
      subtitle: `held-out sequences; planted: ${chunks} chunks of ${chunkLength} bases, ${runs.length} seeds, ${runs[0]!.pairs} pairs each`,
    },
    [...bars(methods, y), ...plantedBars(runs, y)],
  );
}

const seedColor = (i: number): string => paletteColor([0, 1, 4][i % 3]!);

function grid(y: Axis, [left, right]: readonly [number, number], title: string): readonly string[] {
  return [
    label({ x: left, y: TOP - 16 }, title, 'font-weight="700"'),
    ...ticks([0, 1]).flatMap((share) => [
      line([left, y(share), right, y(share)], 'stroke="#e4e8ee"'),
      note({ x: left - 8, y: y(share) + 4 }, share.toFixed(1), 'text-anchor="end"'),
    ]),
  ];
}

function bars(methods: readonly MethodResult[], y: Axis): readonly string[] {
  const [left, right] = [64, 404];
  const routed = methods.filter(({ recall }) => recall);
  const wide = (right - left) / routed.length;
  return [
    ...grid(y, [left, right], "λ: chosen chunks and exact attention's"),
    ...routed.flatMap(({ name, recall }, i) => {
      const x = left + i * wide + wide / 2;
      const { recall: share, captured, chance } = recall!;
      const bar = (at: number, value: number, fill: string): string =>
        rect({ x: at, y: y(value), width: 30, height: BOTTOM - y(value) }, `fill="${fill}"`);
      return [
        bar(x - 34, share, paletteColor(0)),
        note({ x: x - 19, y: y(share) - 5 }, share.toFixed(2), 'text-anchor="middle"'),
        bar(x + 4, captured, paletteColor(2)),
        note({ x: x + 19, y: y(captured) - 5 }, captured.toFixed(2), 'text-anchor="middle"'),
        line([x - 40, y(chance), x + 40, y(chance)], 'stroke="#b5446e" stroke-width="1.5" stroke-dasharray="4 3"'),
        label({ x, y: BOTTOM + 18 }, name, 'text-anchor="middle"'),
      ];
    }),
    ...legend(left, [
      [paletteColor(0), "share of its best chunks that were chosen"],
      [paletteColor(2), "mass on the chosen over mass on the best"],
      ["#b5446e", "dashed: recall by chance"],
    ]),
  ];
}

function plantedBars(runs: readonly PlantedRun[], y: Axis): readonly string[] {
  const [left, right] = [500, 840];
  const steps = Math.max(...runs.flatMap(({ curve: entries }) => entries.map(({ step }) => step)));
  const x = linearAxis([0, steps], [left, right]);
  const { chance } = runs[0]!;
  return [
    ...grid(y, [left, right], "planted repeats: source among the two chosen"),
    ...ticks([0, steps]).map((step) => note({ x: x(step), y: BOTTOM + 18 }, String(step), 'text-anchor="middle"')),
    note({ x: right, y: BOTTOM + 34 }, "steps", 'text-anchor="end"'),
    line([left, y(TARGET_RECALL), right, y(TARGET_RECALL)], 'stroke="#2a9d6f" stroke-width="1.2"'),
    note({ x: left + 4, y: y(TARGET_RECALL) + 14 }, `goal ${TARGET_RECALL}`),
    line([left, y(chance), right, y(chance)], 'stroke="#b5446e" stroke-width="1.5" stroke-dasharray="4 3"'),
    ...runs.map(({ curve: entries }, i) => {
      const points = entries.map(({ step, held }) => [x(step), y(held!.recall!)] as const);
      return curve(points, `stroke="${seedColor(i)}" stroke-width="1.8"`);
    }),
    ...legend(
      left,
      runs.map(({ settings, recall }, i) => [seedColor(i), `seed ${settings.seed}: ${recall.toFixed(3)} in the end`]),
    ),
  ];
}

function legend(left: number, entries: readonly (readonly [fill: string, words: string])[]): readonly string[] {
  return entries.flatMap(([fill, words], i) => [
    rect({ x: left, y: BOTTOM + 30 + i * 16, width: 10, height: 10 }, `fill="${fill}"`),
    note({ x: left + 16, y: BOTTOM + 39 + i * 16 }, words),
  ]);
}
