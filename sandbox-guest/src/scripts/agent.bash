# The shell at the far end of a stream. It is fed to `bash --norc --noprofile -p` on standard input, length first; each request
# after it is a length, a newline and that many bytes of shell text, composed and quoted by the client.
#
# Everything here runs as the tenant and in the tenant's reach. Names begin with __sbx: the client lets no caller use them.
# Only builtins are used, except dd for long requests and cat for draining. Descriptors: 0 requests, 1 the stream's output, 8 its
# standard error; 2 is silenced, so that no message of this shell lands in a tenant's output.

__sbx_slow=() __sbx_heard=
exec 8>&2 2>/dev/null
set +o posix
shopt -u failglob nullglob dotglob extdebug
trap : HUP INT TERM PIPE ALRM USR1 USR2
cd /

# Variables of the sandbox that would change this shell are put aside, and given back to each command.
__sbx_keep=()
for __sbx_n in BASH_COMPAT BASH_ENV CDPATH EXECIGNORE FUNCNEST GLOBIGNORE IFS LANG LC_ALL LC_COLLATE LC_CTYPE \
    LC_MESSAGES LC_NUMERIC LC_TIME POSIXLY_CORRECT PS4 TMOUT; do
    [[ ${!__sbx_n+x} && ${!__sbx_n@a} == *x* ]] && __sbx_keep+=("$__sbx_n=${!__sbx_n}")
    unset "$__sbx_n"
done
set +o posix
IFS=$' \t\n'
LC_ALL=C
IFS=' ' read -r -a __sbx_self </proc/$$/stat
declare -A __sbx_seen

# Reads one framed request into __sbx_req; fails at the end of input.
__sbx_next() {
    local len
    IFS= read -r len || return 1
    [[ $len =~ ^[0-9]{1,8}$ ]] || return 1
    if ((len < 16384)); then
        IFS= read -r -N "$len" __sbx_req
    else
        __sbx_req=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -p dd bs=64K iflag=fullblock,count_bytes count="$len" status=none && printf x)
        __sbx_req=${__sbx_req%x}
    fi
    ((${#__sbx_req} == len))
}

# Sets __sbx_what for a process: gone, free (it is dead, or it came in from outside and is nobody's child here, so that it cannot
# have a command's output), opaque, or open to be looked at.
__sbx_look() {
    local line=
    IFS= read -r -d '' line <"$1/stat"
    line=${line##*) }
    case $line in
    '') __sbx_what=gone ;;
    Z* | X* | ?' 0 '*) __sbx_what=free ;;
    *) [[ -r $1/fd && -x $1/fd ]] && __sbx_what=open || __sbx_what=opaque ;;
    esac
}

# Whether a process that is not in the snapshot holds this stream's output, or may: who cannot be looked at counts as holding it.
# A pid that vanishes under the scan can have left a child that the list lacks: then look again.
__sbx_stragglers() {
    local round p f again left=2048
    for ((round = 0; round < 6; round++)); do
        again=
        for p in /proc/[0-9]*; do
            [[ ${__sbx_seen[$p]} ]] && continue
            __sbx_look "$p"
            case $__sbx_what in
            gone) again=1 && continue ;;
            free) continue ;;
            opaque) return 0 ;;
            esac
            for f in "$p"/fd/*; do
                ((left-- > 0)) || return 0
                if [[ $f -ef /proc/self/fd/1 || $f -ef /proc/self/fd/8 ]]; then
                    return 0
                elif [[ ! -e $f ]]; then
                    [[ -L $f ]] && return 0
                    again=1
                fi
            done
            [[ -d $p ]] || again=1
        done
        [[ $again ]] || return 1
    done
    return 0
}

# __sbx_end NONCE TEXT: the end record, on both streams.
__sbx_end() {
    printf '%sE%04x%s' "$1" "${#2}" "$2" >&8
    printf '%sE%04x%s' "$1" "${#2}" "$2"
}

# Whether somebody can still write to what this drain reads, descriptors 6 and 7. Other readers do not count, nor does the
# carrier's own process outside, which is not in sight and may hold the pipe for as long as this shell lives.
__sbx_written() {
    local p f key value flags
    for p in /proc/[0-9]*; do
        [[ $p == "/proc/$$" ]] && continue
        __sbx_look "$p"
        [[ $__sbx_what == opaque ]] && return 0
        [[ $__sbx_what == open ]] || continue
        for f in "$p"/fd/[0-9]*; do
            [[ $f -ef /proc/self/fd/6 || $f -ef /proc/self/fd/7 ]] || continue
            flags=
            while IFS=$' \t' read -r key value; do [[ $key == flags: ]] && flags=$value; done <"$p/fdinfo/${f##*/}"
            [[ $flags == *[12] ]] && return 0
        done
    done
    return 1
}

# Somebody still holds the stream's output. Once the client has read the end record and closed its side, this shell turns into a
# reader of its own output, so that a background process may go on printing, for as long as there is one.
__sbx_retire() {
    local out err pause=0.1 readers
    exec 6</proc/self/fd/1 7</proc/self/fd/8
    __sbx_end "$1" "$2"
    exec 1>/dev/null 8>&-
    while IFS= read -r -N 4096 __sbx_req; do :; done
    exec 0</dev/null
    PATH=/usr/sbin:/usr/bin:/sbin:/bin
    cat <&6 >/dev/null 6<&- 7<&- &
    out=$!
    cat <&7 >/dev/null 6<&- 7<&- &
    err=$!
    # Never readable and never at its end: a read from it with a time limit is a pause without a process.
    exec 5<> <(:)
    readers=1
    while [[ $readers ]] && __sbx_written; do
        IFS= read -r -t "$pause" -u 5
        case $pause in 0.1) pause=1 ;; 1) pause=5 ;; esac
        readers=
        kill -0 "$out" && readers=1
        kill -0 "$err" && readers=1
    done
    kill -KILL "$out" "$err"
    exit 0
}

# Passes on the command's input, which comes as lengths and that many bytes, until a length of 0.
__sbx_feed() {
    local len
    while IFS= read -r len && [[ $len =~ ^[1-9][0-9]{0,7}$ ]]; do
        PATH=/usr/sbin:/usr/bin:/sbin:/bin command -p dd bs=64K iflag=fullblock,count_bytes count="$len" status=none || break
    done
}

# __sbx_exec BEGIN END MARKER KIND REOPEN INPUT WORKDIR ENVS SLOWS [NAME=VALUE...] COMMAND...
# KIND: shell, long (a text that does not fit into an argument) or args. INPUT: whether requests' descriptor feeds the command.
# Nothing begins where nobody hears of it: the client is gone.
__sbx_exec() {
    local __sbx_begin=$1 __sbx_end=$2 __sbx_marker=$3 __sbx_kind=$4 __sbx_reopen=$5 __sbx_input=$6 __sbx_workdir=$7 __sbx_envs=$8 __sbx_slows=$9
    local __sbx_pid __sbx_code __sbx_before __sbx_near
    shift 9
    if [[ ! -d $__sbx_workdir ]]; then
        printf '%sB0000' "$__sbx_begin" >&8
        printf '%sB0000' "$__sbx_begin"
        # Something that is no directory stands there, or above it; else there is nothing.
        __sbx_near=$__sbx_workdir
        while [[ $__sbx_near && ! -e $__sbx_near && ! -L $__sbx_near ]]; do __sbx_near=${__sbx_near%/*}; done
        [[ ! $__sbx_near || -d $__sbx_near ]] && __sbx_code=n || __sbx_code=d
        __sbx_end "$__sbx_end" "w $__sbx_code"
        return
    fi
    __sbx_before=(/proc/[0-9]*)
    printf '%sB0000' "$__sbx_begin" >&8
    printf '%sB0000' "$__sbx_begin" || exit 0
    if [[ $__sbx_input ]]; then exec 9< <(__sbx_feed 8>&-); else exec 9</dev/null; fi
    set -m
    if [[ $__sbx_reopen ]]; then
        __sbx_child "$@" <&9 >/proc/self/fd/1 2>/proc/self/fd/8 8>&- 9<&- &
    else
        __sbx_child "$@" <&9 2>&8 8>&- 9<&- &
    fi
    set +m
    __sbx_pid=$!
    exec 9<&-
    while :; do
        wait "$__sbx_pid"
        __sbx_code=$?
        ((__sbx_code > 128)) && kill -0 "$__sbx_pid" && continue
        break
    done
    __sbx_last=(/proc/[0-9]*)
    if [[ ${__sbx_before[*]} != "${__sbx_last[*]}" ]]; then
        __sbx_seen=()
        for __sbx_pid in "${__sbx_before[@]}"; do __sbx_seen[$__sbx_pid]=1; done
        if __sbx_stragglers; then __sbx_retire "$__sbx_end" "x $__sbx_code 1"; fi
    fi
    __sbx_end "$__sbx_end" "x $__sbx_code 0"
}

# __sbx_startable NAME: ends this process if that program cannot be started, with the words and the code of a shell, but without a line of
# this one.
__sbx_startable() {
    local at=$1 line='' what='' code=126
    if [[ $1 != */* ]]; then
        hash -- "$1" 2>/dev/null || what='command not found' code=127
        [[ $1 =~ ^[[:alnum:]._+-]+$ ]] && at=${BASH_CMDS[$1]}
    elif [[ ! -e $1 ]]; then
        what='No such file or directory' code=127
    elif [[ -d $1 ]]; then
        what='Is a directory'
    elif [[ ! -x $1 ]]; then
        what='Permission denied'
    fi
    if [[ ! $what && $at == */* && -f $at && -r $at ]] && IFS= read -r -n 2 line <"$at" && [[ $line == '#!' ]]; then
        IFS= read -r -n 256 line <"$at"
        line=${line:2}
        line=${line#"${line%%[![:blank:]]*}"}
        line=${line%%[[:blank:]]*}
        [[ -e $line ]] || what="its interpreter $line: No such file or directory" code=127
    fi
    [[ $what ]] || return
    printf '%s: %s\n' "$1" "$what" >&2
    exit "$code"
}

# The command's process, from fork to exec. Sees the locals of __sbx_exec: in a function that is on the way here, no variable of a caller's may
# have the name of a local.
__sbx_child() {
    [[ $__sbx_heard ]] && exec {__sbx_heard}>&-
    if ! cd -- "$__sbx_workdir" 2>/dev/null; then
        printf '%s: cannot be entered\n' "$__sbx_workdir" >&2
        exit 126
    fi
    unset OLDPWD SHLVL LC_ALL
    export __sbx_exec="$__sbx_marker"
    ((__sbx_envs)) && export "${@:1:__sbx_envs}"
    local __sbx_words=("${__sbx_slow[@]}" "${@:__sbx_envs+1:__sbx_slows}")
    shift $((__sbx_envs + __sbx_slows))
    [[ $__sbx_kind == args ]] && __sbx_startable "$1"
    if ((${#__sbx_words[@]})); then
        __sbx_words=(/usr/bin/env -- "${__sbx_words[@]}")
        [[ -x /usr/bin/env ]] || __sbx_words[0]=/bin/env
        if [[ $__sbx_kind == args && $1 == *=* ]]; then
            # It would be taken for one more variable: somebody else starts it, who changes nothing either.
            [[ -x /usr/bin/nice ]] && __sbx_words+=(/usr/bin/nice) || __sbx_words+=(/bin/nice)
            __sbx_words+=(-n 0 --)
        fi
    fi
    # Last, since they would change this shell; no other variable has one of their names. A locale that the image does not have is the
    # command's to complain about.
    { ((${#__sbx_keep[@]})) && export "${__sbx_keep[@]}"; } 2>/dev/null
    case $__sbx_kind in
    shell) exec -- "${__sbx_words[@]}" /bin/bash -c "$1" ;;
    args) exec -- "${__sbx_words[@]}" "$@" ;;
    long)
        # shellcheck disable=SC2016 # for the inner shell to expand
        # The text comes through a pipe; the last character keeps newlines at its end alive.
        exec -- "${__sbx_words[@]}" /bin/bash -c '__sbx_text=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin command -p cat <&9 && printf x); exec 9<&-; __sbx_text=${__sbx_text%x}; eval "unset __sbx_text; $__sbx_text"' \
            9< <(printf %s "$1")
        ;;
    esac
    exit 126
}

# __sbx_main NONCE: says READY and serves requests until there are no more.
__sbx_main() {
    local __sbx_ready="$$ ${__sbx_self[21]}"
    printf '%sR%04x%s' "$1" "${#__sbx_ready}" "$__sbx_ready"
    while __sbx_next; do eval "$__sbx_req"; done
    exit 0
}
