# large ROOT HASH OFFSET SIZE < bytes: goes on with a file behind the bytes that are there. It is hashed as it
# comes, so that the connection need not wait for that.
umask 077
cd "$1/content" || exit 11
part=$2.part
[ -f "$part" ] || : > "$part"
[ "$(wc -c < "$part")" -eq "$3" ] || exit 13
hash=$({ cat "$part" && tee -a "$part"; } | sha256sum)
[ "$(wc -c < "$part")" -eq "$4" ] || exit 14
if [ "${hash%% *}" != "$2" ]; then
  rm -f "$part"
  exit 15
fi
chmod 500 "$part" && mv -f "$part" "$2"
