# The first process of a sandbox: makes the working directory, then waits for the signal to end and reaps orphans. It runs nothing
# of the tenant's. It waits in a builtin on a pipe of its own that nobody writes to, so that it needs no process that could be
# killed and no fork that could fail; bash looks for orphans between two reads, not while it reads.
# Not 0: an eviction whose container succeeds is told as a success by the kubelet.
trap 'exit 143' TERM
# Bash would end at these, where another first process would not notice.
trap '' HUP INT ILL TRAP ABRT FPE BUS SEGV SYS PIPE ALRM XCPU XFSZ VTALRM USR1 USR2
[[ -d $1 ]] || PATH=/usr/sbin:/usr/bin:/sbin:/bin mkdir -p -- "$1" || exit 1
exec 3<> <(:) || exit 1
while :; do IFS= read -r -n 64 -t 0.5 -u 3 _; done
