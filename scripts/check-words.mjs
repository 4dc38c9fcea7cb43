// Rejects words that are not terms of the field, in code, comments, documents and messages: CONTRIBUTING's rule on
// terms, as data. Decisions, changesets and results are records of the past and are not checked.
//
//   node scripts/check-words.mjs [root]
import { readdirSync, readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { listFiles } from "./workspace.mjs";

const TEXT_FILE_EXTENSIONS = [
  ...[".ts", ".tsx", ".mjs", ".js", ".cc", ".cpp", ".c", ".h", ".hpp", ".cu", ".cuh", ".cmake"],
  ...[".md", ".py", ".sh", ".txt"],
];
const FOLDERS = ["packages", "apps", "benchmarks", "docs", "scripts"];
/** Records of the past, and the files that contain the list itself. */
const EXCLUDED_PATH_PATTERN = /^docs\/decisions\/|(^|\/)results\/|^scripts\/(test\/)?check-words|CHANGELOG\.md$/;

/**
 * `word`: a pattern within a line. `instead`: the field's term. `allow`: contexts in which the word has another
 * meaning.
 */
const BANNED_WORDS = [
  { word: /\bsay(s|ing)?\b|\bsaid\b/, instead: "state, print, report or name" },
  { word: /\b(tells|telling|told)\b/, instead: "report, notify, distinguish or pass" },
  { word: /\bhear(s|d|ing)?\b/, instead: "receive, or is notified" },
  { word: /\bwants\b/, instead: "needs or requires" },
  { word: /\bknows\b|\b(does|do) not know\b/, instead: "has, supports or recognizes; unknown" },
  { word: /\bgood-?bye/, instead: "close or shutdown message" },
  { word: /\bpatien(ce|t|tly)\b/, instead: "timeout" },
  { word: /\bguests?\b/, instead: "connection or client" },
  { word: /\bhubs?\b/, instead: "control-plane server", allow: /0019-nccl-and-a-hub|GitHub/ },
  { word: /\bwhereabouts\b/, instead: "address or position" },
  { word: /\blone(ly|some)\b/, instead: "unmatched" },
  { word: /\bhow[ -]manyeth\b/, instead: "n-th" },
  { word: /\bin vain\b/, instead: "without success, or until it times out" },
  { word: /\bknobs?\b/, instead: "setting or option" },
  { word: /\bnews\b/, instead: "control messages" },
  { word: /\bdress(es|ed|ing)?\b/, instead: "wrap" },
  { word: /\btroubles?\b/, instead: "failure or problem" },
  { word: /\bwhoever\b/, instead: "the caller, the owner or any rank that" },
  { word: /\bunasked\b/, instead: "without extra code, or without being requested" },
  { word: /\bfrom afar\b/, instead: "of a remote rank" },
  { word: /\bone's own\b/, instead: "local, or custom" },
  { word: /\byours to dispose\b/, instead: "the caller disposes it" },
  { word: /\btwice is fine\b/, instead: "idempotent" },
  { word: /\banother secret\b/, instead: "shared secret mismatch" },
  { word: /\bmay be given again\b/, instead: "may be repeated" },
  { word: /\btravell?ing queries\b/, instead: "query exchange" },
  { word: /\bgossip(s|ing)?\b|\bquarrel(s|ing)?\b|\bmailbox(es)?\b/, instead: "the protocol's own term" },
].map(({ word, ...rest }) => ({ word: new RegExp(word, "gi"), ...rest }));

/** Splits identifiers into words, so that `lonelyRank` contains the word "lonely". */
const splitIdentifiers = (line) => line.replaceAll(/([a-z\d])([A-Z])/g, "$1 $2").replaceAll("_", " ");

/** Returns a sentence for each line below `root` with a word of the list. */
export function checkWords(root) {
  const paths = [
    ...readdirSync(root).filter((name) => name.endsWith(".md")),
    ...FOLDERS.flatMap((folder) =>
      listFiles(join(root, folder), TEXT_FILE_EXTENSIONS).map((path) => `${folder}/${path}`),
    ),
  ].filter((path) => !EXCLUDED_PATH_PATTERN.test(path));
  return paths.flatMap((path) => [
    ...findBannedWords(path).map(
      ({ found, instead: replacement }) => `${path}: the file name contains "${found}"; use: ${replacement}`,
    ),
    ...readFileSync(join(root, path), "utf8")
      .split("\n")
      .flatMap((line, i) =>
        findBannedWords(line).map(({ found, instead: replacement }) => `${path}:${i + 1}: "${found}": ${replacement}`),
      ),
  ]);
}

function findBannedWords(line) {
  return BANNED_WORDS.flatMap(({ word, instead: replacement, allow: allowedPattern }) => {
    const textToCheck = splitIdentifiers(allowedPattern ? line.replaceAll(new RegExp(allowedPattern, "gi"), "") : line);
    return [...textToCheck.matchAll(word)].map(([found]) => ({ found, instead: replacement }));
  });
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const faults = checkWords(resolve(process.argv[2] ?? fileURLToPath(new URL("..", import.meta.url))));
  for (const fault of faults) console.error(fault);
  if (faults.length > 0) process.exit(1);
  console.log(`words: no matches for the ${BANNED_WORDS.length} listed words`);
}
