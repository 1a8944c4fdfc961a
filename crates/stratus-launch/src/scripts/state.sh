# state ROOT JOB REPETITION…: how a job stands; 16 where there is none.
[ -d "$1/jobs" ] && [ ! -d "$1/jobs/$2" ] && exit 16
cd "$1/jobs/$2" || exit 11
shift 2
alive=1
flock -n -s owner.lock true && alive=0
echo "alive=$alive"
owner .
[ -e stop ] && echo stopped=1
for n in "$@"; do
  repetition "$n" .
done
