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

echo 'Mosaic, to be run where there is nothing else.

  ./mosaic doctor [--json]       looks at this machine, tries what is installed, prints what to do
  ./mosaic gpu [--budget TIME] [--out DIR]
                                 all that a GPU is needed for: tests, sanitizer, benchmarks; --help
  ./mosaic test [PACKAGE…]       every package’s tests, or those of some: ./mosaic test launcher nn
                                 [-- what vitest takes]
  ./mosaic bench [options]       benchmarks on the CPU; --help
  ./mosaic bench-gpu [options]   attention on a GPU, beside PyTorch’s; --help
  ./mosaic demo [options]        four ranks attend over a whole genome; --help
  ./mosaic run [options] ENTRY   mosaic-run. ENTRY finds @mosaic/* if it lies in this directory, or beside
                                 a link to node_modules: ln -s PATH/TO/mosaic/node_modules .
  ./mosaic plan [options]        mosaic-plan
  ./mosaic build [PACKAGE…]      compiles the addons again, with g++ alone, where those here do not load
  ./mosaic node [options]        Node itself'
[ "$command" = help ] || [ "$command" = -h ] || [ "$command" = --help ]
