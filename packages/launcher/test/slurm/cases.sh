#!/bin/bash
# Tests mosaic-run under SLURM, and programs without mosaic-run under srun and mpirun. Runs on the login node of
# cluster.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../../.." && pwd)
program=$here/../programs/slurm-rank.mjs
run=node_modules/.bin/mosaic-run
mkdir -p /job
cd /job
(umask 077; head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' > token)
export MOSAIC_TOKEN_FILE=/job/token HOME=/job npm_config_update_notifier=false

fail() { echo "FAILED: $1"; shift; for file in "$@"; do echo "--- $file"; cat "$file"; done; exit 1; }
milliseconds() { date +%s%3N; }
# expect FILE TEXT… -- waits up to 20 s until the file contains each text.
expect() {
  local file=$1 text; shift
  for text in "$@"; do
    for _ in $(seq 400); do grep -qsF -- "$text" "$file" && break; sleep 0.05; done
    grep -qsF -- "$text" "$file" || fail "not in $file: $text" "$file"
  done
}
refuse() { # FILE TEXT
  ! grep -qF -- "$2" "$1" || fail "in $1: $2" "$1"
}
count() { # FILE TEXT NUMBER
  [ "$(grep -cF -- "$2" "$1")" = "$3" ] || fail "expected $3 times in $1: $2" "$1"
}
# exits CODE COMMAND… -- expects the exit code of a command. Its output is written to the file `out`.
exits() {
  local expected=$1 code=0; shift
  "$@" > out 2>&1 || code=$?
  [ $code = "$expected" ] || fail "exit code $code, expected $expected: $*" out
}
background() { # NAME COMMAND…
  local name=$1; shift
  rm -f "$name.code" "$name.out"
  (code=0; "$@" > "$name.out" 2>&1 || code=$?; echo $code > "$name.code") &
}
expect_code() { # NAME CODE
  for _ in $(seq 600); do [ -s "$1.code" ] && break; sleep 0.05; done
  [ "$(cat "$1.code" 2>/dev/null)" = "$2" ] || fail "$1 ended with $(cat "$1.code" 2>/dev/null || echo nothing), expected $2" "$1.out"
}
# The processes of all nodes are checked, because the nodes share the pid namespace. npx may exit slightly later.
expect_none_left() {
  for _ in $(seq 100); do pgrep -f "mosaic-run|programs/|foreign-rank|agent-process" > left || return 0; sleep 0.05; done
  xargs ps -fp < left > processes; fail "processes are left" processes
}
state() { scontrol show job "$1" | grep -oE 'JobState=\w+' | cut -d= -f2; }
expect_state() { # JOB STATE
  for _ in $(seq 400); do [ "$(state "$1")" = "$2" ] && return; sleep 0.05; done
  scontrol show job "$1" > job; fail "job $1 is $(state "$1"), expected $2" job
}
await_idle() {
  for _ in $(seq 300); do [ "$(sinfo -h -N -t idle | wc -l)" = 3 ] && return; sleep 0.1; done
  sinfo -N -l > nodes; fail "nodes are not idle" nodes
}
began=$(milliseconds)
done_with() { expect_none_left; echo "ok $(( $(milliseconds) - began )) ms: $1"; began=$(milliseconds); }
batch() { # LINES… -- submits a batch script; prints its number.
  printf '%s\n' '#!/bin/bash' "$@" > batch.sh
  sbatch --parsable "${options[@]}" -o 'batch-%j.out' --open-mode=append batch.sh
}

ln -s "$root/node_modules" node_modules
one_each="--ntasks-per-node=1 --kill-on-bad-exit=0"

exits 0 srun -N3 $one_each --cpus-per-task=1 npx mosaic-run "$program"
for i in 0 1 2; do count out "attempt 0 start 0: $i 3 0 1 $i 3 10.77.0.10 threads 1" 1; done
done_with "srun: one rank on each of three nodes; node list, node rank, a thread for each CPU of a task"

exits 0 srun -N3 $one_each $run -n 2 --threads 1 "$program"
for i in 0 1 2 3 4 5; do count out "attempt 0 start 0: $i 6 $((i % 2)) 2 $((i / 2)) 3 10.77.0.10 threads 1" 1; done
done_with "srun: -n 2 of mosaic-run on three nodes"

exits 0 srun -N2 -n 3 --kill-on-bad-exit=0 npx mosaic-run "$program"
count out "attempt 0 start 0: 0 3 0 2 0 2 10.77.0.10" 1; count out "attempt 0 start 0: 1 3 1 2 0 2 10.77.0.10" 1
count out "attempt 0 start 0: 2 3 0 1 1 2 10.77.0.10" 1
count out "npx, started by srun, may not forward" 2
count out "another task on this node starts the ranks" 1
done_with "srun: several tasks on a node are its ranks, started by one of them"

options=(-N3)
job=$(batch "srun $one_each npx mosaic-run $program")
expect_state "$job" COMPLETED
for i in 0 1 2; do expect "batch-$job.out" "attempt 0 start 0: $i 3 0 1 $i 3 10.77.0.10"; done
done_with "sbatch: srun in a batch script"

job=$(batch "npx mosaic-run -n 2 $program 'two words'")
expect_state "$job" FAILED
[ "$(scontrol show job "$job" | grep -oE 'ExitCode=\w+')" = ExitCode=2 ] || fail "exit code" "batch-$job.out"
expect "batch-$job.out" "srun --ntasks-per-node=1 --kill-on-bad-exit=0 node_modules/.bin/mosaic-run -n 2 $program 'two words', or pass"
refuse "batch-$job.out" "attempt 0"
job=$(batch "$(grep -oE 'srun --ntasks.*words.' "batch-$job.out")")
expect_state "$job" COMPLETED
expect "batch-$job.out" "attempt 0 start 0: 5 6 1 2 2 3 10.77.0.10"
done_with "sbatch: without srun it is refused, and the srun line of the message works"

job=$(batch "srun $one_each $run -n 2 $program checkpoints")
for i in 0 1 2 3 4 5; do expect "batch-$job.out" "attempt 0 start 0: $i 6"; done
scancel --signal=USR1 "$job"
for i in 0 1 2 3 4 5; do expect "batch-$job.out" "rank $i checkpoint 1"; done
sleep 0.5
refuse "batch-$job.out" "checkpoint 2"
scancel --signal=USR1 "$job"
for i in 0 1 2 3 4 5; do expect "batch-$job.out" "rank $i checkpoint 2"; done
sleep 0.5
refuse "batch-$job.out" "checkpoint 3"
for pid in $(pgrep -f "bin/mosaic-run"); do
  if tr '\0' '\n' < "/proc/$pid/environ" | grep -qx SLURM_NODEID=1; then kill -USR1 "$pid"; fi
done
for i in 2 3; do expect "batch-$job.out" "rank $i checkpoint 3"; done
sleep 0.5
for i in 2 3; do refuse "batch-$job.out" "rank $i checkpoint 4"; done
for i in 0 1 4 5; do refuse "batch-$job.out" "rank $i checkpoint 3"; done
[ "$(state "$job")" = RUNNING ] || fail "the job ended" "batch-$job.out"
scancel --signal=TERM "$job"
for i in 0 1 2 3 4 5; do expect "batch-$job.out" "rank $i saved"; count "batch-$job.out" "rank $i saves" 1; done
expect_state "$job" FAILED
[ "$(scontrol show job "$job" | grep -oE 'ExitCode=\w+')" = ExitCode=143 ] || fail "exit code" "batch-$job.out"
refuse "batch-$job.out" "✖"
done_with "scancel --signal: USR1 reaches each rank once, each time; TERM once, with its grace, and is no failure"

job=$(batch "srun $one_each $run -n 2 $program saves")
for i in 0 1 2 3 4 5; do expect "batch-$job.out" "attempt 0 start 0: $i 6"; done
scancel "$job"
expect_state "$job" CANCELLED
for i in 0 1 2 3 4 5; do expect "batch-$job.out" "rank $i saved"; count "batch-$job.out" "rank $i saves" 1; done
refuse "batch-$job.out" "✖"
refuse "batch-$job.out" "killing"
done_with "scancel: each rank saves within SLURM's KillWait, and it is no failure"

options=(-N3 --requeue)
job=$(batch "srun $one_each $run $program waits-once")
for i in 0 1 2; do expect "batch-$job.out" "attempt 0 start 0: $i 3"; done
scontrol requeue "$job"
refuse "batch-$job.out" "✖"
expect_state "$job" PENDING
# SLURM delays a requeued job by two minutes, so its start time is set here. The pause is needed because a node
# refuses a job in the same second in which it has ended it.
await_idle
sleep 2
scontrol update "jobid=$job" starttime=now
for _ in $(seq 200); do grep -qsF "start 1" "batch-$job.out" && break; sleep 0.1; done
grep -qF "start 1" "batch-$job.out" || { scontrol show job "$job" > job; fail "it does not start again" job "batch-$job.out"; }
for i in 0 1 2; do expect "batch-$job.out" "attempt 0 start 1: $i 3"; done
expect_state "$job" COMPLETED
done_with "requeue: the job starts again, and completes"

for _ in 1 2 3; do
  background step srun -N3 $one_each "$run" -n 2 "$program" waits
  for i in 0 1 2 3 4 5; do expect step.out "attempt 0 start 0: $i 6"; done
  scancel --signal=INT "$(squeue -h -t RUNNING -o %i)"
  expect_code step 130
  refuse step.out "✖"
  refuse step.out "interrupted again"
done
done_with "SIGINT on all nodes is one, wherever it comes first, and no failure"

background lost srun -N3 $one_each "$run" "$program" waits
for i in 0 1 2; do expect lost.out "attempt 0 start 0: $i 3"; done
cut=$(milliseconds)
ip link set v1 down
expect lost.out "was lost"
on0=$(( $(milliseconds) - cut ))
[ $on0 -lt 3500 ] || fail "the lost node was found after $on0 ms" lost.out
for _ in $(seq 100); do pgrep -f "preload.cjs.*slurm-rank" > left || break; sleep 0.05; done
gone=$(( $(milliseconds) - cut ))
[ ! -s left ] || fail "ranks are left after $gone ms" left
ip link set v1 up
expect_code lost 75
done_with "a lost node is found after $on0 ms, no rank is left after $gone ms, and srun ends with 75"

# Programs without mosaic-run. `import` resolves Mosaic relative to the program.
foreign=$root/packages/collectives-ucx/test/fixtures/foreign-rank.mjs
export UCX_TLS=tcp,self
await_idle
exits 0 srun -N1 -n 2 node "$foreign" local
for i in 0 1; do count out "SLURM: rank $i of 2, $i of 2: 3" 1; done
done_with "srun starts a program of two ranks on one node, over shared memory"

exits 0 srun -N3 -n 4 node "$foreign" ucx
count out "SLURM: rank 0 of 4, 0 of 2: 10" 1; count out "SLURM: rank 1 of 4, 1 of 2: 10" 1
for i in 2 3; do count out "SLURM: rank $i of 4, 0 of 1: 10" 1; done
done_with "srun starts a program of four ranks on three nodes, over UCX"

exits 1 env -u MOSAIC_TOKEN_FILE srun -N2 node "$foreign" ucx
count out "OptionError: connect: ranks on several hosts: expected the same secret on all hosts, in the file specified by MOSAIC_TOKEN_FILE" 2
exits 1 srun -N2 env RANK=0 WORLD_SIZE=1 node "$foreign" ucx
count out "OptionError: environment variables RANK and WORLD_SIZE: expected SLURM_PROCID" 2
exits 1 srun -N2 env MASTER_ADDR=10.77.0.254 MASTER_PORT=29500 node "$foreign" ucx
expect out "MASTER_ADDR 10.77.0.254: 10.77.0.254 is not an address of this host, which runs rank 0" "cannot reach its parent agent through the root agent at 10.77.0.254:29500"
done_with "srun: no secret, contradicting variables, and another host's address are errors that name them"

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exits 0 mpirun.openmpi --host ctl:2 -n 2 node "$foreign" local
for i in 0 1; do count out "Open MPI: rank $i of 2, $i of 2: 3" 1; done
exits 0 mpirun.mpich -n 2 node "$foreign" local
for i in 0 1; do count out "MPICH: rank $i of 2, $i of 2: 3" 1; done
exits 0 env MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 mpirun.mpich -n 3 node "$foreign" local
count out ": 6" 3
done_with "mpirun of Open MPI and of MPICH on one host"

options=(-N3 -n4)
variables="-x MASTER_ADDR=10.77.0.10 -x MASTER_PORT=29500 -x MOSAIC_TOKEN_FILE -x UCX_TLS"
job=$(batch "mpirun.openmpi --mca plm_rsh_agent false -n 4 $variables node $foreign ucx" 'echo "exit code $?"')
expect "batch-$job.out" "exit code 0" "Open MPI: rank 0 of 4, 0 of 2: 10" "Open MPI: rank 3 of 4, 0 of 1: 10"
job=$(batch "mpirun.openmpi -n 4 -x MOSAIC_TOKEN_FILE node $foreign ucx" 'echo "exit code $?"')
expect "batch-$job.out" "exit code 1" "OptionError: connect: ranks on several hosts: expected MASTER_ADDR and MASTER_PORT in the environment"
job=$(batch "MASTER_ADDR=10.77.0.10 MASTER_PORT=29500 mpirun.mpich -n 4 node $foreign ucx" 'echo "exit code $?"')
expect "batch-$job.out" "exit code 0" "MPICH: rank 0 of 4, 0 of 2: 10" "MPICH: rank 3 of 4, 0 of 1: 10"
done_with "mpirun of Open MPI and of MPICH on three nodes of a SLURM job"
