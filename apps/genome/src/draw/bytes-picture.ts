import { rect } from "@mosaic/planner/svg";
import type { Comparison, MethodResult } from "../results.ts";
import { paletteColor, curve, label, line, linearAxis, logAxis, note, svg, ticks } from "./plot.ts";

const [WIDTH, HEIGHT] = [880, 520];
const frame = { left: 150, right: 740, top: 84, bottom: 450 } as const;
/** Where those stand that move nothing. */
const ZERO_BYTES_X = 92;

/** How well each method does after how much it has moved. */
export function bytesPicture({ methods }: Comparison): string {
  const points = methods.flatMap(({ curve: entries }) => entries);
  const moved = points.map(({ bytes }) => bytes).filter((bytes) => bytes > 0);
  const losses = points.map(({ held }) => held!.loss);
  const range = [Math.min(...moved) / 1.5, Math.max(...moved) * 1.5] as const;
  const heights = [Math.min(...losses) - 0.005, Math.max(...losses) + 0.005] as const;
  const x = logAxis(range, [frame.left, frame.right]);
  const y = linearAxis(heights, [frame.bottom, frame.top]);
  const decades = Array.from({ length: 39 }, (_, i) => [1, 2, 5][i % 3]! * 10 ** Math.floor(i / 3)).filter(
    (each) => each >= range[0] && each <= range[1],
  );
  const { settings } = methods[0]!;
  return svg(
    {
      width: WIDTH,
      height: HEIGHT,
      title: "Loss against bytes moved, at equal compute",
      subtitle: `${settings.chunks} chunks of ${settings.chunkLength} bases over ${settings.ranks} ranks, seed ${settings.seed}; each method has ring's multiply-adds`,
    },
    [
      rect({ x: ZERO_BYTES_X - 22, y: frame.top, width: 44, height: frame.bottom - frame.top }, 'fill="#f3f5f8"'),
      note({ x: ZERO_BYTES_X, y: frame.bottom + 18 }, "nothing", 'text-anchor="middle"'),
      ...ticks(heights).flatMap((loss) => [
        line([frame.left, y(loss), frame.right, y(loss)], 'stroke="#e4e8ee"'),
        note({ x: ZERO_BYTES_X - 30, y: y(loss) + 4 }, loss.toFixed(2), 'text-anchor="end"'),
      ]),
      ...decades.flatMap((bytes) => [
        line([x(bytes), frame.top, x(bytes), frame.bottom], 'stroke="#e4e8ee"'),
        note({ x: x(bytes), y: frame.bottom + 18 }, formatBytes(bytes), 'text-anchor="middle"'),
      ]),
      note(
        { x: (frame.left + frame.right) / 2, y: frame.bottom + 40 },
        "sent by attention so far, all ranks, forward and backward",
        'text-anchor="middle"',
      ),
      note({ x: 32, y: 76 }, "cross-entropy of hidden bases, held out (nats)"),
      ...methods.flatMap((method, i) => drawMethod(method, i, { x, y })),
    ],
  );
}

function drawMethod(
  { name, curve: entries }: MethodResult,
  i: number,
  { x, y }: { x: (bytes: number) => number; y: (loss: number) => number },
): readonly string[] {
  const at = (bytes: number): number => (bytes > 0 ? x(bytes) : ZERO_BYTES_X);
  const points = entries.map(({ bytes, held }) => [at(bytes), y(held!.loss)] as const);
  const last = points.at(-1)!;
  const { step, bytes, held } = entries.at(-1)!;
  const formatBytes = `${name}: ${held!.loss.toFixed(3)} after ${step} steps`;
  const key = frame.top + 12 + i * 34;
  return [
    curve(points, `stroke="${paletteColor(i)}" stroke-width="1.6" stroke-linejoin="round" opacity="0.85"`),
    `<circle cx="${last[0].toFixed(1)}" cy="${last[1].toFixed(1)}" r="4.5" fill="${paletteColor(i)}"><title>${formatBytes}</title></circle>`,
    rect({ x: frame.right + 14, y: key - 9, width: 10, height: 10 }, `fill="${paletteColor(i)}"`),
    label({ x: frame.right + 30, y: key }, name),
    note({ x: frame.right + 30, y: key + 14 }, `${held!.loss.toFixed(4)}, ${formatMegabytes(bytes)}`),
  ];
}

const formatBytes = (bytes: number): string =>
  bytes >= 1e9 ? `${bytes / 1e9} GB` : bytes >= 1e6 ? `${bytes / 1e6} MB` : `${bytes / 1e3} kB`;
const formatMegabytes = (bytes: number): string =>
  bytes === 0 ? "0 MB" : `${Number((bytes / 1e6).toPrecision(3))} MB`;
