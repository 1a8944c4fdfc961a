# submit ROOT JOB TOKEN < webhook address, tar: starts a job, or prints its owner.
umask 077
IFS= read -r webhook
mkdir -p "$1/jobs/$2" && cd "$1/jobs/$2" || exit 11
# Another host that shares the folder may own it. Its heartbeat changes every two seconds, even if the clocks
# differ.
if [ -f owner ] && read -r _ host _ < owner && [ "$host" != "$(uname -n)" ]; then
  before=$(cat heartbeat 2> /dev/null)
  sleep 6
  if [ "$before" != "$(cat heartbeat 2> /dev/null)" ]; then
    cat owner
    exit 20
  fi
fi
# 1 means that another process holds the lock, other codes that the file cannot be opened.
flock -n -s owner.lock true
locked=$?
if [ "$locked" -eq 1 ]; then
  cat owner
  exit 20
fi
[ "$locked" -eq 0 ] || exit 13
tar -x -f - || exit 12
rm -f stop
STRATUS_WEBHOOK=$webhook setsid nohup sh launch.sh "$3" < /dev/null >> launch.log 2>&1 &
tries=0
while [ "$tries" -lt 100 ]; do
  if [ -f owner ] && read -r token _ < owner && [ "$token" = "$3" ]; then
    exit 0
  fi
  # Another start may have won the race.
  if ! kill -0 $! 2> /dev/null; then
    flock -n -s owner.lock true
    if [ $? -eq 1 ]; then
      cat owner
      exit 20
    fi
  fi
  sleep 0.1
  tries=$((tries + 1))
done
exit 21
