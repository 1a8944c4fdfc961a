# check-host FOLDER WORKING_FOLDER PROBE PROGRAM FILE…: checks that this host can run workers, and prints the
# problem, or the version and the address from which it was reached. Each answer is a line with a mark, since
# start-up files of the account may print anything.
say() {
  printf 'stratus-host %s %s\n' "$1" "$2"
}
probe=$3
if [ "$(cat "$1/$probe" 2> /dev/null)" != "$probe" ]; then
  say run "$1"
fi
if [ ! -d "$2" ]; then
  say folder "$2"
  exit 0
fi
shift 3
program=$1
for file in "$@"; do
  if [ ! -f "$file" ]; then
    say missing "$file"
    exit 0
  fi
done
if ! version=$("$program" --version 2>&1 < /dev/null); then
  say broken "$(printf '%s' "$version" | tail -n 1)"
  exit 0
fi
say version "$(printf '%s' "$version" | head -n 1)"
say caller "${SSH_CONNECTION%% *}"
