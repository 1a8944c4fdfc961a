# Completes by asking the program, which knows experiments, keys, targets and runs.
function __stratus_ask
    set -l words (commandline --tokenize --cut-at-cursor --current-process)
    set -l current (commandline --cut-at-cursor --current-token)
    test (count $current) -eq 0; and set current ""
    for line in (command stratus __complete $words[2..-1] $current 2> /dev/null)
        switch $line
            case \tfiles
                # The value of a key, such as `data.path=`, is completed like a word of its own.
                set -l key (string match --regex -- '^[^=]*=' $current)
                set -l prefix (string replace -- "$key" "" $current)
                for path in (__fish_complete_path "$prefix")
                    printf '%s%s\n' "$key" $path
                end
            case '*'
                printf '%s\n' $line
        end
    end
end
complete --command stratus --no-files --arguments '(__stratus_ask)'
