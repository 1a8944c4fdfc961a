# Trains the repetitions of a launch, one after the other. What is done stays as it is; what was begun is
# continued. The lock is the trainings' too: as long as one lives, no other starts.
cd "$(dirname "$0")" || exit 1
exec 9>> owner.lock
# Who only asks whether it is held has it for an instant.
flock -w 5 9 || exit 5
echo "$1 $(uname -n) $$ $(date +%s)" > .owner && mv -f .owner owner
beat() {
  while kill -0 "$1" 2> /dev/null; do
    date +%s > .heartbeat && mv -f .heartbeat heartbeat
    sleep 2
  done
}
beat $$ 9>&- < /dev/null > /dev/null 2>&1 &
heart=$!
child=
trap ': > stop; [ -n "$child" ] && kill -TERM "$child"' TERM
for n in $repetitions; do
  [ -e stop ] && break
  [ "$(cat "$n/exit" 2> /dev/null)" = 0 ] && continue
  rm -f "$n/exit"
  if [ -f "$n/run/experiment.toml" ]; then
    set -- "$n/run"
  else
    set -- "$n/experiment.toml" --out "$n/run"
  fi
  "$program" train "$@" < /dev/null >> "$n/log.txt" 2>&1 &
  child=$!
  echo "$child" > pid
  wait "$child"
  code=$?
  # A signal ends the wait, not the training.
  while kill -0 "$child" 2> /dev/null; do
    wait "$child"
    code=$?
  done
  child=
  echo "$code" > "$n/.exit" && mv -f "$n/.exit" "$n/exit"
  [ "$code" = 75 ] && break
done
rm -f pid
kill "$heart" 2> /dev/null
