# slurm-state ROOT JOB REPETITION…: prints the state of a job from its files and the queue, and from `sacct`
# for tasks in neither. Exits with 16 if the job does not exist.
[ -d "$1/jobs" ] && [ ! -d "$1/jobs/$2" ] && exit 16
cd "$1/jobs/$2" || exit 11
job=$2
shift 2
me=$(id -un)
if queue=$(squeue -h -r -u "$me" -n "$job" -o '%i|%T|%r' 2> /dev/null); then
  echo "$queue" | sed 's/^/queue=/'
else
  echo 'queue_unknown=1'
fi
gone=
for n in "$@"; do
  [ -f "$n/exit" ] && continue
  case $queue in
    *"_$n|"*) ;;
    *) gone=1 ;;
  esac
done
if [ -n "$gone" ]; then
  sacct -n -X -P -u "$me" --name "$job" -S now-60days -o JobID,State 2> /dev/null | sed 's/^/account=/'
fi
for n in "$@"; do
  repetition "$n" "$n"
  owner "$n"
done
