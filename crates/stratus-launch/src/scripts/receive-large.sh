# receive-large ROOT HASH OFFSET SIZE CODING < bytes: appends to a partial file; CODING is gzip for compressed
# bytes. They are hashed as they arrive, so that the connection need not stay open for hashing.
umask 077
cd "$1/content" || exit 11
part=$2.part
[ -f "$part" ] || : > "$part"
[ "$(wc -c < "$part")" -eq "$3" ] || exit 13
decode() {
  if [ "$1" = gzip ]; then gzip -dc; else cat; fi
}
hash=$({ cat "$part" && decode "$5" | tee -a "$part"; } | sha256sum)
[ "$(wc -c < "$part")" -eq "$4" ] || exit 14
if [ "${hash%% *}" != "$2" ]; then
  rm -f "$part"
  exit 15
fi
chmod 500 "$part" && mv -f "$part" "$2"
