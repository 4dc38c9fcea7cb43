// TypeScript that only a loader or a newer Node can run.
interface Told {
  readonly rank: number;
}
const told: Told = { rank: Number(process.env.RANK) };
if (process.argv[2] === "throws") throw new Error(`typed rank ${told.rank} throws`);
console.log(`typed rank ${told.rank satisfies number}`);
