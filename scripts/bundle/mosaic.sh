#!/bin/sh
# Runs Mosaic from this directory. Requires Linux, glibc 2.28 or newer, and /bin/sh on the host.
case $0 in
*/*) here=$(cd "${0%/*}" && pwd -P) ;;
*) here=$(pwd -P) ;;
esac
export PATH="$here/runtime/bin:$PATH"
# The C++ libraries of the host take precedence if it has them, because drivers and tools need them.
if ! "$here/runtime/bin/node" --version >/dev/null 2>&1; then
  export LD_LIBRARY_PATH="$here/runtime/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
fi

command=${1:-help}
[ $# -gt 0 ] && shift
case $command in
doctor) exec node "$here/packages/attention/bin/mosaic-doctor.js" "$@" ;;
run) exec node "$here/packages/launcher/bin/mosaic-run.js" "$@" ;;
plan) exec node "$here/packages/strategies/bin/mosaic-plan.js" "$@" ;;
demo) exec node "$here/apps/quickstart/dist/main.js" "$@" ;;
bench) exec node "$here/benchmarks/dist/main.js" "$@" ;;
bench-gpu) exec node "$here/benchmarks/dist/gpu.js" "$@" ;;
test | build | gpu) exec node "$here/scripts/bundle/inside/$command.mjs" "$@" ;;
node) exec node "$@" ;;
help | -h | --help) ;;
*) echo "mosaic: no command \"$command\"" >&2 ;;
esac

echo 'Mosaic for machines without a network. Requires Linux and glibc.

  ./mosaic doctor [--json]       examines this machine and the installed parts, and prints remedies
  ./mosaic gpu [--budget TIME] [--out DIR]
                                 everything that needs a GPU: tests, sanitizer, benchmarks; --help
  ./mosaic test [PACKAGE…]       tests of all packages, or of some: ./mosaic test launcher nn
                                 [-- options of vitest]
  ./mosaic bench [options]       benchmarks on the CPU; --help
  ./mosaic bench-gpu [options]   attention on a GPU, compared with PyTorch; --help
  ./mosaic demo [options]        attention over a whole genome on four ranks; --help
  ./mosaic run [options] ENTRY   mosaic-run. ENTRY must be in this directory, or beside a link to its
                                 node_modules: ln -s PATH/TO/mosaic/node_modules .
  ./mosaic plan [options]        mosaic-plan
  ./mosaic build [PACKAGE…]      compiles the addons with g++, if those in the archive do not load
  ./mosaic node [options]        Node'
[ "$command" = help ] || [ "$command" = -h ] || [ "$command" = --help ]
