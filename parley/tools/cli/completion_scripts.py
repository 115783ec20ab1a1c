"""The scripts that connect ``parley completion`` to the shells.

Each script passes the words up to the cursor. If there are no candidates, the shell completes file names.
"""

from __future__ import annotations

from typing import Final

BASH: Final = """\
# bash completion for parley
_parley() {
    COMPREPLY=()
    local candidate
    while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
    done < <("$1" completion bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -o bashdefault -o default -F _parley parley
"""

ZSH: Final = """\
#compdef parley
_parley() {
    local -a found
    local line value
    for line in "${(@f)$("${words[1]}" completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        value=${line%%$'\\t'*}
        found+=("$value${${line#$value}/$'\\t'/:}")
    done
    if (( $#found )); then
        _describe -V parley found
    else
        _files
    fi
}
if [ "$funcstack[1]" = "_parley" ]; then
    _parley "$@"
else
    compdef _parley parley
fi
"""

FISH: Final = """\
# fish completion for parley
function __parley_candidates
    set -l words (commandline -opc)
    set -l found ($words[1] completion fish -- $words[2..-1] (commandline -ct | string collect -a) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c parley -f -a '(__parley_candidates)'
"""
