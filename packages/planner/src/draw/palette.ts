/**
 * Colours that readers without red or green distinguish, too (after Okabe and Ito 2008; darker where white text stands
 * on them). Beyond them, hues a golden angle apart.
 */
const colours = ["#0072b2", "#d55e00", "#009e73", "#aa4499", "#e69f00", "#56b4e9", "#7a4b2a", "#999933"] as const;

/** What compute is drawn with, and what communication is: the two are never side by side in one lane. */
export const families = {
  compute: ["#0072b2", "#009e73", "#56b4e9", "#332288"],
  communication: ["#d55e00", "#e69f00", "#aa4499", "#7a4b2a"],
  rest: "#8a93a0",
} as const;

/** The colour of the i-th of many like things: ranks, for example. */
export function colourOf(i: number): string {
  return colours[i] ?? `hsl(${Math.round((i * 137.508) % 360)} ${[58, 44][i % 2]}% ${[38, 52, 66][i % 3]}%)`;
}

/** Black or white, whichever can be read on a colour of `families` or `colourOf`. */
export function inkOn(colour: string): string {
  return luminance(colour) > 0.36 ? "#1c2430" : "#ffffff";
}

/** Relative luminance after WCAG 2. */
function luminance(colour: string): number {
  const [red, green, blue] = colour.startsWith("#") ? ofHex(colour) : ofHsl(colour);
  const linear = (part: number): number => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
}

type Rgb = readonly [red: number, green: number, blue: number];

function ofHex(colour: string): Rgb {
  const part = (at: number): number => Number.parseInt(colour.slice(at, at + 2), 16) / 255;
  return [part(1), part(3), part(5)];
}

function ofHsl(colour: string): Rgb {
  const [hue, saturation, lightness] = colour.match(/\d+/g)!.map(Number) as [number, number, number];
  const reach = (saturation / 100) * Math.min(lightness / 100, 1 - lightness / 100);
  const part = (n: number): number => {
    const k = (n + hue / 30) % 12;
    return lightness / 100 - reach * Math.max(-1, Math.min(k - 3, 9 - k, 1));
  };
  return [part(0), part(8), part(4)];
}
