# The control stream: signals commands by order of the client, and once the client is gone still ends what has a limit.
#
# Orders come in batches: a line with their number, then a line each: SERIAL SIGNAL SHELL START MARKER WHO. SHELL is the pid of the
# shell that runs the command and START its start time, against a reused pid; MARKER is what the command has in its environment. WHO
# is `group` (the command's process group), `all` (also what left the group but holds the command's output or carries its marker),
# `shell` (also the shell itself) or `write` (the copy that a shell waits for; the shell then removes what it made and goes, and is
# killed if it does not). Only `group` may have another signal than KILL. One look through all processes serves a whole batch.
# Each order is answered by a record: SERIAL HIT, where HIT is 1 if the command itself was there to be signalled.

# __sbx_environ PID: the environment of PID, one variable an element of __sbx_env.
__sbx_environ() {
    __sbx_env=()
    mapfile -d '' -t __sbx_env <"/proc/$1/environ"
}

# __sbx_children PID: the pids of its children in __sbx_kids. Where the kernel has no list of them, all processes are looked at, once for
# as long as __sbx_kin is not emptied.
__sbx_children() {
    local p
    __sbx_kids=()
    if [[ -r /proc/$1/task/$1/children ]]; then
        IFS=' ' read -r -a __sbx_kids <"/proc/$1/task/$1/children"
        return
    fi
    if ((${#__sbx_kin[@]} == 0)); then
        for p in /proc/[0-9]*; do
            __sbx_stat "${p#/proc/}"
            [[ ${__sbx_fields[1]} ]] && __sbx_kin[__sbx_fields[1]]+=" ${p#/proc/}"
        done
    fi
    # shellcheck disable=SC2206 # numbers; a here-string would need a writable directory in older shells
    __sbx_kids=(${__sbx_kin[$1]})
}

# __sbx_stat PID: the fields of its stat behind the name in __sbx_fields: 0 state, 1 parent, 2 group, 19 start.
__sbx_stat() {
    local line=
    IFS= read -r -d '' line <"/proc/$1/stat"
    # shellcheck disable=SC2206 # numbers and letters; a here-string would need a writable directory in older shells
    __sbx_fields=(${line##*) })
}

# The orders of a batch: what came with each, whether its command was hit, and where its output is seen.
__sbx_serials=() __sbx_signals=() __sbx_shells=() __sbx_starts=() __sbx_markers=() __sbx_whos=()
__sbx_hits=() __sbx_outs=() __sbx_errs=() __sbx_kin=()
declare -A __sbx_marked __sbx_spared

# __sbx_owned PID: whether PID belongs to a command of the batch that is killed: it carries its marker, or can write to one of its pipes
# or sockets. A reader of the same pipe is somebody else: a drain, or the client itself where it is in sight. Only pipes and sockets are
# compared: a shell that became a drain has /dev/null there, as half the world has.
__sbx_owned() {
    local f i v key value flags
    __sbx_environ "$1"
    if [[ " ${__sbx_env[*]}" == *' __sbx_exec='* ]]; then
        for v in "${__sbx_env[@]}"; do
            [[ $v == __sbx_exec=* && ${__sbx_marked["x${v#*=}"]} ]] && return 0
        done
    fi
    ((${#__sbx_outs[@]})) || return 1
    for f in "/proc/$1"/fd/[0-9]*; do
        # The shell may become a drain between two looks, so it is this end that must be a pipe or a socket.
        [[ -p $f || -S $f ]] || continue
        for i in "${!__sbx_outs[@]}"; do
            [[ $f -ef ${__sbx_outs[i]} || $f -ef ${__sbx_errs[i]} ]] || continue
            flags=
            while IFS=$' \t' read -r key value; do [[ $key == flags: ]] && flags=$value; done <"/proc/$1/fdinfo/${f##*/}"
            [[ $flags == *[12] ]] && return 0
        done
    done
    return 1
}

# __sbx_veiled PID: whether PID, just found not to be owned, has to be looked at again: it ended, and may have left a child that the
# list of processes lacks, or it was becoming another program, during which its environment is empty and only root sees its descriptors.
__sbx_veiled() {
    local line=
    ((${#__sbx_env[@]})) && return 1
    __sbx_stat "$1"
    case ${__sbx_fields[0]} in '') return 0 ;; [ZX]) return 1 ;; esac
    # A thread of the kernel.
    ((__sbx_fields[6] & 0x200000)) && return 1
    IFS= read -r -d '' line <"/proc/$1/cmdline"
    [[ -z $line ]] || __sbx_owned "$1"
}

# __sbx_leader I: signals the command of order I itself: the child of its shell that leads a group.
__sbx_leader() {
    local kid
    __sbx_children "${__sbx_shells[$1]}"
    for kid in "${__sbx_kids[@]}"; do
        __sbx_stat "$kid"
        [[ ${__sbx_fields[0]} == [ZX] || ${__sbx_fields[2]} != "$kid" ]] && continue
        kill "-${__sbx_signals[$1]}" -- "-$kid" && __sbx_hits[$1]=1
    done
}

# __sbx_alive I: whether the shell of order I is still that shell.
__sbx_alive() {
    __sbx_stat "${__sbx_shells[$1]}"
    [[ ${__sbx_fields[19]} == "${__sbx_starts[$1]}" && ${__sbx_fields[0]} != [ZX] ]]
}

# __sbx_answer WHO...: answers the orders of these kinds.
__sbx_answer() {
    local i text
    for i in "${!__sbx_whos[@]}"; do
        [[ " $* " == *" ${__sbx_whos[i]} "* ]] || continue
        text="${__sbx_serials[i]} ${__sbx_hits[i]}"
        printf '%sA%04x%s' "$__sbx_nonce" "${#text}" "$text"
    done
}

# Carries out a batch and answers it.
__sbx_carry_out() {
    local i p fd round out err late=() pins=() copies=() hunt='' again blind=0
    __sbx_hits=() __sbx_outs=() __sbx_errs=() __sbx_kin=() __sbx_marked=() __sbx_spared=()
    for i in "${!__sbx_whos[@]}"; do
        __sbx_hits[i]=0
        [[ ${__sbx_whos[i]} == @(all|shell) ]] && hunt=1 && __sbx_marked["x${__sbx_markers[i]}"]=1
        __sbx_alive "$i" || continue
        out=/proc/${__sbx_shells[i]}/fd/1
        err=/proc/${__sbx_shells[i]}/fd/8
        case ${__sbx_whos[i]} in
        write)
            copies+=("$i")
            continue
            ;;
        shell)
            __sbx_leader "$i"
            # The shell goes first, since it could start its command between the look and the kill; never by way of a stop, which what
            # carries the shell may take as its own. Its pipes are kept in sight, to know by them what it has started.
            if [[ -p $out ]] && exec {fd}<"$out"; then
                pins+=("$fd")
                out=/proc/self/fd/$fd
            fi
            if [[ -p $err ]] && exec {fd}<"$err"; then
                pins+=("$fd")
                err=/proc/self/fd/$fd
            fi
            kill -KILL "${__sbx_shells[i]}"
            ;;
        *)
            __sbx_leader "$i"
            # The request has begun, but its command may be a moment away.
            [[ ${__sbx_hits[i]} == 1 ]] || late[i]=1
            [[ ${__sbx_whos[i]} == all ]] || continue
            __sbx_spared["${__sbx_shells[i]}"]=1
            ;;
        esac
        __sbx_outs[i]=$out
        __sbx_errs[i]=$err
    done
    for ((round = 1; round < 20 && ${#late[@]}; round++)); do
        IFS= read -r -t 0.02 -u "$__sbx_pause" p
        __sbx_kin=()
        for i in "${!late[@]}"; do
            __sbx_leader "$i"
            [[ ${__sbx_hits[i]} == 1 ]] && unset "late[$i]"
        done
    done
    __sbx_answer group
    [[ $hunt ]] && for ((round = 0; round < 40; round++)); do
        hunt=
        again=
        for p in /proc/[0-9]*; do
            p=${p#/proc/}
            [[ $p == "$$" || $p == 1 || ${__sbx_spared[$p]} ]] && continue
            if __sbx_owned "$p"; then
                kill -KILL "$p" && hunt=1
            elif __sbx_veiled "$p"; then
                again=1
            fi
        done
        [[ $hunt ]] && blind=0 && continue
        # Who hides for good, or a machine where something ends all the time, is no reason to go on for ever.
        [[ $again ]] || break
        ((blind++ < 6)) || break
        IFS= read -r -t 0.005 -u "$__sbx_pause" p
    done
    for fd in "${pins[@]}"; do exec {fd}<&-; done
    __sbx_answer all shell
    ((${#copies[@]})) && __sbx_give_up "${copies[@]}"
    __sbx_answer write
}

# __sbx_give_up I...: ends the copies of shells whose client has let go of them.
__sbx_give_up() {
    local i kid name round all left=("$@") still
    for ((round = 0; round < 50; round++)); do
        still=()
        __sbx_kin=()
        for i in "${left[@]}"; do
            __sbx_alive "$i" || continue
            still+=("$i")
            __sbx_children "${__sbx_shells[i]}"
            all=("${__sbx_kids[@]}")
            for kid in "${all[@]}"; do
                # It can be one of a pipeline's.
                __sbx_children "$kid"
                all+=("${__sbx_kids[@]}")
            done
            for kid in "${all[@]}"; do
                name=
                IFS= read -r name <"/proc/$kid/comm"
                [[ $name == dd ]] && kill -TERM "$kid" && __sbx_hits[i]=1
            done
        done
        left=("${still[@]}")
        ((${#left[@]})) || return
        IFS= read -r -t 0.02 -u "$__sbx_pause" name
    done
    for i in "${left[@]}"; do kill -KILL "${__sbx_shells[i]}"; done
}

# __sbx_heads CLIENT: finds the commands of that client which are under way: by marker, the process that leads one, its start, the shell
# that waits for it, and that one's start. A shell that serves requests carries no marker, all that a command starts does.
__sbx_heads() {
    local p v parent group start
    local -A marks=()
    for p in /proc/[0-9]*; do
        p=${p#/proc/}
        [[ $p == "$$" ]] && continue
        __sbx_environ "$p"
        for v in "${__sbx_env[@]}"; do
            [[ $v == __sbx_exec=* ]] && marks[$p]=${v#*=}
        done
    done
    for p in "${!marks[@]}"; do
        v=${marks[$p]}
        [[ $v == "$1."* && $v =~ ^[0-9A-Za-z]+(\.[0-9A-Za-z]+)*\.[1-9][0-9]{0,15}$ && ! ${__sbx_head[$v]} ]] || continue
        __sbx_stat "$p"
        parent=${__sbx_fields[1]} group=${__sbx_fields[2]} start=${__sbx_fields[19]}
        [[ $group == "$p" && $parent =~ ^[0-9]+$ && $parent != [01] && ! ${marks[$parent]} ]] || continue
        __sbx_stat "$parent"
        [[ ${__sbx_fields[19]} ]] && __sbx_head[$v]="$p $start $parent ${__sbx_fields[19]}"
    done
}

# __sbx_watch CLIENT: the client is gone. Ends each of its commands that is under way at its limit, as the client would have, and leaves
# alone what a command that ended in time has left behind. Returns once none has been under way for some seconds: what was asked for
# last may begin a moment after the client is gone.
__sbx_watch() {
    local v up state now quiet=0
    local -A __sbx_head=()
    local -a of
    while ((quiet++ < 8)); do
        __sbx_heads "$1"
        IFS=' .' read -r -a up </proc/uptime
        # As start times, in hundredths of a second.
        now=$((10#${up[0]}${up[1]}))
        __sbx_serials=() __sbx_signals=() __sbx_shells=() __sbx_starts=() __sbx_markers=() __sbx_whos=()
        for v in "${!__sbx_head[@]}"; do
            # shellcheck disable=SC2206 # numbers; a here-string would need a writable directory in older shells
            of=(${__sbx_head[$v]})
            ((${#of[@]})) || continue
            __sbx_stat "${of[0]}"
            state=${__sbx_fields[0]}
            if [[ ${__sbx_fields[19]} != "${of[1]}" || ${__sbx_fields[1]} != "${of[2]}" || $state == [ZX] ]]; then
                # It has ended, or the shell that waits for it has.
                __sbx_head[$v]=
                continue
            fi
            quiet=0
            (((now - of[1]) * 10 >= ${v##*.})) || continue
            __sbx_serials+=(0) __sbx_signals+=(KILL) __sbx_whos+=(all)
            __sbx_shells+=("${of[2]}") __sbx_starts+=("${of[3]}") __sbx_markers+=("$v")
        done
        ((${#__sbx_whos[@]})) && __sbx_carry_out
        IFS= read -r -t 1 -u "$__sbx_pause" v
    done
}

# __sbx_batch COUNT: reads the orders of a batch; fails at the end of input.
__sbx_batch() {
    local i
    __sbx_serials=() __sbx_signals=() __sbx_shells=() __sbx_starts=() __sbx_markers=() __sbx_whos=()
    [[ $1 =~ ^[1-9][0-9]{0,2}$ ]] || return 1
    for ((i = 0; i < $1; i++)); do
        IFS=' ' read -r "__sbx_serials[$i]" "__sbx_signals[$i]" "__sbx_shells[$i]" "__sbx_starts[$i]" \
            "__sbx_markers[$i]" "__sbx_whos[$i]" || return 1
    done
}

# __sbx_control NONCE CLIENT
__sbx_control() {
    local count __sbx_nonce=$1
    trap '' PIPE
    set +m
    # Never readable and never at its end: a read from it with a time limit is a pause without a process.
    exec {__sbx_pause}<> <(:)
    while IFS= read -r count && __sbx_batch "$count"; do __sbx_carry_out; done
    exec 0</dev/null 1>/dev/null 8>&-
    __sbx_watch "$2"
    exit 0
}
