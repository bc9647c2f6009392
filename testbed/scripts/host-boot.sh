#!/bin/bash
# Boots a systemd host in namespaces. Runs in a mount namespace of its own and becomes systemd-nspawn.
#
#   host-boot.sh NAME ROOT_FILE_SYSTEM FOLDER CACHE [SOURCE:TARGET ...]
set -euo pipefail

name=$1 lower=$2 folder=$3 cache=$4
shift 4

mkdir -p "$folder"/{upper,work,root,data}
mount -t overlay overlay -o "lowerdir=$lower,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
root=$folder/root
echo "$name" > "$root/etc/hostname"

binds=("--bind-ro=$cache:/var/cache/testbed")
mkdir -p "$root/var/cache/testbed"
# These mount overlays of their own, which can't lie on ours.
for dir in machines containers containerd docker kubelet; do
    mkdir -p "$folder/data/$dir" "$root/var/lib/$dir"
    binds+=("--bind=$folder/data/$dir:/var/lib/$dir")
done
for bind in "$@"; do
    binds+=("--bind-ro=$bind")
done
for device in /dev/fuse /dev/net/tun; do
    [ ! -e "$device" ] || binds+=("--bind=$device")
done
# The journal inside has no business with this machine's kernel log.
binds+=(--bind=/dev/null:/dev/kmsg)

# nspawn keeps its state here, and nobody else may see it.
mount -t tmpfs -o mode=755 tmpfs /run
# A pure cgroup v2 view, whatever this machine has, and /proc/sys/net to write; the rest of /proc/sys is the machine's.
export SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 SYSTEMD_NSPAWN_API_VFS_WRITABLE=network
exec systemd-nspawn --quiet --boot --directory="$root" --machine="$name" --register=no --keep-unit --private-users=no \
    --console=pipe --capability=all --system-call-filter='@keyring bpf' --private-network --resolv-conf=off "${binds[@]}"
