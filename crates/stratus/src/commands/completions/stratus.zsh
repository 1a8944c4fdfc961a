# Completes by asking the program, which knows experiments, keys, targets and runs.
_stratus_ask() {
    local -a lines values unfinished
    local line value entry with_files
    lines=("${(@f)$(command stratus __complete "${(@Q)words[2,CURRENT]}" 2> /dev/null)}")
    if (( $? != 0 )); then
        # An older program, or none: the flags above.
        _stratus "$@"
        return
    fi
    for line in "${lines[@]}"; do
        value=${line%%$'\t'*}
        entry=${${value//\\/\\\\}//:/\\:}
        [[ -n ${line#*$'\t'} ]] && entry+=:${line#*$'\t'}
        if [[ $line == $'\tfiles' ]]; then
            with_files=yes
        elif [[ $value == *= ]]; then
            unfinished+=("$entry")
        elif [[ -n $value ]]; then
            values+=("$entry")
        fi
    done
    (( $#values )) && _describe -V stratus values
    (( $#unfinished )) && _describe -V stratus unfinished -S ''
    if [[ -n $with_files ]]; then
        compset -P '*='
        _files
    fi
}

if [ "$funcstack[1]" = "_stratus" ]; then
    _stratus_ask "$@"
else
    compdef _stratus_ask stratus
fi
