import { rect, text, tip } from "@mosaic/planner/svg";
import { type Gene, genes, type Role } from "../genes.ts";
import { type Axis, line, note } from "./plot.ts";

const colours: Readonly<Record<Role, string>> = {
  head: "#3366cc",
  tail: "#2a9d6f",
  recombination: "#e08214",
  control: "#b5446e",
  replication: "#7a5cc4",
  lysis: "#8c6d46",
  other: "#a8b0bb",
};

const HEIGHT = 13;
const NAME = 'text-anchor="middle" font-size="9.5" fill="#ffffff"';

/** Pixels that the map takes. */
export const GENE_MAP_HEIGHT = 64;

/** λ's genes along an axis of bases, from y down: rightward ones above the line, leftward ones below. */
export function geneMap(axis: Axis, y: number, bases: number): readonly string[] {
  const middle = y + 26;
  return [
    line([axis(0), middle, axis(bases), middle], 'stroke="#69727f" stroke-width="1"'),
    ...genes.map((gene) => drawn(gene, axis, middle)),
    ...legend(axis(0), y + GENE_MAP_HEIGHT - 4),
  ];
}

function drawn(gene: Gene, axis: Axis, middle: number): string {
  const { name, start, end, complement, role } = gene;
  const [x, width] = [axis(start), axis(end) - axis(start)];
  const top = complement ? middle + 2 : middle - 2 - HEIGHT;
  const box = rect({ x, y: top, width, height: HEIGHT }, `fill="${colours[role]}" rx="1.5"`);
  const fits = width > 6.5 * name.length + 2;
  const words = fits ? [text(x + width / 2, top + 10, name, NAME)] : [];
  return tip(`${name}: ${start}–${end}${complement ? ", complement" : ""}, ${role}`, [box, ...words].join(""));
}

function legend(left: number, y: number): readonly string[] {
  return Object.entries(colours).flatMap(([role, colour], i) => [
    rect({ x: left + i * 104, y: y - 9, width: 10, height: 10 }, `fill="${colour}" rx="1.5"`),
    note({ x: left + i * 104 + 15, y }, role),
  ]);
}
