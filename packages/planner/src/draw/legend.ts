import type { Colouring, Style } from "./colouring.ts";
import { fitted, ink, page, rect, text, tip, widthOf } from "./svg.ts";

export interface Drawn {
  readonly svg: string;
  /** The first free line below. */
  readonly bottom: number;
}

/** Stripes of gradients, and of waiting. */
export const patterns = `<defs><pattern id="backward" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2.4" height="7" fill="#ffffff" fill-opacity="0.24"/></pattern>
<pattern id="waiting" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(-45)"><rect width="6" height="6" fill="#f7d9d4"/><rect width="1.6" height="6" fill="#b3261e"/></pattern></defs>`;

const SIZE = 13;

interface Entry {
  readonly name: string;
  readonly fills: readonly string[];
}

/** What the colours mean, from `top` on. */
export function legendOf({ compute, communication }: Colouring, top: number): Drawn {
  const plain = ({ name, fill }: Style): Entry => {
    return { name, fills: name.startsWith("attendBackward") ? [fill, "url(#backward)"] : [fill] };
  };
  const shared = compute.some(({ fill }) => communication.some((other) => other.fill === fill));
  const waiting = { name: "waits for transfers", fills: ["url(#waiting)"] };
  if (shared) {
    const all = [...new Set([...compute, ...communication])];
    return rowOf("colours", [...all.map(plain), waiting], top);
  }
  const first = rowOf("computes", [...compute.map(plain), waiting], top);
  const second = rowOf("transfers", communication.map(plain), first.bottom);
  return { svg: `${first.svg}\n${second.svg}`, bottom: second.bottom };
}

/** Entries side by side, wrapped at the margin, after a faint heading. */
export function rowOf(heading: string, entries: readonly Entry[], top: number): Drawn {
  if (entries.length === 0) return { svg: "", bottom: top };
  const first = page.edge + 88;
  let [x, y] = [first, top];
  const room = page.width - page.edge - first - 20;
  const drawn = entries.map(({ name: whole, fills }) => {
    const name = fitted(whole, SIZE, room);
    const width = widthOf(name, SIZE) + 44;
    if (x > first && x + width > page.width - page.edge) [x, y] = [first, y + 22];
    const box = { x, y: y - 11, width: 13, height: 13 };
    const svg =
      fills.map((fill) => rect(box, `fill="${fill}" rx="3"`)).join("") + text(x + 20, y, name, `font-size="${SIZE}"`);
    x += width;
    return name === whole ? svg : tip(whole, svg);
  });
  const head = text(page.edge, top, heading, `font-size="${SIZE}" fill="${ink.faint}"`);
  return { svg: [head, ...drawn].join("\n"), bottom: y + 24 };
}
