// Builds the viewer's page as one file without data: dist/viewer.html.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { build } from "esbuild";

const { outputFiles } = await build({
  entryPoints: ["viewer/main.ts"],
  bundle: true,
  write: false,
  platform: "browser",
  target: ["chrome111", "firefox113", "safari16.4"],
  format: "iife",
  minify: true,
  charset: "utf8",
  legalComments: "inline",
});
const readText = (path) => readFileSync(path, "utf8");
const { resolve } = createRequire(import.meta.url);
const license = readText(resolve("uplot/LICENSE")).trim().replaceAll("--", "- -");
const styles = `${readText(resolve("uplot/dist/uPlot.min.css"))}${readText("viewer/page.css")}`;
// The script must not contain the end tag of its script element.
const script = outputFiles[0].text.replaceAll("</script", "<\\/script");
const page = readText("viewer/page.html")
  .replace("<!-- license -->", () => `<!-- Contains uPlot:\n${license}\n-->`)
  .replace("/* styles */", () => styles)
  .replace("/* script */", () => script);
writeFileSync("dist/viewer.html", page);
