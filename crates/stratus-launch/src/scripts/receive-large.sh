# receive-large ROOT HASH OFFSET SIZE < bytes: appends to a partial file. Bytes are hashed as they arrive, so
# that the connection need not stay open for hashing.
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
