# claim ROOT JOB REPETITION: takes a repetition that waits from the script that trains, unless it was begun.
cd "$1/jobs/$2" || exit 11
mkdir "$3/claimed" 2> /dev/null || { echo begun; exit 0; }
echo claimed
