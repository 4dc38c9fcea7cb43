// Writes a trace as a rank of @mosaic/attention does. The launcher does not interpret its content.
import { mkdirSync, writeFileSync } from "node:fs";

const { MOSAIC_TRACE_DIR: directory, RANK: rank, MOSAIC_ATTEMPT: attempt } = process.env;
if (directory !== undefined) {
  mkdirSync(directory, { recursive: true });
  writeFileSync(`${directory}/rank-${rank}.json`, JSON.stringify({ rank, attempt, text: "</script>" }));
  writeFileSync(`${directory}/rank-${rank}.json.1.partial`, "{");
  if (process.argv[2] !== "bare") writeFileSync(`${directory}/viewer.html`, "<p>\n<!-- data -->\n</p>");
}
if (process.argv[2] === "fails" && rank === "1" && attempt === "0") process.exit(7);
