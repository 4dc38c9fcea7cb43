// Builds the package in the current folder with CMake into prebuilds/<platform>-<arch>/.
import { spawnSync } from 'node:child_process';

const run = (cmd, args) => {
  const r = spawnSync(cmd, args, { stdio: 'inherit' });
  if (r.status !== 0) process.exit(r.status ?? 1);
};
run('cmake', ['-S', '.', '-B', 'build-cmake', '-DCMAKE_BUILD_TYPE=Release']);
run('cmake', ['--build', 'build-cmake', '-j2']);
