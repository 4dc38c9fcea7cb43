// Fails in the attempts given on the command line, `restart.mjs 0,1 [exit code]`, and leaves a key in the store.
const { connectStore } = await import(process.env.TEST_INDEX);
const [failingRanks = "", code = "3"] = process.argv.slice(2);
const attempt = process.env.MOSAIC_ATTEMPT;
const store = await connectStore();
const leftoverValue = await store.get("left over");
await store.set("left over", attempt);
console.log(
  `attempt ${attempt}, TORCHELASTIC_RESTART_COUNT ${process.env.TORCHELASTIC_RESTART_COUNT}, found ${leftoverValue}`,
);
if (failingRanks.split(",").includes(attempt)) process.exit(Number(code));
