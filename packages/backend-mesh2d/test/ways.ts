import type { Mesh2DOptions } from "../src/index.ts";

export type Way = Pick<Mesh2DOptions, "form" | "channels">;

/** How mesh2d can go about it: everything that is sent and computed must be the same. */
export const ways: readonly Way[] = [{ form: "fused" }, { form: "scheduled" }, { form: "scheduled", channels: 2 }];

export function titleOf({ form, channels }: Way): string {
  return channels === 2 ? `${form} on two channels` : `${form}`;
}
