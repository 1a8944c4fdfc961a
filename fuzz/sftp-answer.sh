#!/bin/sh
# Replaces `ssh` for the target sftp: sends the prepared answers whatever is asked.
exec 2>&-
cat "$STRATUS_FUZZ_ANSWER"
exec >&-
cat > /dev/null
