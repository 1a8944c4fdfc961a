# measure-link PROGRAM BYTES: prints the time, then BYTES bytes of the program; the receiver times them.
date +%s
head -c "$2" "$1"
