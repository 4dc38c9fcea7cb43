/**
 * Building blocks of the planner's pictures, for custom pictures: `@mosaic/planner/svg`. Each returns a piece of SVG as
 * text. Lengths are in pixels; `rest` is further attributes, inserted unchanged.
 */
export { type Box, escape, rect, formatCoordinate, text, tooltip } from "./draw/svg.ts";
