#!/bin/bash
# Boots a virtual machine without hardware help. Runs in a mount namespace of its own and becomes qemu.
#
#   vm-boot.sh QEMU_ROOT IMAGES PORT        (QEMU_ROOT is a root file system with qemu in it, or - for this machine's own)
set -euo pipefail

qemu_root=$1 images=$2 port=$3
run=(qemu-system-x86_64)
if [ "$qemu_root" != - ]; then
    mkdir -p "$qemu_root/images"
    mount --bind "$images" "$qemu_root/images"
    mount --rbind /dev "$qemu_root/dev"
    mount -t proc proc "$qemu_root/proc"
    mount -t tmpfs tmpfs "$qemu_root/run"
    run=(chroot "$qemu_root" qemu-system-x86_64)
    images=/images
fi
exec "${run[@]}" -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 2048 -nodefaults -no-reboot -display none \
    -serial stdio -kernel "$images/kernel" -initrd "$images/initrd" -append 'root=/dev/vda rw console=ttyS0 quiet' \
    -drive "file=$images/disk,if=virtio,format=raw,snapshot=on" \
    -drive "file=$images/data,if=virtio,format=raw,readonly=on" \
    -netdev "user,id=net,hostfwd=tcp:127.0.0.1:$port-:22" -device virtio-net-pci,netdev=net -device virtio-rng-pci
