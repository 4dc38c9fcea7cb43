// Replaces gpu/worker.ts in tests of the worker pool. The name of a case determines what it does.
process.on("message", (name) => {
  if (name === "dies") process.exit(7);
  if (name === "hangs") return;
  if (name === "breaks") process.send({ error: "an illegal address", isSessionLost: true }, () => process.exit(1));
  else if (name === "fails") process.send({ error: "wrong rows" });
  else process.send({ result: { case: name, process: process.pid } });
});
