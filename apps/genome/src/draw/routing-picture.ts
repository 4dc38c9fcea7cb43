import { rect, text, tooltip } from "@mosaic/planner/svg";
import { type Gene, genes, type Role } from "../genome.ts";
import type { MethodResult } from "../results.ts";
import type { RoutingMap } from "../evaluation.ts";
import { type AxisScale, svgLine, linearAxis, smallText, svg, axisTicks } from "@mosaic/program";

const roleColors: Readonly<Record<Role, string>> = {
  head: "#3366cc",
  tail: "#2a9d6f",
  recombination: "#e08214",
  control: "#b5446e",
  replication: "#7a5cc4",
  lysis: "#8c6d46",
  other: "#a8b0bb",
};

const GENE_HEIGHT = 13;
const LABEL_STYLE = 'text-anchor="middle" font-size="9.5" fill="#ffffff"';

/** Height of the gene map in pixels. */
const GENE_MAP_HEIGHT = 64;

/** Draws λ's genes along an axis of bases, below y: rightward genes above the line, leftward genes below it. */
function drawGeneMap(axis: AxisScale, y: number, numBases: number): readonly string[] {
  const middleY = y + 26;
  return [
    svgLine([axis(0), middleY, axis(numBases), middleY], 'stroke="#69727f" stroke-width="1"'),
    ...genes.map((gene) => drawGene(gene, axis, middleY)),
    ...drawLegend(axis(0), y + GENE_MAP_HEIGHT - 4),
  ];
}

function drawGene(gene: Gene, axis: AxisScale, middleY: number): string {
  const { name, start, end, isComplement, role } = gene;
  const [x, width] = [axis(start), axis(end) - axis(start)];
  const top = isComplement ? middleY + 2 : middleY - 2 - GENE_HEIGHT;
  const box = rect({ x, y: top, width, height: GENE_HEIGHT }, `fill="${roleColors[role]}" rx="1.5"`);
  const hasRoom = width > 6.5 * name.length + 2;
  const nameLabel = hasRoom ? [text(x + width / 2, top + 10, name, LABEL_STYLE)] : [];
  return tooltip(
    `${name}: ${start}–${end}${isComplement ? ", complement" : ""}, ${role}`,
    [box, ...nameLabel].join(""),
  );
}

function drawLegend(left: number, y: number): readonly string[] {
  return Object.entries(roleColors).flatMap(([role, color], i) => [
    rect({ x: left + i * 104, y: y - 9, width: 10, height: 10 }, `fill="${color}" rx="1.5"`),
    smallText({ x: left + i * 104 + 15, y }, role),
  ]);
}

const MAP_SIZE = 760;
const [MARGIN_LEFT, MARGIN_TOP] = [96, 84 + GENE_MAP_HEIGHT];
/** Shades from nearly white over blue to nearly black. */
const COLOR_RAMP = ["#e3ecf8", "#bdd3ef", "#8fb4e2", "#5f92d1", "#3a70b8", "#234f91", "#142f5e", "#0a1733"] as const;
const GENOME_LENGTH = 48_502;

/** Draws the routing of λ. Rows are the query bins of the genome, and columns the bins to which they are routed. */
export function drawRoutingMap(map: RoutingMap, { name, curve }: MethodResult): string {
  const size = { width: MARGIN_LEFT + MAP_SIZE + 40, height: MARGIN_TOP + MAP_SIZE + 92 };
  const numBases = map.bin * map.bins;
  const xAxis = linearAxis([0, numBases], [MARGIN_LEFT, MARGIN_LEFT + MAP_SIZE]);
  const yAxis = linearAxis([0, numBases], [MARGIN_TOP, MARGIN_TOP + MAP_SIZE]);
  const heldOutLoss = curve.at(-1)!.held!.loss.toFixed(3);
  const title = "Chunks that the router selects along the genome of bacteriophage λ";
  const subtitle = `${name}, last layer, ${map.bins} bins of ${map.bin} bases (4 chunks each); loss on held-out bases ${heldOutLoss}`;
  return svg({ ...size, title, subtitle }, [
    ...drawGeneMap(xAxis, 76, GENOME_LENGTH),
    rect({ x: MARGIN_LEFT, y: MARGIN_TOP, width: MAP_SIZE, height: MAP_SIZE }, 'fill="#f7f8fa"'),
    ...drawCells(map),
    ...axisTicks([0, GENOME_LENGTH / 1000], 10).flatMap((kilobases) => [
      svgLine(
        [xAxis(kilobases * 1000), MARGIN_TOP + MAP_SIZE, xAxis(kilobases * 1000), MARGIN_TOP + MAP_SIZE + 5],
        'stroke="#69727f"',
      ),
      smallText(
        { x: xAxis(kilobases * 1000), y: MARGIN_TOP + MAP_SIZE + 18 },
        String(kilobases),
        'text-anchor="middle"',
      ),
      smallText({ x: MARGIN_LEFT - 8, y: yAxis(kilobases * 1000) + 4 }, String(kilobases), 'text-anchor="end"'),
    ]),
    smallText(
      { x: MARGIN_LEFT + MAP_SIZE / 2, y: MARGIN_TOP + MAP_SIZE + 36 },
      "keys (thousand bases)",
      'text-anchor="middle"',
    ),
    `<g transform="translate(${MARGIN_LEFT - 50} ${MARGIN_TOP + MAP_SIZE / 2}) rotate(-90)">${smallText({ x: 0, y: 0 }, "queries (thousand bases)", 'text-anchor="middle"')}</g>`,
    ...drawColorScale(map),
  ]);
}

/**
 * Returns the weight relative to a uniform one that only 1 % of the cells exceed, at which the darkest shade begins.
 */
function darkestRelativeWeight({ bins, weights }: RoutingMap): number {
  const relativeWeights = weights.map((weight) => weight * bins).toSorted((a, b) => a - b);
  return Math.max(1.05, relativeWeights[Math.floor(0.99 * (relativeWeights.length - 1))]!);
}

/** Draws all cells of one shade as one path. Shades are evenly spaced in the logarithm, from a uniform weight on. */
function drawCells(map: RoutingMap): readonly string[] {
  const { bins, weights } = map;
  const lastShade = COLOR_RAMP.length - 1;
  const logStep = Math.log(darkestRelativeWeight(map)) / lastShade;
  const paths = COLOR_RAMP.map(() => "");
  weights.forEach((weight, cellIndex) => {
    const shade = Math.min(lastShade, Math.floor(Math.log(Math.max(weight * bins, 1e-9)) / logStep + 1e-9));
    if (shade < 0) return;
    paths[shade] += `M${cellIndex % bins} ${Math.floor(cellIndex / bins)}h1v1h-1z`;
  });
  const transformAttribute = `transform="translate(${MARGIN_LEFT} ${MARGIN_TOP}) scale(${(MAP_SIZE / bins).toFixed(5)})"`;
  return paths.map((path, shade) => `<path ${transformAttribute} fill="${COLOR_RAMP[shade]}" d="${path}"/>`);
}

function drawColorScale(map: RoutingMap): readonly string[] {
  const y = MARGIN_TOP + MAP_SIZE + 58;
  const lastShade = COLOR_RAMP.length - 1;
  const formatShadeWeight = (shade: number): string => (darkestRelativeWeight(map) ** (shade / lastShade)).toFixed(3);
  return [
    smallText({ x: MARGIN_LEFT, y: y + 11 }, "even shares, from:"),
    ...COLOR_RAMP.flatMap((color, shade) => [
      rect({ x: MARGIN_LEFT + 130 + shade * 70, y, width: 14, height: 14 }, `fill="${color}"`),
      smallText({ x: MARGIN_LEFT + 149 + shade * 70, y: y + 11 }, formatShadeWeight(shade)),
    ]),
  ];
}
