# assemble-folder ROOT FOLDER < "hash path" lines: builds the folder from received files, then renames it.
umask 077
cd "$1" || exit 11
[ -d "$2" ] && exit 0
made=$2.tmp.$$
mkdir -p "$made" || exit 11
while IFS= read -r line; do
  hash=${line%% *}
  path=${line#* }
  case $path in
    */*) mkdir -p "$made/${path%/*}" || exit 12 ;;
  esac
  ln "content/$hash" "$made/$path" 2> /dev/null || cp "content/$hash" "$made/$path" || exit 12
done
mv -T "$made" "$2" 2> /dev/null || { rm -rf "$made"; [ -d "$2" ]; }
