# missing ROOT < hashes: prints the hashes of missing files, with the size of their partial files.
cd "$1/content" || exit 11
while IFS= read -r hash; do
  [ -f "$hash" ] && continue
  bytes=0
  [ -f "$hash.part" ] && bytes=$(wc -c < "$hash.part")
  echo "$hash $bytes"
done
