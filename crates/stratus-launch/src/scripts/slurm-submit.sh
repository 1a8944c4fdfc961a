# slurm-submit ROOT JOB CONCURRENT REPETITION… < tar: submits repetitions neither completed nor queued.
umask 077
mkdir -p "$1/jobs/$2" && cd "$1/jobs/$2" || exit 11
job=$2
concurrent=$3
shift 3
exec 9>> submit.lock
flock -w 60 9 || exit 21
queued=$(squeue -h -r -u "$(id -un)" -n "$job" -o '%K') || exit 22
tar -x -f - || exit 12
todo=
for n in "$@"; do
  [ "$(cat "$n/exit" 2> /dev/null)" = 0 ] \
    && [ "$(cat "$n/goal" 2> /dev/null)" = "$(cat "$n/reached" 2> /dev/null)" ] && continue
  echo "$queued" | grep -q -x "$n" && continue
  todo="$todo,$n"
done
if [ -z "$todo" ]; then
  [ -n "$queued" ] && exit 20
  exit 0
fi
rm -f stop
for n in $(echo "$todo" | tr ',' ' '); do
  rm -f "$n/exit" "$n/idle"
done
[ "$concurrent" -gt 0 ] && todo="$todo%$concurrent"
# Slurm stores the environment of jobs on disk.
unset STRATUS_WEBHOOK
# Closes the lock: the started process may outlive this script.
sbatch --parsable --array="${todo#,}" batch.sh 9>&- || exit 23
