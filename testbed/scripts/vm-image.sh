#!/bin/bash
# Makes the disks of a virtual machine: kernel, initrd, a root disk, a second disk with what a host shows as its cache.
#
#   vm-image.sh SUITE PACKAGES PUBLIC_KEY OUTDIR FILE...        (FILEs go onto the second disk)
set -euo pipefail

suite=$1 packages=$2 key=$3 out=$4
shift 4
root=$out/root.new
rm -rf "$root" "$out/data.new"
mkdir -p "$out"
trap 'rm -rf "$root" "$out/data.new"' EXIT

mmdebstrap --quiet --mode=root --format=dir --variant=minbase --include="$packages" \
    --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' "$suite" "$root"

rm -f "$root/etc/machine-id" "$root/etc/resolv.conf"
: > "$root/etc/machine-id"
echo testbed-vm > "$root/etc/hostname"
echo 'nameserver 10.0.2.3' > "$root/etc/resolv.conf"
cat > "$root/etc/fstab" << 'FSTAB'
/dev/vda / ext4 defaults 0 1
/dev/vdb /var/cache/testbed ext4 ro,nofail 0 0
FSTAB
printf '[Match]\nName=en*\n[Network]\nDHCP=yes\n' > "$root/etc/systemd/network/20-wired.network"
ln -sf /lib/systemd/system/systemd-networkd.service "$root/etc/systemd/system/multi-user.target.wants/"
mkdir -p "$root/root/.ssh" "$root/var/cache/testbed"
chmod 700 "$root/root/.ssh"
cp "$key" "$root/root/.ssh/authorized_keys"
# Work of its own that nobody asked for, on a machine without a clock cycle to spare.
for unit in apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done

cp "$root"/boot/vmlinuz-* "$out/kernel"
cp "$root"/boot/initrd.img-* "$out/initrd"
rm -f "$out/disk" "$out/data"
truncate -s 8G "$out/disk"
mkfs.ext4 -q -d "$root" "$out/disk"
mkdir "$out/data.new"
cp "$@" "$out/data.new/"
truncate -s 1G "$out/data"
mkfs.ext4 -q -d "$out/data.new" "$out/data"
