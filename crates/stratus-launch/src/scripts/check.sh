# check FOLDER: creates the folder and prints facts about the host.
case $1 in
  '~') root=$HOME ;;
  '~/'*) root=$HOME/${1#'~/'} ;;
  *) root=$1 ;;
esac
umask 077
mkdir -p "$root/content" "$root/jobs" "$root/program" "$root/data" || exit 11
: > "$root/.probe.$$" || exit 11
rm -f "$root/.probe.$$"
cd "$root" || exit 11
missing=
for program in tar tee sha256sum setsid flock nohup df head tail wc stat find; do
  command -v "$program" > /dev/null 2>&1 || missing="$missing $program"
done
free=$(df -Pk . | tail -n 1 | { read -r _ _ _ free _; echo "$free"; })
processor=$(grep -m 1 '^model name' /proc/cpuinfo 2> /dev/null | cut -d : -f 2-)
printf 'root=%s\nsystem=%s\narchitecture=%s\nglibc=%s\nfree_kib=%s\nmissing=%s\nhost=%s\n' \
  "$(pwd -P)" "$(uname -s)" "$(uname -m)" "$(getconf GNU_LIBC_VERSION 2> /dev/null)" "$free" "$missing" \
  "$(uname -n)"
printf 'processor=%s\ngzip=%s\n' "$processor" "$(command -v gzip)"
