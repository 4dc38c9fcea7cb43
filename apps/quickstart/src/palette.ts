const PALETTE = ["#3366cc", "#e08214", "#2a9d6f", "#b5446e", "#7a5cc4", "#8c6d46", "#1f9bb3", "#a3a124"];

export const FAINT = "#69727f";

/** A rank's colour: eight chosen ones, then hues a golden angle apart. */
export function colour(rank: number): string {
  return PALETTE[rank] ?? `hsl(${Math.round((rank * 137.508) % 360)} 48% ${rank % 2 === 0 ? 42 : 54}%)`;
}
