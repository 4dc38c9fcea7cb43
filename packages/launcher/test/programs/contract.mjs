// Prints the environment and arguments of a rank, and checks that its store is reachable.
const { connectStore } = await import(process.env.TEST_INDEX);
const environment = Object.fromEntries(
  Object.entries(process.env).filter(([name]) =>
    /^(RANK|WORLD_SIZE|LOCAL_|GROUP_|ROLE_|MASTER_|TORCHELASTIC_|MOSAIC_|FORCE_COLOR|EXTRA)/.test(name),
  ),
);
const store = await connectStore();
const arrivalCount = await store.add("arrived");
await store.barrier("all", Number(environment.WORLD_SIZE), { member: environment.RANK });
console.log(
  JSON.stringify({
    environment,
    arrived: arrivalCount,
    args: process.argv.slice(2),
    execArgv: process.execArgv,
    cwd: process.cwd(),
  }),
);
