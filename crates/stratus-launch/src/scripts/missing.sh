# missing ROOT < hashes: those that are not there, with the bytes that are.
cd "$1/content" || exit 11
while IFS= read -r hash; do
  [ -f "$hash" ] && continue
  bytes=0
  [ -f "$hash.part" ] && bytes=$(wc -c < "$hash.part")
  echo "$hash $bytes"
done
