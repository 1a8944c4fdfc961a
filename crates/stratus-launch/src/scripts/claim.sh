# claim ROOT JOB REPETITION: takes a waiting repetition from the training script, unless it was started.
cd "$1/jobs/$2" || exit 11
mkdir "$3/claimed" 2> /dev/null || { echo begun; exit 0; }
echo claimed
