// TypeScript, which requires a loader or a version of Node that strips types.
interface RankContract {
  readonly rank: number;
}
const contract: RankContract = { rank: Number(process.env.RANK) };
if (process.argv[2] === "throws") throw new Error(`typed rank ${contract.rank} throws`);
console.log(`typed rank ${contract.rank satisfies number}`);
