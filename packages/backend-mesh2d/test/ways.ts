import type { Mesh2DOptions } from "../src/index.ts";

export type ScheduleVariant = Pick<Mesh2DOptions, "schedule" | "channels">;

/** The schedule variants of mesh2d, all of which must send and compute the same. */
export const scheduleVariants: readonly ScheduleVariant[] = [
  { schedule: "fused" },
  { schedule: "overlapped" },
  { schedule: "overlapped", channels: 2 },
];

export function formatTitle({ schedule, channels }: ScheduleVariant): string {
  return channels === 2 ? `${schedule} on two channels` : `${schedule}`;
}
