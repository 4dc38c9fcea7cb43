import type { Mesh2DOptions } from "../src/index.ts";

export type ScheduleVariant = Pick<Mesh2DOptions, "schedule" | "channels">;

/** How mesh2d can go about it: everything that is sent and computed must be the same. */
export const scheduleVariants: readonly ScheduleVariant[] = [
  { schedule: "fused" },
  { schedule: "overlapped" },
  { schedule: "overlapped", channels: 2 },
];

export function formatTitle({ schedule, channels }: ScheduleVariant): string {
  return channels === 2 ? `${schedule} on two channels` : `${schedule}`;
}
