// Shifts the clock of a host by five seconds. Loaded with NODE_OPTIONS=--import=… by its launcher and all its
// processes.
const { now } = Date;
Date.now = () => now() + 5000;
