# The control stream: signals commands by order of the client, and once the client is gone still ends what has a limit.
#
# An order is a line: SERIAL SIGNAL SHELL START MARKER WHO. SHELL is the pid of the shell that runs the command and START its start
# time, against a reused pid; MARKER is what the command has in its environment. WHO is `group` (the command's process group),
# `all` (also what left the group but holds the command's output or carries its marker), `shell` (also the shell itself) or
# `write` (the copy that a shell waits for; the shell then removes what it made and goes, and is killed if it does not).
# The answer is a record: SERIAL HIT, where HIT is 1 if the command itself was there to be signalled.

# __sbx_environ PID: the environment of PID, one variable an element of __sbx_env.
__sbx_environ() {
    __sbx_env=()
    mapfile -d '' -t __sbx_env <"/proc/$1/environ"
}

# __sbx_children PID: the pids of its children in __sbx_kids.
__sbx_children() {
    local p
    __sbx_kids=()
    if [[ -r /proc/$1/task/$1/children ]]; then
        IFS=' ' read -r -a __sbx_kids <"/proc/$1/task/$1/children"
        return
    fi
    for p in /proc/[0-9]*; do
        __sbx_stat "${p#/proc/}"
        [[ ${__sbx_fields[1]} == "$1" ]] && __sbx_kids+=("${p#/proc/}")
    done
}

# __sbx_stat PID: the fields of its stat behind the name in __sbx_fields: 0 state, 1 parent, 2 group, 19 start.
__sbx_stat() {
    local line=
    IFS= read -r -d '' line <"/proc/$1/stat"
    # shellcheck disable=SC2206 # numbers and letters; a here-string would need a writable directory in older shells
    __sbx_fields=(${line##*) })
}

# __sbx_holds PID OUT ERR: whether PID can write to one of the pipes or sockets at these paths. A reader of the same pipe is somebody
# else: a drain, or the client itself where it is in sight. Only pipes and sockets are compared: a shell that became a drain has
# /dev/null there, as half the world has.
__sbx_holds() {
    local f key value flags out=$2 err=$3
    [[ -p $out || -S $out ]] || out=
    [[ -p $err || -S $err ]] || err=
    [[ $out || $err ]] || return 1
    for f in "/proc/$1"/fd/[0-9]*; do
        # The shell may become a drain between two looks, so it is this end that must be a pipe or a socket.
        [[ -p $f || -S $f ]] || continue
        [[ $out && $f -ef $out || $err && $f -ef $err ]] || continue
        flags=
        while IFS=$' \t' read -r key value; do [[ $key == flags: ]] && flags=$value; done <"/proc/$1/fdinfo/${f##*/}"
        [[ $flags == *[12] ]] && return 0
    done
    return 1
}

# __sbx_leader SIGNAL SHELL: signals the command itself: the child of SHELL that leads a group.
__sbx_leader() {
    local kid
    __sbx_children "$2"
    for kid in "${__sbx_kids[@]}"; do
        __sbx_stat "$kid"
        [[ ${__sbx_fields[0]} == [ZX] || ${__sbx_fields[2]} != "$kid" ]] && continue
        kill "-$1" -- "-$kid" && __sbx_hit=1
    done
}

# __sbx_order SIGNAL SHELL START MARKER WHO
__sbx_order() {
    local signal=$1 shell=$2 start=$3 marker=$4 who=$5 p round hit alive='' out=/proc/$2/fd/1 err=/proc/$2/fd/8
    __sbx_hit=0
    __sbx_stat "$shell"
    [[ ${__sbx_fields[19]} == "$start" ]] && alive=1
    if [[ $alive && $who == shell ]]; then
        __sbx_leader "$signal" "$shell"
        # The shell goes first, since it could start its command between the look and the kill; never by way of a stop, which what
        # carries the shell may take as its own. Its pipes are kept in sight, to know by them what it has started.
        [[ -p $out ]] && exec 6<"$out" && out=/proc/self/fd/6
        [[ -p $err ]] && exec 7<"$err" && err=/proc/self/fd/7
        kill -KILL "$shell"
    elif [[ $alive ]]; then
        # The request has begun, but its command may be a moment away.
        for ((round = 0; round < 20; round++)); do
            __sbx_leader "$signal" "$shell"
            [[ $__sbx_hit == 1 ]] && break
            IFS= read -r -t 0.02 -u "$__sbx_pause" p
        done
    fi
    [[ $who == group ]] && return
    for ((round = 0; round < 40; round++)); do
        hit=
        for p in /proc/[0-9]*; do
            p=${p#/proc/}
            [[ $p == "$shell" || $p == "$$" || $p == 1 ]] && continue
            __sbx_environ "$p"
            if [[ " ${__sbx_env[*]} " == *" __sbx_exec=$marker "* ]] ||
                { [[ $alive ]] && __sbx_holds "$p" "$out" "$err"; }; then
                kill "-$signal" "$p" && hit=1
            fi
        done
        [[ $signal == KILL && $hit ]] || break
    done
    exec 6<&- 7<&-
}

# __sbx_give_up SHELL START: ends the copy of a shell whose client has let go of it.
__sbx_give_up() {
    local kid name round all
    __sbx_hit=0
    for ((round = 0; round < 50; round++)); do
        __sbx_stat "$1"
        [[ ${__sbx_fields[19]} == "$2" && ${__sbx_fields[0]} != [ZX] ]] || return
        __sbx_children "$1"
        all=("${__sbx_kids[@]}")
        for kid in "${__sbx_kids[@]}"; do
            # It can be one of a pipeline's.
            __sbx_children "$kid"
            all+=("${__sbx_kids[@]}")
        done
        for kid in "${all[@]}"; do
            name=
            IFS= read -r name <"/proc/$kid/comm"
            [[ $name == dd ]] && kill -TERM "$kid" && __sbx_hit=1
        done
        IFS= read -r -t 0.02 -u "$__sbx_pause" name
    done
    kill -KILL "$1"
}

# __sbx_watch CLIENT: the client is gone. Ends each of its commands at its limit, then returns.
__sbx_watch() {
    local p v up left limit
    while :; do
        left=
        IFS=' .' read -r -a up </proc/uptime
        for p in /proc/[0-9]*; do
            [[ $p == "/proc/$$" ]] && continue
            __sbx_environ "${p#/proc/}"
            for v in "${__sbx_env[@]}"; do
                [[ $v == "__sbx_exec=$1."* ]] || continue
                limit=${v##*.}
                [[ $limit =~ ^[1-9][0-9]{0,15}$ ]] || continue
                __sbx_stat "${p#/proc/}"
                [[ ${__sbx_fields[0]} == [ZX] || -z ${__sbx_fields[19]} ]] && continue
                # Start times are in hundredths of a second.
                if (((10#${up[0]}${up[1]} - __sbx_fields[19]) * 10 >= limit)); then
                    ((__sbx_fields[2] > 1)) && kill -KILL -- "-${__sbx_fields[2]}"
                    kill -KILL "${p#/proc/}"
                fi
                left=1
            done
        done
        [[ $left ]] || return
        IFS= read -r -t 1 -u "$__sbx_pause" v
    done
}

# __sbx_control NONCE CLIENT
__sbx_control() {
    local serial signal shell start marker who answer
    trap '' PIPE
    set +m
    # Never readable and never at its end: a read from it with a time limit is a pause without a process.
    exec {__sbx_pause}<> <(:)
    while IFS=' ' read -r serial signal shell start marker who; do
        if [[ $who == write ]]; then
            __sbx_give_up "$shell" "$start"
        else
            __sbx_order "$signal" "$shell" "$start" "$marker" "$who"
        fi
        answer="$serial $__sbx_hit"
        printf '%sA%04x%s' "$1" "${#answer}" "$answer"
    done
    exec 0</dev/null 1>/dev/null 8>&-
    __sbx_watch "$2"
    exit 0
}
