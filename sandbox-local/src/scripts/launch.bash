# shellcheck shell=bash
# Becomes a program of the host to which nothing of the caller's process is left.
#
# It is fed to `bash --norc --noprofile -p -c` with an empty environment. Arguments: control group files to write the own pid to,
# `--`, then the program and its arguments. Descriptors above 2 are closed: close-on-exec does not cover what the caller's process
# itself inherited, and whoever holds one of them keeps it open for as long as the sandbox lives.

for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    if ((fd > 2)); then
        exec {fd}>&-
    fi
done
umask 022
while [[ $1 != -- ]]; do
    echo $$ >"$1" || exit 125
    shift
done
shift
exec -c "$@"
