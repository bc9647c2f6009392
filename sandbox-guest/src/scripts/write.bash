# Writing a file. Stands on files.bash.
# shellcheck disable=SC2154 # what is not assigned here is in files.bash, which comes first.

__sbx_umask=$(umask)
declare -gA __sbx_points
__sbx_noref=

# __sbx_ways NONCE DIR...: how many of these directories, counted from the first, are there or would have to be made below one.
__sbx_ways() {
    local nonce=$1 dir clear=0
    shift
    for dir; do
        if [[ ! -d ${dir:-/} ]]; then
            __sbx_walk "$dir"
            [[ -d $__sbx_near ]] || break
        fi
        ((clear += 1))
    done
    __sbx_say "$nonce" E "+ ok $clear"
}

# __sbx_write NONCE TOKEN SIZE WHOLE MODE NEW UMASK PATH [CONTENT]
# UMASK is that of the directories that have to be made; if it is empty they have the image's.
# With WHOLE the content follows the request at once, or is CONTENT. Without it a record G asks for it; then come lines: a number, and that many
# bytes after it; a dot, which commits; or an exclamation mark, which gives up. Nothing of it shows before it is committed.
__sbx_write() {
    local nonce=$1 size=$3 whole=$4 mode=$5 new=$6 shade=$7 path=$8 dir name temp=.sbx-write-$2 made=() step=+ total=0 line fd='' early=''
    dir=${path%/*}
    dir=${dir:-/}
    name=${path##*/}
    __sbx_fault=
    if ! __sbx_prepare; then
        [[ $whole && $# == 8 ]] && ((size > 0)) && ! __sbx_drain "$size" && step=-
    elif [[ $whole ]]; then
        __sbx_early
        if (($# == 8)); then __sbx_take "$size"; else __sbx_put "$9"; fi && __sbx_commit
        [[ $early ]] && wait "$early"
    else
        __sbx_say "$nonce" G ''
        while :; do
            if ! IFS= read -r line; then
                __sbx_fault=aborted step=-
            elif [[ $line =~ ^[0-9]{1,15}$ ]]; then
                __sbx_take "$line" && continue
            elif [[ $line != . ]]; then
                __sbx_fault=aborted
            elif ((total != size)); then
                __sbx_fault=short
            else
                __sbx_commit
            fi
            break
        done
    fi
    [[ $fd ]] && exec {fd}>&-
    if [[ $__sbx_fault ]]; then
        [[ -e ./$temp || -L ./$temp ]] && (__sbx_do rm -f -- "./$temp")
        cd /
        ((${#made[@]})) && (__sbx_do rmdir -- "${made[@]}")
    fi
    cd /
    __sbx_say "$nonce" E "$step ${__sbx_fault:-ok $size}"
    [[ $step == + ]] || __sbx_quit
}

# The rest of what belongs to a request is of unknown length: swallows all there is, and goes.
__sbx_quit() {
    exec 1>/dev/null 8>&-
    ((__sbx_code > 128)) && exit 0
    __sbx_tool cat
}

# __sbx_drain COUNT: swallows the content of a request that failed.
__sbx_drain() {
    local sink code
    exec {sink}>/dev/null
    __sbx_pump "$1" 0 "$sink" "$sink" && ((__sbx_got == $1))
    code=$?
    exec {sink}>&-
    return "$code"
}

# __sbx_take COUNT: COUNT bytes of content into the temporary file.
__sbx_take() {
    (($1 == 0)) && return 0
    if ! __sbx_pump "$1" 0 "$fd" "$fd"; then
        __sbx_blame failed
        step=-
        return 1
    fi
    __sbx_pos "$fd"
    if ((__sbx_got != $1 || __sbx_at && __sbx_at != total + $1)); then
        __sbx_fault=short step=-
    else
        ((total += $1))
        return 0
    fi
    return 1
}

# __sbx_put CONTENT: all of the content into the temporary file.
__sbx_put() {
    if printf %s "$1" 2>&"$__sbx_heard" 1>&"$fd"; then
        __sbx_pos "$fd"
        ((__sbx_at == size || __sbx_at == 0)) && return 0
    fi
    __sbx_err='the content was not taken'
    IFS= read -r -t 0 -u "$__sbx_heard" && IFS= read -r -u "$__sbx_heard" __sbx_err
    __sbx_code=1
    __sbx_blame failed
    return 1
}

# Begins to set the mode while the content is still being copied: not if it has a bit that the kernel takes away when somebody without
# privileges writes to the file.
__sbx_early() {
    local how=$mode
    [[ $how == [2-7]??? ]] && return
    if [[ ! $how && -f ./$name && ! -L ./$name ]]; then
        [[ $__sbx_noref || -u ./$name || -g ./$name ]] && return
        how=--reference=./$name
    fi
    __sbx_tool chmod "${how:-644}" -- "/proc/self/fd/$fd" </dev/null >/dev/null &
    early=$!
}

# Everything before the content: parents, tests, the temporary file. Leaves the shell in the target's directory, so that whatever
# becomes of the path meanwhile, the temporary file and the target stay in one place.
__sbx_prepare() {
    if [[ ! -d $dir ]]; then
        __sbx_walk "$dir"
        if [[ ! -d $__sbx_near ]]; then
            __sbx_fault=notdir
            return 1
        fi
        made=("${__sbx_gone[@]}")
        umask "${shade:-$__sbx_umask}"
        __sbx_do mkdir -p -- "$dir"
        umask "$__sbx_umask"
        if ((__sbx_code)); then
            __sbx_blame unwritable
            __sbx_walk "$dir"
            [[ -d $__sbx_near ]] || __sbx_fault=notdir
            return 1
        fi
    fi
    if ! cd -P -- "$dir"; then
        __sbx_err=$({ cd -P -- "$dir" || exit; } 2>&1)
        __sbx_code=1
        __sbx_blame unwritable
        return 1
    fi
    __sbx_target || return 1
    if ((${#name} > 255)); then
        __sbx_fault='unwritable File name too long'
        return 1
    fi
    # Open to nobody else until it has its mode, and never a file that was there.
    umask 077
    set -C
    if ! exec {fd}>"./$temp"; then
        fd=
        __sbx_err=$({ : >"./$temp"; } 2>&1)
        __sbx_code=1
        __sbx_blame unwritable
    fi
    set +C
    umask "$__sbx_umask"
    [[ ! $__sbx_fault ]]
}

# Whether the target may be replaced.
__sbx_target() {
    if [[ $new && (-e ./$name || -L ./$name) ]]; then
        __sbx_fault=exists
    elif [[ -d ./$name ]]; then
        __sbx_fault=dir
    elif [[ -L ./$name || ! -e ./$name ]]; then
        return 0
    elif [[ -b ./$name || -c ./$name ]] || { __sbx_mounts && __sbx_mounted "${PWD%/}/$name"; }; then
        __sbx_fault=pinned
    else
        return 0
    fi
    return 1
}

# Reads what is mounted where, in the kernel's spelling.
__sbx_mounts() {
    local line lines=()
    __sbx_points=()
    mapfile -t lines </proc/self/mountinfo
    for line in "${lines[@]}"; do
        line=${line#* * * * }
        __sbx_points["${line%% *}"]=1
    done
}

# __sbx_mounted PATH: whether something is mounted on PATH, which has no link in it.
__sbx_mounted() {
    local want=$1
    if [[ $want == *[$' \t\n\\']* ]]; then
        want=${want//\\/\\134}
        want=${want// /\\040}
        want=${want//$'\t'/\\011}
        want=${want//$'\n'/\\012}
    fi
    [[ ${__sbx_points["$want"]} ]]
}

# Gives the temporary file its mode and its name. The tests are asked again: the content may have taken its time.
__sbx_commit() {
    __sbx_target || return 1
    __sbx_mode || return 1
    if [[ ! ./$temp -ef /proc/self/fd/$fd || -L ./$temp ]]; then
        __sbx_fault='failed the temporary file was replaced'
        return 1
    fi
    # A program that somebody still writes to cannot be run.
    exec {fd}>&-
    fd=
    if [[ $new ]]; then __sbx_link; else __sbx_move; fi
}

# The mode: as asked, as the file has that is replaced, or 0644. One that cannot be had is worth a failure only if it was asked for.
__sbx_mode() {
    local bits=$mode
    if [[ $early ]]; then
        if wait "$early"; then
            early=
            return 0
        fi
        early=
        [[ $mode ]] || __sbx_noref=1
    fi
    if [[ ! $bits && -f ./$name && ! -L ./$name ]]; then
        __sbx_do stat -c %a -- "./$name" && [[ $__sbx_err =~ ^[0-7]{1,4}$ ]] && bits=$__sbx_err
    fi
    if ! __sbx_do chmod -- "${bits:-644}" "/proc/self/fd/$fd" && [[ $mode ]]; then
        __sbx_blame unwritable
        return 1
    fi
}

# Renames the temporary file over the target.
__sbx_move() {
    __sbx_do mv -fT -- "./$temp" "./$name" && return 0
    if [[ $__sbx_err == *' option'* && -e ./$temp && ! -d ./$name ]]; then
        # An old tool, which knows no -T and puts the file inside what has become a directory.
        __sbx_do mv -f -- "./$temp" "./$name" && [[ ! -d ./$name ]] && return 0
        [[ -d ./$name && ! -L ./$temp ]] && (__sbx_do rm -f -- "./$name/$temp")
    fi
    if [[ -d ./$name ]]; then
        __sbx_fault=dir
    elif [[ $__sbx_err == *': Device or resource busy' ]]; then
        __sbx_fault=pinned
    else
        __sbx_blame unwritable
    fi
    return 1
}

# Gives the temporary file the target's name unless something has it.
__sbx_link() {
    if __sbx_do ln -T -- "./$temp" "./$name"; then
        (__sbx_do rm -f -- "./$temp")
        return 0
    fi
    if [[ -e ./$name || -L ./$name ]]; then
        __sbx_fault=exists
        return 1
    fi
    # No links here: take the name with an empty file first, which is nobody else's, then replace that.
    __sbx_blame unwritable
    set -C
    if : >"./$name"; then
        set +C
        __sbx_fault=
        __sbx_move && return 0
        (__sbx_do rm -f -- "./$name")
        return 1
    fi
    set +C
    [[ -e ./$name || -L ./$name ]] && __sbx_fault=exists
    return 1
}
