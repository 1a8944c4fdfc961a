# Trains the repetitions of a launch, one after the other. What is done stays as it is; what was begun is
# continued.
cd "$(dirname "$0")" || exit 1
trap 'stopped=1; : > stop; [ -n "$child" ] && kill -TERM "$child"' TERM
own . "$1"
# What is in the list is this script's, whoever took it once.
for n in $repetitions; do
  [ -e "$n/claimed/trained" ] || rm -rf "$n/claimed"
done
for n in $repetitions; do
  [ -e stop ] && break
  over && break
  [ "$(cat "$n/exit" 2> /dev/null)" = 0 ] && continue
  # Where machines share the repetitions, another may take one that waits.
  mkdir "$n/claimed" 2> /dev/null && : > "$n/claimed/trained"
  [ -e "$n/claimed/trained" ] || continue
  train "$n"
  [ "$code" = 75 ] && break
done
kill "$heart" 2> /dev/null
