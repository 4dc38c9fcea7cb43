import type { ColorScheme, Style } from "./color-scheme.ts";
import { page, rect, text, textWidth, theme, tooltip, truncate } from "./svg.ts";

export interface Fragment {
  readonly svg: string;
  /** Position of the first free line below. */
  readonly bottom: number;
}

/** Stripe patterns for gradients and for waiting. */
export const hatchPatterns = `<defs><pattern id="backward" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.4" height="7" fill="#ffffff" fill-opacity="0.24"/></pattern>
<pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="6" height="6" fill="#f7d9d4"/><rect width="1.6" height="6" fill="#b3261e"/></pattern></defs>`;

const FONT_SIZE = 13;

interface LegendEntry {
  readonly name: string;
  readonly fills: readonly string[];
}

/** Draws the meaning of the colors, from `top` on. */
export function drawLegend({ compute, communication }: ColorScheme, top: number): Fragment {
  const toLegendEntry = ({ name, fill }: Style): LegendEntry => {
    return { name, fills: name.startsWith("attendBackward") ? [fill, "url(#backward)"] : [fill] };
  };
  const haveSharedColors = compute.some(({ fill }) => communication.some((other) => other.fill === fill));
  const waitEntry = { name: "waits for transfers", fills: ["url(#waiting)"] };
  if (haveSharedColors) {
    const styles = [...new Set([...compute, ...communication])];
    return drawLegendRow("colors", [...styles.map(toLegendEntry), waitEntry], top);
  }
  const computeRow = drawLegendRow("computes", [...compute.map(toLegendEntry), waitEntry], top);
  const transferRow = drawLegendRow("transfers", communication.map(toLegendEntry), computeRow.bottom);
  return { svg: `${computeRow.svg}\n${transferRow.svg}`, bottom: transferRow.bottom };
}

/** Draws entries side by side after a faint heading, wrapped at the margin. */
function drawLegendRow(heading: string, entries: readonly LegendEntry[], top: number): Fragment {
  if (entries.length === 0) return { svg: "", bottom: top };
  const entriesLeft = page.edge + 88;
  let [x, y] = [entriesLeft, top];
  const availableWidth = page.width - page.edge - entriesLeft - 20;
  const drawnEntries = entries.map(({ name: fullName, fills }) => {
    const name = truncate(fullName, FONT_SIZE, availableWidth);
    const width = textWidth(name, FONT_SIZE) + 44;
    if (x > entriesLeft && x + width > page.width - page.edge) [x, y] = [entriesLeft, y + 22];
    const box = { x, y: y - 11, width: 13, height: 13 };
    const svg =
      fills.map((fill) => rect(box, `fill="${fill}" rx="3"`)).join("") +
      text(x + 20, y, name, `font-size="${FONT_SIZE}"`);
    x += width;
    return name === fullName ? svg : tooltip(fullName, svg);
  });
  const headingSvg = text(page.edge, top, heading, `font-size="${FONT_SIZE}" fill="${theme.faint}"`);
  return { svg: [headingSvg, ...drawnEntries].join("\n"), bottom: y + 24 };
}
