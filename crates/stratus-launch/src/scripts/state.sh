# state ROOT JOB REPETITION…: prints the state of a job. Exits with 16 if the job does not exist.
[ -d "$1/jobs" ] && [ ! -d "$1/jobs/$2" ] && exit 16
cd "$1/jobs/$2" || exit 11
shift 2
flock -n -s owner.lock true
alive=$?
# 1 means that another process holds the lock, other codes that the file cannot be opened.
[ "$alive" -le 1 ] || exit 13
echo "alive=$alive"
owner .
[ -f current ] && echo "current=$(head -c 20 current)"
[ -e stop ] && echo stopped=1
for n in "$@"; do
  repetition "$n" .
done
