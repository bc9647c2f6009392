# shellcheck shell=bash
# The first process of a sandbox, until it becomes `sleep`.
#
# It is fed to `bash --norc --noprofile -p -c`, as the root of the outer user namespace and process 1 of the new pid namespace, with
# the host's file system still in place. Working directory: the box, which has two FIFOs: `tick`, which nobody writes to, and `go`, which
# tells that `fs`, the root to be, is filled and `fstab` written. Descriptors: 0 the locked `alive` file, 1 the report, 2 messages for
# people. The report is `pivoted` and `ready`, a line each, or `failed` after the messages that say why.
#
# Two branches run at once. This process moves into the inner user namespace and becomes `sleep`, with SIGCHLD ignored, so that
# the kernel reaps orphans. Its child builds the root in the outer one and swaps it in under both. What starts after the swap comes
# from the new root, loader and libraries too, and runs with the capabilities of the outer namespace: if that root is not made of the
# host's own programs, UMOUNT is empty, and letting go of the old root is left to somebody outside.

mount=$1 pivot_root=$2 unshare=$3 env=$4 sleep=$5 ip=$6 hostname=$7 uid=$8 gid=$9 processes=${10} umount=${11} counts=${12} rlimits=${13}

build() {
    local kind pair state='' tries word
    if [[ $ip ]]; then
        "$ip" link set dev lo up &
    fi
    if [[ $hostname ]]; then
        "$hostname" sandbox &
    fi
    read -r word <go && [[ $word == go ]] || return
    "$mount" -n -a -T fstab || return
    for kind in mnt pid net ipc uts cgroup time; do
        if [[ -e /proc/sys/user/max_${kind}_namespaces ]]; then
            echo 0 >"/proc/sys/user/max_${kind}_namespaces" || return
        fi
    done
    # Of what the kernel counts for a user, this sandbox and all that it makes have no more than their share.
    for pair in $counts; do
        echo "${pair#*=}" >"/proc/sys/user/${pair%%=*}" || return
    done
    wait
    exec 4<>tick
    for ((tries = 0; tries < 20000; tries++)); do
        # Asleep, not only called so: what it loads comes from the old root.
        read -r state <"/proc/$init/stat" && [[ $state == *'(sleep) S '* ]] && break
        read -r -t 0.0005 -u 4
    done
    exec 4>&-
    [[ $state == *'(sleep) S '* ]] || return
    cd fs && "$pivot_root" . .old && cd / || return
    printf 'pivoted\n'
    if [[ $umount ]]; then
        "$umount" -n -l /.old || return
    fi
    printf 'ready\n'
}

# This is still the host's /proc: the first field is the pid out there. What this process says of itself is on record before it has
# made anything.
read -r stat </proc/self/stat || exit
init=${stat%% *}
printf '%s\n' "$stat" >&0 || exit
echo 1 >/proc/sys/user/max_user_namespaces || exit

# Whoever started this has left nothing open, or nearly: here nothing is left for certain.
for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    if ((fd > 2)); then
        exec {fd}>&-
    fi
done

{ build || printf 'failed\n'; } 0</dev/null &
cd / || exit
exec 0</dev/null 1>/dev/null 2>/dev/null
if [[ $processes ]]; then
    ulimit -u "$processes" || exit
fi
if [[ $rlimits ]]; then
    # shellcheck disable=SC2086 # options and their values
    ulimit $rlimits || exit
fi
exec -c "$unshare" --user --map-user="$uid" --map-group="$gid" "$env" -i --ignore-signal=CHLD "$sleep" infinity
