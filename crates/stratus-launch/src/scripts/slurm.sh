# One task of the array trains one repetition. The signal before the end of its time asks for a checkpoint;
# then the task goes back into the queue.
umask 077
cd "$SLURM_SUBMIT_DIR" || exit 1
n=$SLURM_ARRAY_TASK_ID
task=${SLURM_ARRAY_JOB_ID}_$n
say() {
  echo "$(date -u +%FT%TZ) $task on $(uname -n): $1"
}
[ -e stop ] && exit 75
over && exit 75
[ "$(cat "$n/exit" 2> /dev/null)" = 0 ] && exit 0
# Threads as many as processors that were asked for, also where nothing binds them.
if [ -n "$SLURM_CPUS_PER_TASK" ]; then
  export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$SLURM_CPUS_PER_TASK}"
fi
trap 'stopped=1; [ -n "$child" ] && kill -TERM "$child"' TERM
# A node that Slurm gave up may still train: its heart beats every two seconds, by whatever clock.
if [ -f "$n/owner" ] && read -r _ host _ < "$n/owner" && [ "$host" != "$(uname -n)" ]; then
  before=$(cat "$n/heartbeat" 2> /dev/null)
  sleep 6
  if [ "$before" != "$(cat "$n/heartbeat" 2> /dev/null)" ]; then
    say "repetition $n is being trained already, on $host"
    exit 20
  fi
fi
iterations() {
  { wc -l < "$n/run/iterations.csv"; } 2> /dev/null || echo 0
}
own "$n" "$task"
before=$(iterations)
say "trains repetition $n"
train "$n"
kill "$heart" 2> /dev/null
say "ended with $code"
# A limit of its own that is reached (a deadline, a budget) is no reason to go on.
if [ "$code" != 75 ] || [ -z "$stopped" ] || [ -e stop ]; then
  exit "$code"
fi
if over; then
  exit 75
fi
# What does not get further is not tried for ever.
idle=0
if [ "$(iterations)" -le "$before" ]; then
  idle=$(($(cat "$n/idle" 2> /dev/null || echo 0) + 1))
fi
echo "$idle" > "$n/idle"
if [ "$idle" -ge 3 ]; then
  say 'three times without an iteration: not requeued; it needs a longer time or an earlier signal'
  exit 75
fi
# Nothing that comes now may keep it from the queue.
trap '' TERM
case $(squeue -h -j "$task" -o '%T %r' 2> /dev/null) in
  'COMPLETING TimeLimit'*) notice requeue "$n" 75 ;;
  COMPLETING* | CANCELLED* | PREEMPTED*)
    say 'Slurm has taken the task away, and says whether it comes back'
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
  say 'goes on in a job of its own'
else
  say 'cannot be requeued from here: stratus launch resume'
fi
exit 75
