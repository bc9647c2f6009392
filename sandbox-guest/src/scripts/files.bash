# Reading files, and what all file operations stand on. Comes to a serving shell with the first request that needs it.
#
# A request is answered by records on standard output; the last one has kind E and the text STEP CLASS [DETAIL]. STEP is + if the
# shell has consumed all that belongs to the request and serves the next one, - if it does not. What a tool says is only ever a
# reason in words: the class comes from this shell's own tests.

# Where a builtin's complaint goes that must not be missed: a pipe that only this shell has.
exec {__sbx_heard}<> <(:)

# __sbx_find PATH: where the tools are.
__sbx_find() { __sbx_tools=$1; }

# __sbx_say NONCE KIND TEXT: one record.
__sbx_say() { printf '%s%s%04x%s' "$1" "$2" "${#3}" "$3"; }

# __sbx_tool NAME ARGUMENT...: becomes that tool, which finds no variable of anybody. For subshells.
__sbx_tool() {
    PATH=$__sbx_tools
    exec -c -- "$@"
}

# __sbx_do NAME ARGUMENT...: runs a tool; what it prints is in __sbx_err.
__sbx_do() {
    __sbx_err=$(__sbx_tool "$@" 2>&1 </dev/null)
    __sbx_code=$?
    __sbx_name=$1
    return "$__sbx_code"
}

# __sbx_blame CLASS: sets __sbx_fault from what the last tool said.
__sbx_blame() {
    if ((__sbx_code == 127)); then
        __sbx_fault="notool $__sbx_name"
    else
        __sbx_err=${__sbx_err##*$'\n'}
        __sbx_err=${__sbx_err##*: }
        __sbx_err=${__sbx_err:-$__sbx_name ended with $__sbx_code}
        __sbx_fault="$1 ${__sbx_err:0:400}"
    fi
}

# __sbx_pump COUNT IN OUT FILE: copies at most COUNT bytes from one descriptor to the other. __sbx_got says how many, by dd's
# own count or, failing that, by the position of the descriptor FILE.
__sbx_pump() {
    local before
    __sbx_pos "$4"
    before=$__sbx_at
    { __sbx_err=$(__sbx_tool dd bs=64K iflag=fullblock,count_bytes "count=$1" <&"$2" 2>&1 >&9); } 9>&"$3"
    __sbx_code=$?
    __sbx_name='dd'
    if [[ $__sbx_err =~ (^|$'\n')([0-9]+)' byte' ]]; then
        __sbx_got=${BASH_REMATCH[2]}
    else
        __sbx_pos "$4"
        __sbx_got=$((__sbx_at - before))
    fi
    __sbx_err=${__sbx_err%%$'\n'*}
    return "$__sbx_code"
}

# __sbx_pos FD: its position in __sbx_at, 0 where the kernel does not tell.
__sbx_pos() {
    local key value
    __sbx_at=0
    while IFS=$' \t' read -r key value; do
        [[ $key == pos: && $value =~ ^[0-9]+$ ]] && __sbx_at=$value
    done <"/proc/self/fdinfo/$1"
}

# __sbx_walk PATH: the nearest component that exists in __sbx_near, and those below it, deepest first, in __sbx_gone.
__sbx_walk() {
    __sbx_near=$1
    __sbx_gone=()
    while [[ ! -e $__sbx_near && ! -L $__sbx_near ]]; do
        __sbx_gone+=("$__sbx_near")
        __sbx_near=${__sbx_near%/*}
        if [[ ! $__sbx_near ]]; then
            __sbx_near=/
            return
        fi
    done
}

# __sbx_missing PATH: why PATH does not exist, in __sbx_fault. Fails if by now it does.
__sbx_missing() {
    __sbx_walk "$1"
    ((${#__sbx_gone[@]})) || return 1
    if [[ ! -d $__sbx_near ]]; then
        __sbx_fault=notdir
    elif [[ ! -x $__sbx_near ]]; then
        __sbx_fault='denied Permission denied'
    else
        __sbx_fault=missing
    fi
}

# __sbx_read NONCE LIMIT PATH: a record B, the content, a record E with how much it was.
__sbx_read() {
    local nonce=$1 limit=$2 path=$3 size fd=''
    __sbx_fault=
    if __sbx_open; then
        if __sbx_sip; then
            :
        elif ! __sbx_do stat -L -c %s -- "/proc/self/fd/$fd"; then
            __sbx_blame failed
        elif [[ ! $__sbx_err =~ ^[0-9]{1,18}$ ]]; then
            __sbx_fault='failed a size that is no number'
        elif ((__sbx_err > limit)); then
            __sbx_fault="large $__sbx_err"
        else
            # Not what stat said: a file in /proc has size 0 and content, and a file may grow meanwhile.
            size=$__sbx_err
            __sbx_say "$nonce" B "$size"
            if ! __sbx_pump "$((limit + 1))" "$fd" 1 "$fd"; then
                __sbx_blame failed
            elif ((__sbx_got > limit)); then
                __sbx_fault=large
            elif ((__sbx_got < size)) && IFS= read -r -d '' -n 1 -u "$fd" size; then
                # Less than there was, and yet there is more.
                __sbx_fault=short
            fi
        fi
    fi
    [[ $fd ]] && exec {fd}<&-
    __sbx_say "$nonce" E "+ ${__sbx_fault:-ok $__sbx_got}"
}

# Reads a small file with builtins alone, and says its beginning and content; a tool costs more than all of it. Fails, with nothing
# said and the file at its beginning again, if it is not that small, has many NULs, or cannot be read.
__sbx_sip() {
    local most=4096 pieces=() piece
    ((limit < most)) && most=$limit
    __sbx_got=0
    while ((__sbx_got <= most && ${#pieces[@]} < 32)); do
        piece=
        if IFS= read -r -d '' -n "$((most + 1 - __sbx_got))" -u "$fd" piece 2>&"$__sbx_heard"; then
            # To a NUL, or to one byte too many.
            ((__sbx_got += ${#piece} + 1))
            pieces+=("$piece")
            continue
        fi
        IFS= read -r -t 0 -u "$__sbx_heard" && break
        ((__sbx_got += ${#piece}))
        ((__sbx_got <= most)) || break
        __sbx_say "$nonce" B ''
        ((${#pieces[@]})) && printf '%s\0' "${pieces[@]}"
        printf %s "$piece"
        return 0
    done
    while IFS= read -r -t 0 -u "$__sbx_heard"; do IFS= read -r -u "$__sbx_heard" piece; done
    piece=$fd
    exec {fd}<"/proc/self/fd/$piece"
    exec {piece}<&-
    return 1
}

# Opens the regular file $path as $fd, or says why not in __sbx_fault. What was opened must be what is there, and no link: one that
# was put there in between is looked at again.
#
# A shell cannot open without following a link, nor ask both questions at once. So there is a way to be wrong: a link is there when the
# file is opened, something else for the first question, and the link again for the second; then what it points to is read. In this
# order that takes two changes between three builtins, in the other it would take one. It harms nobody: this shell reads with the
# rights of whoever can change the path, who could as well have copied that file to it or given it that name, and what was opened
# is known to be a regular file, whose size and bytes are counted at the descriptor. A name that becomes another of the same file is no
# such case: then that very file is there, and no link.
__sbx_open() {
    local round
    for ((round = 0; round < 20; round++)); do
        if [[ -L $path ]]; then
            __sbx_fault=irregular
        elif [[ -d $path ]]; then
            __sbx_fault=dir
        elif [[ -f $path ]]; then
            if exec {fd}<"$path"; then
                [[ -f /proc/self/fd/$fd && ! -L $path && $path -ef /proc/self/fd/$fd ]] && return 0
                exec {fd}<&-
                fd=
                continue
            fi
            fd=
            __sbx_err=$({ : <"$path"; } 2>&1) && continue
            __sbx_code=1
            case $__sbx_err in
            *': No such file or directory') continue ;;
            *': Permission denied' | *': Operation not permitted') __sbx_blame denied ;;
            *) __sbx_blame failed ;;
            esac
        elif [[ -e $path ]]; then
            __sbx_fault=irregular
        else
            __sbx_missing "$path" || continue
        fi
        return 1
    done
    __sbx_fault='failed it is being replaced all the time'
    return 1
}
