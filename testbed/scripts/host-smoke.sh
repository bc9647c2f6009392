#!/bin/bash
# Runs inside a systemd host: one pass over what the isolation backends need. Prints `pass NAME` or `fail NAME` per check.
#
#   host-smoke.sh NODE_ARCHIVE IMAGE_ARCHIVE
set -uo pipefail

node=$1 image=$2
machine=/var/lib/machines/kube1

check() { # NAME COMMAND...
    local name=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "pass $name"
    else
        echo "fail $name"
        tail -n 8 <<< "$output" | sed 's/^/    | /'
    fi
}

within() { # SECONDS COMMAND...: tries until it succeeds
    local end=$((SECONDS + $1))
    shift
    until "$@" > /dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || return 1
        sleep 0.1
    done
}

says() { # WANTED COMMAND...
    local wanted=$1 got
    shift
    got=$("$@")
    [ "$got" = "$wanted" ] || { echo "want '$wanted', got '$got'"; return 1; }
}

exits() { # CODE COMMAND...
    local wanted=$1 got=0
    shift
    "$@" || got=$?
    [ "$got" = "$wanted" ] || { echo "want exit $wanted, got $got"; return 1; }
}

runs_a_container='ctr -n t images import /var/tmp/image.tar > /dev/null &&
    ctr -n t run --rm --cpu-shares 0 docker.io/library/busybox:latest c1 /bin/sh -c "echo in-container"'
in_machine() { systemd-run --quiet --machine=kube1 --pipe --wait "$@"; }
machine_runs() { [ "$(systemctl -M kube1 is-system-running)" = running ]; }
machine_is() { [ "$(systemctl is-active systemd-nspawn@kube1)" = "$1" ]; }
machine_leader() { machinectl show kube1 -p Leader --value; }
rebooted() { machine_runs && [ "$(machine_leader)" != "$1" ]; }
container_runs() { [ "$(podman exec kubec systemctl is-system-running)" = running ]; }
container_pid() { podman inspect -f '{{.State.Pid}}' kubec; }
restarted() { local pid; pid=$(container_pid) && [ "$pid" != 0 ] && [ "$pid" != "$1" ]; }
stopped_well() { systemctl stop kubec && says success systemctl show kubec -p Result --value; }
journal_of_unit() { systemd-run --quiet --wait --unit=said echo from-unit; within 30 bash -c 'journalctl -u said --no-pager -o cat | grep -q from-unit'; }

# The host itself.
check 'systemd is running' says running systemctl is-system-running
check 'no unit failed' says '' systemctl --failed --no-legend --plain
check 'a transient unit passes its output on' says hi systemd-run --quiet --wait --pipe echo hi
check 'the journal has what a unit said' journal_of_unit
check 'machinectl answers' machinectl list

# Units of the host.
cp "$image" /var/tmp/image.tar
check 'containerd runs as a unit' systemctl restart containerd
check 'a container runs in it' bash -c "$runs_a_container"

# An nspawn machine.
check 'a machine is unpacked' bash -c "mkdir -p $machine && tar -C $machine -xpf $node"
mkdir -p /etc/systemd/nspawn
cat > /etc/systemd/nspawn/kube1.nspawn << 'UNIT'
[Exec]
Boot=yes
PrivateUsers=no
Capability=all
SystemCallFilter=@keyring bpf
[Network]
Private=no
VirtualEthernet=no
UNIT
check 'the machine starts' systemctl start systemd-nspawn@kube1
check 'the machine runs' within 90 machine_runs
check 'a command in the machine' says hi in_machine /bin/echo hi
check 'its exit code' exits 7 in_machine /bin/sh -c 'exit 7'
check 'a file into the machine' machinectl copy-to kube1 /var/tmp/image.tar /var/tmp/image.tar
check 'containerd runs in the machine' within 90 systemctl -M kube1 is-active containerd
check 'a container runs in the machine' in_machine /bin/sh -c "$runs_a_container"
check 'the journal of the machine' bash -c 'journalctl -M kube1 -u containerd --no-pager -o cat | grep -q .'
leader=$(machine_leader)
check 'the machine reboots' machinectl reboot kube1
check 'and is another one' within 90 rebooted "$leader"
check 'the machine powers off' machinectl poweroff kube1
check 'and its unit is inactive' within 90 machine_is inactive
check 'the machine starts again' systemctl start systemd-nspawn@kube1
# Terminated before it runs, it would hang for 90 seconds.
check 'and runs' within 90 machine_runs
check 'the machine is terminated' machinectl terminate kube1
check 'and its unit is inactive again' within 90 machine_is inactive

# A container with systemd inside.
check 'podman takes the root file system' podman import -q "$node" localhost/node:1
mkdir -p /var/lib/containerd/kubec
cat > /etc/systemd/system/kubec.service << 'UNIT'
[Service]
Type=notify
NotifyAccess=all
Delegate=yes
Environment=PODMAN_SYSTEMD_UNIT=%n
ExecStartPre=-/usr/bin/podman rm -f -i kubec
ExecStart=/usr/bin/podman run --name kubec --cgroups=split --sdnotify=conmon --rm -d --privileged --systemd=always \
    --network=host -v /var/lib/containerd/kubec:/var/lib/containerd localhost/node:1 /sbin/init
ExecStop=/usr/bin/podman stop -t 10 -i kubec
SuccessExitStatus=130 143
TimeoutStopSec=30
Restart=on-failure
UNIT
systemctl daemon-reload
check 'the container starts' systemctl start kubec
check 'the container runs' within 90 container_runs
check 'the exit code of a command in it' exits 9 podman exec kubec sh -c 'exit 9'
check 'a transient unit in it' says hi podman exec kubec systemd-run --quiet --wait --pipe echo hi
check 'a file into it' podman cp /var/tmp/image.tar kubec:/var/tmp/image.tar
check 'a container runs in it' podman exec kubec /bin/sh -c "$runs_a_container"
pid=$(container_pid)
kill -9 "$pid"
check 'killed, it is restarted' within 90 restarted "$pid"
within 90 container_runs
check 'it stops cleanly' stopped_well
