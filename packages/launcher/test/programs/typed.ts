// TypeScript that only a loader or a newer Node can run.
interface RankContract {
  readonly rank: number;
}
const contract: RankContract = { rank: Number(process.env.RANK) };
if (process.argv[2] === "throws") throw new Error(`typed rank ${contract.rank} throws`);
console.log(`typed rank ${contract.rank satisfies number}`);
