#!/bin/bash
# Jobs on three hosts (scripts/hosts.sh), as root: `npm run test:hosts`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ "${1:-}" != inside ]; then exec bash "$here/../../../scripts/hosts.sh" 3 bash "$here/hosts.sh" inside; fi
run=$here/../dist/cli.js
program=$here/programs/node.mjs
export TEST_INDEX=$here/../dist/index.js
work=$(mktemp -d)
export TMPDIR=$work
trap 'rm -rf "$work"' EXIT
(umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > "$work/token")
export MOSAIC_TOKEN_FILE=$work/token
cd "$work"

# launch HOST NODES NAME [options] -- starts a launcher. Its output and exit code are written to NAME.out and NAME.code.
launch() {
  local host=$1 nodes=$2 name=$3; shift 3
  (code=0; ip netns exec n"$host" node "$run" -N "$nodes" --node-rank "$host" --rdzv-endpoint 10.77.0.10:29400 "$@" \
    > "$name.out" 2>&1 || code=$?; echo $code > "$name.code") &
}
wait_for() { # FILE TEXT
  for _ in $(seq 200); do if grep -qs -- "$2" "$1"; then return; fi; sleep 0.05; done
  echo "not in $1: $2"; cat "$1"; exit 1
}
expect_code() { # NAME CODE
  for _ in $(seq 200); do [ -s "$1.code" ] && break; sleep 0.05; done
  [ "$(cat "$1.code" 2>/dev/null)" = "$2" ] || { echo "$1 exited with $(cat "$1.code"), expected $2"; cat "$1.out"; exit 1; }
}
expect_none_left() { # HOST…
  for host in "$@"; do
    for _ in $(seq 60); do [ -z "$(ip netns pids n"$host")" ] && break; sleep 0.05; done
    [ -z "$(ip netns pids n"$host")" ] || { echo "processes left on n$host"; ip netns pids n"$host" | xargs ps -fp; exit 1; }
  done
}
milliseconds() { date +%s%3N; }

began=$(milliseconds)
launch 1 3 a1 -n 2 "$program"; launch 2 3 a2 -n 1 "$program"; launch 0 3 a0 -n 3 "$program"
wait_for a0.out "attempt 0: 0 0 6 3 0 3 10.77.0.10"
first=$(( $(milliseconds) - began ))
for name in a0 a1 a2; do expect_code $name 0; done
wait_for a1.out "attempt 0: 4 1 6 2 1 3 10.77.0.10"
wait_for a2.out "attempt 0: 5 0 6 1 2 3 10.77.0.10"
expect_none_left 0 1 2
echo "ok: 3 hosts with 3, 2 and 1 ranks; first line after $first ms"

launch 0 3 b0 -n 1 "$program" exits 2; launch 1 3 b1 -n 1 "$program" exits 2; launch 2 3 b2 -n 1 "$program" exits 2
for name in b0 b1 b2; do expect_code $name 42; done
wait_for b0.out "✖ rank 2 (node 2: "
expect_none_left 0 1 2
echo "ok: a failing rank ends all hosts with its code"

launch 0 2 c0 -n 1 "$program" waits; launch 1 2 c1 -n 1 "$program" waits
wait_for c0.out waits; wait_for c1.out waits
cut=$(milliseconds)
ip link set v1 down
wait_for c0.out "was lost"; on0=$(( $(milliseconds) - cut ))
wait_for c1.out "was lost"; on1=$(( $(milliseconds) - cut ))
expect_code c0 75; expect_code c1 75
expect_none_left 0 1
ip link set v1 up
[ $on0 -lt 3200 ] && [ $on1 -lt 3200 ] || { echo "the cut was found after $on0 ms on n0, $on1 ms on n1"; exit 1; }
echo "ok: a cut cable is found after $on0 ms on n0, $on1 ms on n1"

launch 0 2:3 d0 -n 1 --last-call 1s --max-restarts 1 --restart-backoff 1ms "$program" waits -1 0
launch 1 2:3 d1 -n 1 --last-call 1s --max-restarts 1 "$program" waits -1 0
launch 2 2:3 d2 -n 1 --last-call 1s --max-restarts 1 "$program" waits -1 0
for name in d0 d1 d2; do wait_for $name.out waits; done
ip link set v2 down
expect_code d0 0; expect_code d1 0; expect_code d2 75
wait_for d0.out "attempt 1: 0 0 2 1 0 2"
expect_none_left 0 1 2
ip link set v2 up
echo "ok: two of three hosts go on after a cut cable"

ip netns exec n1 node -e 'require("net").connect(29400, "10.77.0.10").on("error", (e) => console.log(e.code))' > e.out
wait_for e.out ECONNREFUSED
launch 0 2 f0 "$program"
sleep 0.6
(head -c 64 /dev/zero | tr '\0' x) > other; chmod 600 other
MOSAIC_TOKEN_FILE=other launch 1 2 f1 "$program"
expect_code f1 2
wait_for f1.out "the shared secrets do not match"
wait_for f0.out "a connection from 10.77.0.11 was refused: the shared secrets do not match"
launch 1 2 f2 "$program"
expect_code f0 0; expect_code f2 0
expect_none_left 0 1
echo "ok: a host with a different secret is refused, and the job goes on with the right one"
