import { expect, test } from "vitest";
import { escape, rect, text, tooltip } from "../src/svg.ts";

test("SVG helpers round numbers and escape text", () => {
  expect(rect({ x: 1 / 3, y: 2, width: 10.005, height: 0 }, 'fill="red"')).toBe(
    '<rect x="0.33" y="2" width="10.01" height="0" fill="red"/>',
  );
  expect(tooltip("a < b", text(1, 2, 'c & "d"', ""))).toBe(
    '<g><title>a &lt; b</title><text x="1" y="2" >c &amp; &quot;d&quot;</text></g>',
  );
  expect(escape("\u0000\ud800 e\n")).toBe("\ufffd\ufffd e ");
});
