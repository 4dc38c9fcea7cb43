/**
 * The pieces that the planner's pictures are made of, for pictures of your own: `@mosaic/planner/svg`. Each gives a piece of
 * SVG as text; lengths are pixels, `rest` is further attributes as they are.
 */
export { type Box, escape, rect, formatCoordinate, text, tooltip } from "./draw/svg.ts";
