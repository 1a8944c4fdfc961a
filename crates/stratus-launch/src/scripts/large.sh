# large ROOT HASH OFFSET SIZE < bytes: goes on with a file behind the bytes that are there.
umask 077
cd "$1/content" || exit 11
part=$2.part
[ -f "$part" ] || : > "$part"
[ "$(wc -c < "$part")" -eq "$3" ] || exit 13
cat >> "$part" || exit 12
[ "$(wc -c < "$part")" -eq "$4" ] || exit 14
if ! echo "$2  $part" | sha256sum -c > /dev/null 2>&1; then
  rm -f "$part"
  exit 15
fi
chmod 500 "$part" && mv -f "$part" "$2"
