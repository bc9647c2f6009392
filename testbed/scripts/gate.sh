#!/bin/sh
# A stand-in for an egress gate. It filters nothing: it shows what a gate shows to whoever starts it.
# What was asked of it is counted in $CALLS, which `GET /cgi-bin/calls` answers: the root is read-only.
CALLS=/dev/shm/gate-calls
if [ "$1" = -healthcheck ]; then
    echo healthcheck >>$CALLS
    exec wget -q -O /dev/null http://127.0.0.1:15080/health
fi
echo start >>$CALLS
[ "$GATE_UID" = 65532 ] || { echo "GATE_UID is not 65532" >&2; exit 2; }
until said=$(wget -q -O /dev/null --header "Authorization: Bearer $GATE_TOKEN" \
    "$CONTROLPLANE_URL/internal/v1/gate/config" 2>&1); do
    case $said in *401*) echo "the token is not valid" >&2; exit 1 ;; esac
    sleep 1
done
exec httpd -f -p 127.0.0.1:15080 -h /www
