# One job of SkyPilot trains one repetition, on the machine's own disk. What it has made is kept where the
# bucket is mounted, in two places by turns, each with a list of hashes that is written last: what was cut is
# not taken for whole, in whatever order a mount writes.
umask 077
jobs=$root/jobs/$launch
kept=$jobs/$n
work=$folder/jobs/$launch
say() {
  echo "stratus: $1"
}
mkdir -p "$kept" "$work/$n" "$folder/program" && cd "$work" || exit 1
# Whether it was stopped after it was handed over.
is_stopped() {
  asked=$(cat "$jobs/stop" 2> /dev/null)
  case $asked in
    '' | *[!0-9]*) return 1 ;;
  esac
  [ "$asked" -ge "$submitted" ]
}
# tell: how it stands, for those who ask.
tell() {
  { repetition "$n" "$n"; owner "$n"; } > ".state.$n" && cp ".state.$n" "$kept/.state.tmp" \
    && mv -f "$kept/.state.tmp" "$kept/state"
}
# copied FOLDER PATTERN…: brings the files of the run that find finds up to date in the folder.
copied() {
  to=$1
  shift
  (cd "$n/run" && find "$@") 2> /dev/null | while IFS= read -r file; do
    cmp -s "$n/run/$file" "$to/$file" && continue
    mkdir -p "$to/${file%/*}"
    # What goes meanwhile is looked for below.
    cp "$n/run/$file" "$to/$file" 2> /dev/null
  done
}
# keep: keeps the run as it is.
keep() {
  [ -f "$n/run/experiment.toml" ] || return 0
  count=$(($(cat "$n/kept" 2> /dev/null || echo 0) + 1))
  place=$kept/run.$((count % 2))
  rm -f "$place.list"
  mkdir -p "$place" || return 1
  tries=0
  while :; do
    before=$(ls "$n/run/checkpoints" 2> /dev/null)
    # Checkpoints first: rows that are ahead of them do no harm.
    copied "$place" ./checkpoints -name '.*.tmp' -prune -o -type f -print
    copied "$place" . -name '.*.tmp' -prune -o -path ./checkpoints -prune -o -name run.lock -o -type f -print
    (cd "$place" && find . -type f) | while IFS= read -r file; do
      [ -f "$n/run/$file" ] || rm -f "$place/$file"
    done
    [ "$before" = "$(ls "$n/run/checkpoints" 2> /dev/null)" ] && break
    tries=$((tries + 1))
    [ "$tries" -lt 5 ] || return 1
  done
  echo "$count" > ".list.$n" && (cd "$place" && find . -type f -exec sha256sum {} +) >> ".list.$n" || return 1
  cp ".list.$n" "$place.list.tmp" && mv -f "$place.list.tmp" "$place.list" && echo "$count" > "$n/kept"
}
# restore: takes the newest that was kept whole, unless what is here is newer.
restore() {
  for place in 0 1; do
    list=$kept/run.$place.list
    [ -f "$list" ] && echo "$(head -n 1 "$list") $place"
  done | sort -rn > ".kept.$n"
  while read -r count place; do
    case $count$place in
      '' | *[!0-9]*) continue ;;
    esac
    [ -f "$n/run/experiment.toml" ] && [ "$(cat "$n/kept" 2> /dev/null || echo 0)" -ge "$count" ] && return
    tail -n +2 "$kept/run.$place.list" > ".list.$n"
    (cd "$kept/run.$place" && sha256sum -c --status "$work/.list.$n") || continue
    rm -rf "$n/run" "$n/.run"
    cp -r "$kept/run.$place" "$n/.run" && mv "$n/.run" "$n/run" && echo "$count" > "$n/kept"
    say "goes on from what was kept"
    return
  done < ".kept.$n"
}
# keeper: keeps the run with each new checkpoint, and hears whether it is stopped.
keeper() {
  last=$(ls "$n/run/checkpoints" 2> /dev/null)
  while kill -0 "$1" 2> /dev/null; do
    echo "$(uname -n) $(date +%s)" > "$kept/beat"
    if is_stopped && [ ! -e stop ]; then
      : > stop
      kill -TERM "$1"
    fi
    now=$(ls "$n/run/checkpoints" 2> /dev/null)
    if [ "$now" != "$last" ]; then
      keep && last=$now
    fi
    tell
    sleep "$pause"
  done
}
rm -f stop
is_stopped && exit 0
over && exit 0
# One that was given up may still train: its heart beats, and is seen as late as the mount shows it.
if [ -f "$kept/beat" ] && read -r host _ < "$kept/beat" && [ "$host" != "$(uname -n)" ]; then
  before=$(cat "$kept/beat")
  sleep "$((6 * pause))"
  if [ "$before" != "$(cat "$kept/beat" 2> /dev/null)" ]; then
    say "repetition $n is being trained already, on $host"
    exit 20
  fi
fi
# Where a bucket is mounted nothing can be executed.
own_program=$folder/program/$launch
mkdir -p "$own_program" && cp "$program" "$own_program/.stratus.$n" && chmod 500 "$own_program/.stratus.$n" \
  && mv -f "$own_program/.stratus.$n" "$own_program/stratus" || exit 1
program=$own_program/stratus
if ! "$program" --version; then
  say 'the program does not run on this machine: another architecture, or an older glibc'
  exit 1
fi
cp "$kept/experiment.toml" "$n/experiment.toml" || exit 1
restore
[ -f "$n/spent" ] || cp "$kept/spent" "$n/spent" 2> /dev/null
trap 'stopped=1; [ -n "$child" ] && kill -TERM "$child"' TERM
own "$n" "$launch-$n"
keeper $$ 9>&- < /dev/null > /dev/null 2>&1 &
keeping=$!
say "trains repetition $n"
# What it says is shown as it comes.
: >> "$n/log.txt"
tail -n 0 -F "$n/log.txt" 2> /dev/null 9>&- &
showing=$!
train "$n"
kill "$heart" "$keeping" 2> /dev/null
wait "$keeping" 2> /dev/null
keep || say 'what it made last could not be kept'
cp "$n/spent" "$kept/spent"
tell
rm -f "$kept/beat"
sleep 1
kill "$showing" 2> /dev/null
say "ended with $code"
# The exit code 75 asks SkyPilot for another start: that is for machines that are taken away alone.
if [ "$code" = 75 ]; then
  if [ -e stop ] || [ -z "$stopped" ] || over; then
    exit 0
  fi
fi
exit "$code"
