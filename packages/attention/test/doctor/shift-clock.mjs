// Of a host whose clock is five seconds ahead: NODE_OPTIONS=--import=… for the whole of its launcher.
const { now } = Date;
Date.now = () => now() + 5000;
