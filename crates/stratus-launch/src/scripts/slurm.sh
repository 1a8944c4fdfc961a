# Each task of the array trains one repetition. Before the time limit, a signal makes it save a checkpoint,
# and the task is requeued.
umask 077
cd "$SLURM_SUBMIT_DIR" || exit 1
n=$SLURM_ARRAY_TASK_ID
task=${SLURM_ARRAY_JOB_ID}_$n
say() {
  echo "$(date -u +%FT%TZ) $task on $(uname -n): $1"
}
[ -e stop ] && exit 75
lease_expired && exit 75
is_done "$n" && exit 0
# Workers on the nodes of this job: the largest power of two of them, which may be fewer than before.
if [ -n "$workers_per_node" ]; then
  nodes=1
  while [ $((2 * nodes)) -le "${SLURM_JOB_NUM_NODES:-1}" ]; do
    nodes=$((2 * nodes))
  done
  # Unless it is set, the CPUs of a node are shared equally.
  cpus=${cpus_per_worker:-$((${SLURM_CPUS_ON_NODE:-1} / workers_per_node))}
  [ "$cpus" -ge 1 ] || cpus=1
  SLURM_CPUS_PER_TASK=$cpus
  start="srun${mpi:+ --mpi=$mpi} --nodes=$nodes --ntasks=$((nodes * workers_per_node))"
  start="$start --ntasks-per-node=$workers_per_node --cpus-per-task=$cpus --kill-on-bad-exit=1"
fi
# stop_training: `srun` would end the workers at once, so that Slurm signals them instead. The signal is sent
# again in case the step had just started.
stop_training() {
  if [ -z "$start" ]; then
    kill -TERM "$child" 2> /dev/null
    return
  fi
  signal_step "$child" 9>&- < /dev/null > /dev/null 2>&1 &
}
signal_step() {
  while kill -0 "$1" 2> /dev/null; do
    scancel -Q --signal=TERM "$task" || kill -TERM "$1"
    sleep 5
  done
}
# One thread per requested CPU, even if Slurm does not bind processes to CPUs.
if [ -n "$SLURM_CPUS_PER_TASK" ]; then
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"
fi
trap 'stopped=1; [ -n "$child" ] && stop_training' TERM
# A node that Slurm gave up may still train: its heartbeat changes every two seconds, even if clocks differ.
if [ -f "$n/owner" ] && read -r _ host _ < "$n/owner" && [ "$host" != "$(uname -n)" ]; then
  before=$(cat "$n/heartbeat" 2> /dev/null)
  sleep 6
  if [ "$before" != "$(cat "$n/heartbeat" 2> /dev/null)" ]; then
    say "repetition $n is already running on $host"
    exit 20
  fi
fi
# MPICH names its shared memory after job and step, and a step that was killed leaves it behind. Empty steps
# give the workers of a requeued job a step of another number.
if [ -n "$start" ]; then
  steps=0
  while [ "$steps" -lt "${SLURM_RESTART_COUNT:-0}" ]; do
    srun --nodes=1 --ntasks=1 true < /dev/null
    steps=$((steps + 1))
  done
fi
take_ownership "$n" "$task"
rows_before=$(iterations "$n")
say "training repetition $n"
train "$n"
kill "$heartbeat_pid" 2> /dev/null
say "exited with $code${lost:+ after the loss of a worker}"
# A run that reached its own limit (a deadline, a budget) is not requeued.
if [ "$code" != 75 ] || [ -z "$stopped$lost" ] || [ -e stop ]; then
  exit "$code"
fi
if lease_expired; then
  exit 75
fi
# Stops requeueing a task that makes no progress.
if is_idle "$(iterations "$n")" "$rows_before" "$n/idle"; then
  say 'no progress in three attempts: not requeued; set a longer time limit or an earlier signal'
  exit 75
fi
# A signal must not prevent requeueing.
trap '' TERM
case $(squeue -h -j "$task" -o '%T %r' 2> /dev/null) in
  'COMPLETING TimeLimit'*) notice requeue "$n" 75 ;;
  COMPLETING* | CANCELLED* | PREEMPTED*)
    say 'cancelled or preempted by Slurm, which decides whether to requeue it'
    exit 75
    ;;
  *)
    notice requeue "$n" 75
    if scontrol requeue "$task" 2>&1; then
      say 'requeued'
      exit 75
    fi
    ;;
esac
if sbatch --array="$n" --dependency="afterany:$task" batch.sh 2>&1; then
  say 'resubmitted as a separate job'
else
  say 'cannot be requeued from here: run stratus launch resume'
fi
exit 75
