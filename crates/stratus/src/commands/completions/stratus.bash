# Completes by asking the program, which knows experiments, keys, targets and runs.
_stratus_ask() {
    local words=() word prefix= line value with_files= rest
    # Splits the line at spaces only: bash would also split it at = and :, which are part of KEY=VALUE.
    read -a words <<< "${COMP_LINE:0:COMP_POINT}"
    [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
    word=${words[${#words[@]} - 1]}
    # Bash replaces what follows the last of these characters.
    rest=$word
    [[ $COMP_WORDBREAKS == *=* ]] && rest=${rest##*=}
    [[ $COMP_WORDBREAKS == *:* ]] && rest=${rest##*:}
    prefix=${word%"$rest"}
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ $line == $'\tfiles' ]]; then
            with_files=yes
            continue
        fi
        value=${line%%$'\t'*}
        COMPREPLY+=("${value#"$prefix"}")
    done < <(command stratus __complete "${words[@]:1}" 2> /dev/null)
    if [[ $with_files ]]; then
        while IFS= read -r line; do
            COMPREPLY+=("$line")
        done < <(compgen -f -- "$rest")
        # Quotes names, and ends those of folders with a slash.
        compopt -o filenames 2> /dev/null
    elif [[ ${#COMPREPLY[@]} -eq 0 ]]; then
        # An older program, or none: the flags above.
        command stratus __complete > /dev/null 2>&1 || _stratus "$@"
    fi
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2> /dev/null
}
if [[ ${BASH_VERSINFO[0]} -gt 4 || ${BASH_VERSINFO[0]} -eq 4 && ${BASH_VERSINFO[1]} -ge 4 ]]; then
    complete -F _stratus_ask -o nosort stratus
else
    complete -F _stratus_ask stratus
fi
