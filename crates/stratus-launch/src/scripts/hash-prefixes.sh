# hash-prefixes ROOT JOB REPETITION < "length path" lines: prints the hash of each file's first bytes.
cd "$1/jobs/$2/$3/run" || exit 11
while IFS= read -r line; do
  head -c "${line%% *}" "${line#* }" 2> /dev/null | sha256sum | cut -c -64
done
