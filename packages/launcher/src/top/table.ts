import { othersWaitingShare, type RankSample, type WorldSample } from "./sample.ts";

/** Format of the table. */
export interface TableStyle {
  readonly color: boolean;
  /** Width and height of the terminal; undefined without a terminal. */
  readonly columns: number | undefined;
  readonly rows: number | undefined;
}

interface Column {
  readonly title: string;
  /** The column is omitted on narrower terminals. */
  readonly minColumns: number;
  cell(rank: RankSample): string;
}

const COLUMNS: readonly Column[] = [
  { title: "RANK", minColumns: 0, cell: ({ rank }) => `${rank}` },
  { title: "HOST", minColumns: 110, cell: ({ host }) => host.slice(0, 16) },
  { title: "STEP", minColumns: 60, cell: ({ steps }) => (steps ? `${steps}` : "–") },
  { title: "STEP TIME", minColumns: 0, cell: ({ stepMs }) => formatTime(stepMs) },
  { title: "WAITING", minColumns: 0, cell: ({ waitingShare }) => formatShare(waitingShare) },
  { title: "SENT/s", minColumns: 80, cell: (rank) => formatBytes(rank.sentBytesPerSecond) },
  { title: "RECEIVED/s", minColumns: 90, cell: (rank) => formatBytes(rank.receivedBytesPerSecond) },
  { title: "MEMORY", minColumns: 70, cell: ({ residentBytes }) => formatBytes(residentBytes) },
  { title: "DEVICE", minColumns: 100, cell: ({ deviceBytes }) => formatBytes(deviceBytes) },
];

const [YELLOW, RED, GREY, BOLD] = [33, 31, 90, 1];
/** Number of lines besides the rows: title, headings, and the summary below. */
const FIXED_LINE_COUNT = 3;

/** Formats a world as lines: a row for each rank, with the slowest rank marked and named in the summary. */
export function formatTable(sample: WorldSample, style: TableStyle): readonly string[] {
  const width = style.columns ?? Number.POSITIVE_INFINITY;
  const colorize = (code: number | undefined, text: string): string =>
    style.color && code !== undefined ? `\u001b[${code}m${text}\u001b[0m` : text;
  const columns = COLUMNS.filter(({ minColumns }) => width >= minColumns);
  const visibleRanks = selectVisibleRanks(sample, style.rows);
  const cells = visibleRanks.map((rank) => columns.map((column) => column.cell(rank)));
  const widths = columns.map(({ title }, i) =>
    Math.max(title.length, ...cells.map((row) => (row[i] as string).length)),
  );
  const formatLine = (row: readonly string[], trailingText: string): string =>
    `${row.map((cell, i) => cell.padStart(widths[i] as number)).join("  ")}  ${trailingText}`.slice(0, width);
  const title = `${sample.world}, attempt ${sample.attempt}, ${sample.size} ranks`;
  const heading = columns.map((column) => column.title);
  const rows = visibleRanks.map((rank, i) =>
    colorize(rankColor(rank, sample), formatLine(cells[i] as string[], positionText(rank))),
  );
  return [
    title.slice(0, width),
    colorize(BOLD, formatLine(heading, "POSITION")),
    ...rows,
    formatSummary(sample, visibleRanks).slice(0, width),
  ];
}

/**
 * Returns all ranks, or as many as fit. Ranks that wait least and ranks without a waiting share, such as lost ones, are
 * preferred.
 */
function selectVisibleRanks(
  { ranks, slowestRank }: WorldSample,
  rows = Number.POSITIVE_INFINITY,
): readonly RankSample[] {
  const maxRows = Math.max(1, rows - FIXED_LINE_COUNT - 1);
  if (ranks.length <= maxRows) return ranks;
  const sortKey = (rank: RankSample): number => (rank.rank === slowestRank ? -2 : (rank.waitingShare ?? -1));
  return ranks
    .toSorted((a, b) => sortKey(a) - sortKey(b) || a.rank - b.rank)
    .slice(0, maxRows)
    .toSorted((a, b) => a.rank - b.rank);
}

function formatSummary({ ranks, slowestRank }: WorldSample, visibleRanks: readonly RankSample[]): string {
  const hiddenRankCount = ranks.length - visibleRanks.length;
  const hiddenText = hiddenRankCount > 0 ? `   ${hiddenRankCount} more ranks` : "";
  if (ranks.every(({ waitingShare }) => waitingShare === null)) return `sampling${hiddenText}`;
  const slowestSample = ranks.find(({ rank }) => rank === slowestRank);
  if (slowestSample === undefined) return `no rank is slower than the others${hiddenText}`;
  const [slowestShare, othersShare] = [
    slowestSample.waitingShare,
    othersWaitingShare(ranks, slowestSample.rank) ?? null,
  ];
  return `slowest: rank ${slowestSample.rank}; it waits ${formatShare(slowestShare)} of the time, the others ${formatShare(othersShare)}${hiddenText}`;
}

function rankColor({ rank, activity }: RankSample, { slowestRank }: WorldSample): number | undefined {
  if (rank === slowestRank) return YELLOW;
  if (activity === "failed") return RED;
  return activity === "exited" || activity === "unknown" ? GREY : undefined;
}

function positionText({ activity, operation, lastOperation }: RankSample): string {
  switch (activity) {
    case "running":
      return `in ${operation}`;
    case "computing":
      return `computing, before ${operation}`;
    case "idle":
      return lastOperation === "" ? "idle" : `idle, after ${lastOperation}`;
    case "unknown":
      return "no reply";
    default:
      return activity;
  }
}

function formatTime(ms: number | null): string {
  if (ms === null) return "–";
  return ms < 999.5 ? `${formatDigits(ms)} ms` : `${formatDigits(ms / 1000)} s`;
}

/** Formats a number with three digits, or with all digits before the point if there are more. */
const formatDigits = (value: number): string => (value < 99.95 ? value.toPrecision(3) : String(Math.round(value)));

const formatShare = (share: number | null): string => (share === null ? "–" : `${Math.round(100 * share)} %`);

function formatBytes(bytes: number | null): string {
  if (bytes === null) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  // Values that would be rounded to 1000 have the next unit.
  const fittingIndex = units.findIndex((_, i) => bytes / 1000 ** i < 999.5);
  const unitIndex = fittingIndex < 0 ? units.length - 1 : fittingIndex;
  const value = bytes / 1000 ** unitIndex;
  return `${unitIndex === 0 ? Math.round(value) : formatDigits(value)} ${units[unitIndex]}`;
}
