// Writes the output that the test selects: `speak.mjs <output>`.
const rank = process.env.RANK;
const speeches = {
  both: () => {
    console.log(`rank ${rank} prints`);
    console.error(`rank ${rank} warns`);
  },
  "no-line-end": () => process.stdout.write(`rank ${rank} stops mid`),
  progress: () => {
    for (const percent of [10, 50, 100]) process.stdout.write(`\r${rank} at ${percent}%`);
    process.stdout.write("\n");
  },
  "long-line": () => console.log("é".repeat(100_000)),
  color: () => console.log(`FORCE_COLOR ${process.env.FORCE_COLOR}`),
  // More output than a pipe can buffer, then a line every 10 ms.
  endless: () => {
    for (let i = 0; i < 20_000; i++) console.log(`${i} ${"y".repeat(90)}`);
    setInterval(() => console.log("again"), 10);
  },
};
speeches[process.argv[2]]();
