import { type Timeline, timelineOf, timelineSvg } from "@mosaic/attention/planner";
import type { RankReport } from "./job.ts";
import type { Caption } from "./picture.ts";

/** What was predicted beside what was measured, rank by rank on one clock: the planner's own picture. */
export function comparison(predicted: Timeline, reports: readonly RankReport[], { title, subtitle }: Caption): string {
  return timelineSvg({ predicted, measured: measuredOf(reports) }, { title, subtitle });
}

/** From the start that all waited for; time in which compute stands still for collectives is no compute. */
function measuredOf(reports: readonly RankReport[]): Timeline {
  const begin = Math.min(...reports.map((report) => report.begin));
  const traces = reports.map(({ rank, at, events }) => {
    const after = events.filter(({ start }) => start / 1e9 >= begin);
    return { rank, at, events: after.filter(({ name }) => !name.startsWith("collective ")) };
  });
  return timelineOf(traces);
}
