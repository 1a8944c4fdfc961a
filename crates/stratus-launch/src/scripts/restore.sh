# restore ROOT JOB REPETITION < tar: replaces a repetition by that of another host, with its run if the
# archive has one.
umask 077
mkdir -p "$1/jobs/$2/$3" && cd "$1/jobs/$2/$3" || exit 11
rm -rf .run run claimed exit
mkdir .run && tar -x -f - -C .run || exit 12
if [ -f .run/experiment.toml ]; then
  mv -T .run run
else
  rm -rf .run
fi
