import { formatBytes, formatSeconds } from "@mosaic/attention/planner";
import { rect, text, tooltip } from "@mosaic/planner/svg";
import { formatPayloads, formatPayloadKinds, formatRankRanges, formatRanks } from "./format.ts";
import type { Block, Interval, Lane, Transfer } from "./timeline.ts";

const PALETTE = ["#3366cc", "#e08214", "#2a9d6f", "#b5446e", "#7a5cc4", "#8c6d46", "#1f9bb3", "#a3a124"];

export const GRAY = "#69727f";

/** Returns a rank's color: one of eight fixed colors, then hues a golden angle apart. */
export function rankColor(rank: number): string {
  return PALETTE[rank] ?? `hsl(${Math.round((rank * 137.508) % 360)} 48% ${rank % 2 === 0 ? 42 : 54}%)`;
}

const TRACK_COLOR = "#eef1f5";

/** Position and scale of a lane. */
export interface LaneContext {
  readonly x: (time: number) => number;
  /** Time at the right edge of the picture. */
  readonly end: number;
  readonly top: number;
  readonly sizes: LaneSizes;
  /** Number of ranks. */
  readonly ranks: number;
  /** Whether ranks compute attention of other ranks' queries, so that the owners of queries must be shown. */
  readonly shouldShowQueries: boolean;
}

/** Heights of a lane's rows, and the size of the text in them. */
interface LaneSizes {
  /** Total height of a rank's lane. */
  readonly laneHeight: number;
  readonly computeHeight: number;
  readonly sendHeight: number;
  readonly fontSize: number;
}

/** Returns the sizes of lanes. The more ranks, the thinner their rows. */
export function getLaneSizes(ranks: number): LaneSizes {
  if (ranks <= 8) return { laneHeight: 62, computeHeight: 28, sendHeight: 12, fontSize: 13 };
  return ranks <= 16
    ? { laneHeight: 40, computeHeight: 18, sendHeight: 8, fontSize: 11 }
    : { laneHeight: 24, computeHeight: 11, sendHeight: 5, fontSize: 9 };
}

/** Draws what one rank computed and, below it, what it sent, without the labels beside the lane. */
export function drawLane(lane: Lane, context: LaneContext): string {
  const { x, end, top, sizes } = context;
  const sendTop = communicationTop(context);
  const track = { x: x(0), width: x(end) - x(0) };
  return [
    rect({ ...track, y: top, height: sizes.computeHeight }, `fill="${TRACK_COLOR}" rx="3"`),
    rect({ ...track, y: sendTop, height: sizes.sendHeight }, `fill="${TRACK_COLOR}" rx="2"`),
    ...lane.computeBlocks.map((block) => drawBlock(block, context)),
    ...lane.computeBlocks.map((block) => drawBlockLabel(block, lane.rank, context)),
    ...lane.transfers.map((transfer) => drawTransfer(transfer, context)),
    ...lane.transfers.map((transfer, i) => drawTransferSize(transfer, lane.transfers[i + 1]?.start ?? end, context)),
  ].join("\n");
}

export function communicationTop({ top, sizes }: LaneContext): number {
  return top + sizes.computeHeight + 3;
}

/** Draws a block in the colors of the ranks that own its keys and values, and its queries along the lower edge. */
function drawBlock(block: Block, context: LaneContext): string {
  const { top, sizes, ranks, shouldShowQueries } = context;
  const edgeHeight = shouldShowQueries ? sizes.computeHeight / 4 : 0;
  const { queries, keys, isBackward } = block;
  const tooltipText = `${formatStage(block)}queries of ${formatRanks(queries, ranks)} attend to keys and values of ${formatRanks(keys, ranks)}${isBackward ? ", backward" : ""}: ${formatInterval(block)}`;
  const queryBandContext = { context, y: top + sizes.computeHeight - edgeHeight + 1, height: edgeHeight - 1 };
  return tooltip(
    tooltipText,
    drawBands(block, keys, { context, y: top, height: sizes.computeHeight - edgeHeight }) +
      (edgeHeight > 0 ? drawBands(block, queries, queryBandContext) : ""),
  );
}

function drawTransfer(transfer: Transfer, context: LaneContext): string {
  const { payloads, isBackward } = transfer;
  const ownerRanks = [...new Set(payloads.flatMap(({ owners }) => owners))].toSorted((a, b) => a - b);
  const tooltipText = `${formatStage(transfer)}sends ${formatBytes(transfer.bytes)}, ${formatPayloads(payloads, context.ranks)}${isBackward ? ", backward" : ""}: ${formatInterval(transfer)}`;
  return tooltip(
    tooltipText,
    drawBands(transfer, ownerRanks, { context, y: communicationTop(context), height: context.sizes.sendHeight }),
  );
}

interface BandContext {
  readonly context: LaneContext;
  readonly y: number;
  readonly height: number;
}

/** Draws a bar in the colors of several ranks, one above the other. Backward bars are striped. */
function drawBands(
  bar: Interval & { readonly isBackward: boolean },
  ranks: readonly number[],
  { context, y, height }: BandContext,
): string {
  const x = context.x(bar.start);
  const width = Math.max(2, context.x(bar.end) - x - 0.8);
  const bandHeight = height / Math.max(1, ranks.length);
  const radiusAttribute = `rx="${ranks.length > 1 ? 0 : Math.min(3, width / 2, height / 2)}"`;
  const bandRects = ranks.map((rank, i) =>
    rect({ x, y: y + i * bandHeight, width, height: bandHeight }, `fill="${rankColor(rank)}" ${radiusAttribute}`),
  );
  const stripes = bar.isBackward ? [rect({ x, y, width, height }, `fill="url(#backward)" ${radiusAttribute}`)] : [];
  return [...bandRects, ...stripes].join("");
}

/** Returns for example "stage 2: ", or an empty string. */
function formatStage({ stage }: { readonly stage?: number }): string {
  return stage === undefined ? "" : `stage ${stage}: `;
}

function formatInterval({ start, end }: Interval): string {
  return `${formatSeconds(start)} to ${formatSeconds(end)}`;
}

/** Draws the longest label that fits into the block. */
function drawBlockLabel(block: Block, rank: number, { x, top, sizes, ranks, shouldShowQueries }: LaneContext): string {
  const { queries, keys, isBackward, stage } = block;
  const gradientSign = isBackward ? "∇ " : "";
  const shortLabels = stage === undefined ? [] : [`${gradientSign}stage ${stage}`, `${stage}`];
  const [q, kv] = [formatRankRanges(queries), formatRankRanges(keys)];
  const labelChoices =
    q === String(rank)
      ? [
          `${formatStage(block)}${gradientSign}K, V of ${formatRanks(keys, ranks)}`,
          ...(stage === undefined ? [`${gradientSign}K, V of ${formatRanks(keys, ranks)}`, kv] : shortLabels),
        ]
      : q === kv
        ? [`${gradientSign}Q, K, V of ${formatRanks(keys, ranks)}`, `${gradientSign}Q, K, V ${kv}`, kv]
        : [
            `${gradientSign}Q of ${formatRanks(queries, ranks)}, K, V of ${formatRanks(keys, ranks)}`,
            `${gradientSign}Q ${q} · K, V ${kv}`,
            `${q} · ${kv}`,
          ];
  const width = x(block.end) - x(block.start);
  const label = labelChoices.find(
    (candidate) => candidate.length * sizes.fontSize * 0.58 + sizes.fontSize * 0.6 < width,
  );
  if (label === undefined) return "";
  const y =
    top + (shouldShowQueries ? sizes.computeHeight * 0.375 + sizes.fontSize * 0.36 : sizes.computeHeight * 0.68);
  const haloAttributes = `paint-order="stroke" stroke="#1c2430" stroke-opacity="${keys.length > 1 ? 0.5 : 0}" stroke-width="3"`;
  const textAttributes = `text-anchor="middle" font-size="${sizes.fontSize}" fill="#ffffff" font-weight="550" ${haloAttributes}`;
  return text((x(block.start) + x(block.end)) / 2, y, label, textAttributes);
}

/** Labels a transfer with its content, size and duration, after its bar, if there is room before the next. */
function drawTransferSize(transfer: Transfer, maxTime: number, context: LaneContext): string {
  const { x, sizes } = context;
  const fontSize = sizes.sendHeight - 1;
  if (fontSize < 8) return "";
  const labelLeft = Math.max(x(transfer.end), x(transfer.start) + 2) + 4;
  const sizeText = `${formatBytes(transfer.bytes)} in ${formatSeconds(transfer.end - transfer.start)}`;
  const kindsText = formatPayloadKinds(transfer.payloads);
  const stageText = formatStage(transfer);
  const label = [
    `${stageText}${kindsText}, ${sizeText}`,
    `${stageText}${kindsText}`,
    `${kindsText}, ${sizeText}`,
    sizeText,
  ].find((candidate) => candidate.length * fontSize * 0.6 < x(maxTime) - labelLeft);
  return label
    ? text(
        labelLeft,
        communicationTop(context) + sizes.sendHeight * 0.85,
        label,
        `font-size="${fontSize}" fill="${GRAY}"`,
      )
    : "";
}
