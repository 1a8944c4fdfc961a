# Trains the repetitions of a launch, one after the other. Completed ones are skipped, started ones resumed.
cd "$(dirname "$0")" || exit 1
trap 'stopped=1; : > stop; [ -n "$child" ] && kill -TERM "$child"' TERM
take_ownership . "$1"
# The listed repetitions belong to this script, even if another host claimed them before.
for n in $repetitions; do
  [ -e "$n/claimed/trained" ] || rm -rf "$n/claimed"
  # One that failed before waits to be trained again.
  is_done "$n" || rm -f "$n/exit"
done
for n in $repetitions; do
  [ -e stop ] && break
  lease_expired && break
  is_done "$n" && continue
  # Another host may have claimed a waiting repetition.
  mkdir "$n/claimed" 2> /dev/null && : > "$n/claimed/trained"
  [ -e "$n/claimed/trained" ] || continue
  train "$n"
  [ "$code" = 75 ] && break
done
kill "$heartbeat_pid" 2> /dev/null
