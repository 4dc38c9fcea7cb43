// VitePress's settings for the pages that build.mjs has written.
import { createAnchor } from "../../scripts/check-links.mjs";

/** Sections with many pages, which are folded at first. */
const FOLDED = new Set(["Packages", "Decisions", "Results", "API"]);

function sidebarOf(pages) {
  return [...new Set(pages.map(({ section }) => section))].map((name) => ({
    text: name,
    ...(FOLDED.has(name) && { collapsed: true }),
    items: pages
      .filter(({ section }) => section === name)
      .map(({ title, path }) => ({ text: title, link: `/${path.replace(/(^|\/)index$/, "$1")}` })),
  }));
}

/** Texts hold `{{` and `<`, which are no templates of Vue. */
function withoutTemplates(md) {
  const { text } = md.renderer.rules;
  md.renderer.rules.text = (...args) => text(...args).replaceAll("{{", "&#123;&#123;");
}

const slug = { slugify: createAnchor };
const anchors = { anchor: slug, toc: slug, headers: slug };

const ICON =
  "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 4 4'%3E%3Cpath fill='%233451b2' d='M0 0h2v2H0zM2 2h2v2H2z'/%3E%3C/svg%3E";
const THEME = { light: "github-light-high-contrast", dark: "github-dark-high-contrast" };

/** The settings for these pages; anchors are GitHub's, so that links hold in the repository and on the site. */
export const settingsOf = (pages) => ({
  title: "Mosaic",
  description: "Exact attention over sequences that no single device holds, in TypeScript",
  lang: "en",
  cleanUrls: false,
  lastUpdated: false,
  metaChunk: true,
  head: [["link", { rel: "icon", href: ICON }]],
  vite: { build: { chunkSizeWarningLimit: 4000 } },
  markdown: { ...anchors, theme: THEME, config: withoutTemplates },
  themeConfig: {
    nav: [
      { text: "Start", link: "/start" },
      { text: "Backends", link: "/backends" },
      { text: "Errors", link: "/troubleshooting" },
      { text: "API", link: "/api/" },
    ],
    sidebar: sidebarOf(pages),
    outline: { level: [2, 3] },
    search: { provider: "local" },
    docFooter: { prev: false, next: false },
  },
});
