# Cuts the network off, and fails unless it is: every interface but the loopback is down, without an address and without a route.
set -u
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
fail() { echo "the network is not cut off: $1" >&2; exit 1; }
command -v ip >/dev/null || fail 'this image has no ip'
command -v grep >/dev/null || fail 'this image has no grep'
interfaces() {
    while IFS=': ' read -r name rest; do
        case $rest in *[0-9]*) [ "$name" = lo ] || echo "$name" ;; esac
    done </proc/net/dev
}
for name in $(interfaces); do
    ip addr flush dev "$name" || fail "addresses of $name stay"
    ip link set dev "$name" down || fail "$name stays up"
done
ip route flush table main 2>/dev/null
ip -6 route flush table main 2>/dev/null
for name in $(interfaces); do
    flags=$(cat "/sys/class/net/$name/flags") || fail "the state of $name is unknown"
    [ "$((flags & 1))" = 0 ] || fail "$name is up"
done
grep -qv '^Iface' /proc/net/route && fail 'there is a route'
# What remains of version 6 belongs to the loopback.
if [ -e /proc/net/ipv6_route ]; then grep -qv ' lo$' /proc/net/ipv6_route && fail 'there is a route of version 6'; fi
if [ -e /proc/net/if_inet6 ]; then grep -qv ' lo$' /proc/net/if_inet6 && fail 'there is an address of version 6'; fi
exit 0
