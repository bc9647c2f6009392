# The control stream: signals commands by order of the client, and once the client is gone still ends what has a limit.
#
# An order is a line: SERIAL SIGNAL SHELL START MARKER WHO. SHELL is the pid of the shell that runs the command and START its start
# time, against a reused pid; MARKER is what the command has in its environment. WHO is `group` (the command's process group),
# `all` (also what left the group but holds the command's output or carries its marker) or `shell` (also the shell itself).
# The answer is a record: SERIAL HIT, where HIT is 1 if the command itself was there to be signalled.

# __sbx_environ PID: the environment of PID, one variable an element of __sbx_env.
__sbx_environ() {
    __sbx_env=()
    mapfile -d '' -t __sbx_env <"/proc/$1/environ"
}

# __sbx_children PID: the pids of its children in __sbx_kids.
__sbx_children() {
    local p line fields
    __sbx_kids=()
    if [[ -r /proc/$1/task/$1/children ]]; then
        IFS=' ' read -r -a __sbx_kids <"/proc/$1/task/$1/children"
        return
    fi
    for p in /proc/[0-9]*; do
        line=
        IFS= read -r -d '' line <"$p/stat"
        fields=(${line##*) })
        [[ ${fields[1]} == "$1" ]] && __sbx_kids+=("${p#/proc/}")
    done
}

# __sbx_order SIGNAL SHELL START MARKER WHO
__sbx_order() {
    local signal=$1 shell=$2 start=$3 marker=$4 who=$5 line fields p f v flags kid round hit alive
    __sbx_hit=0
    for ((round = 0; round < 40; round++)); do
        line=
        IFS= read -r -d '' line <"/proc/$shell/stat"
        fields=(${line##*) })
        hit=
        alive=
        if [[ ${fields[19]} == "$start" ]]; then
            alive=1
            __sbx_children "$shell"
            for kid in "${__sbx_kids[@]}"; do
                kill "-$signal" -- "-$kid" && hit=1 __sbx_hit=1
            done
        fi
        [[ $who == group ]] && return
        for p in /proc/[0-9]*; do
            [[ $p == "/proc/$shell" || $p == "/proc/$$" || $p == /proc/1 ]] && continue
            __sbx_environ "${p#/proc/}"
            if [[ " ${__sbx_env[*]} " == *" __sbx_exec=$marker "* ]]; then
                kill "-$signal" "${p#/proc/}" && hit=1
                continue
            fi
            [[ $alive ]] || continue
            for f in "$p"/fd/[0-9]*; do
                [[ $f -ef /proc/$shell/fd/1 || $f -ef /proc/$shell/fd/8 ]] || continue
                # A reader of the same pipe is somebody else: a drain, or the client itself where it is in sight.
                flags=
                while IFS=$' \t' read -r line v; do [[ $line == flags: ]] && flags=$v; done <"$p/fdinfo/${f##*/}"
                [[ $flags == *[12] ]] || continue
                kill "-$signal" "${p#/proc/}" && hit=1
                break
            done
        done
        [[ $signal == KILL && $hit ]] || break
    done
    if [[ $who == shell && $alive ]]; then kill -KILL "$shell"; fi
}

# __sbx_watch CLIENT: the client is gone. Ends each of its commands at its limit, then returns.
__sbx_watch() {
    local p v line fields up left limit pause
    exec {pause}<> <(:)
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
                line=
                IFS= read -r -d '' line <"$p/stat"
                fields=(${line##*) })
                [[ ${fields[0]} == [ZX] || -z ${fields[19]} ]] && continue
                # Start times are in hundredths of a second.
                if (((10#${up[0]}${up[1]} - fields[19]) * 10 >= limit)); then
                    ((fields[2] > 1)) && kill -KILL -- "-${fields[2]}"
                    kill -KILL "${p#/proc/}"
                fi
                left=1
            done
        done
        [[ $left ]] || return
        IFS= read -r -t 1 -u "$pause" v
    done
}

# __sbx_control NONCE CLIENT
__sbx_control() {
    local serial signal shell start marker who answer
    trap '' PIPE
    set +m
    while IFS=' ' read -r serial signal shell start marker who; do
        __sbx_order "$signal" "$shell" "$start" "$marker" "$who"
        answer="$serial $__sbx_hit"
        printf '%sA%04x%s' "$1" "${#answer}" "$answer"
    done
    exec 0</dev/null 1>/dev/null 8>&-
    __sbx_watch "$2"
    exit 0
}
