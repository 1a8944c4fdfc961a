# stop ROOT JOB: signals the training process to save a checkpoint and stop.
[ -d "$1/jobs" ] && [ ! -d "$1/jobs/$2" ] && { echo idle; exit 0; }
cd "$1/jobs/$2" || exit 11
flock -n -s owner.lock true && { echo idle; exit 0; }
: > stop
pid=$(cat pid 2> /dev/null)
[ -n "$pid" ] && kill -TERM "$pid" 2> /dev/null
echo asked
