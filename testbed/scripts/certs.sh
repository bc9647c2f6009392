#!/bin/bash
# The keys, certificates and kubeconfigs of one cluster, by openssl.
#
#   certs.sh OUTDIR API_IP SERVICE_IP NODE NODE_IP
set -euo pipefail

out=$1 api_ip=$2 service_ip=$3 node=$4 node_ip=$5
umask 077
mkdir -p "$out"
cd "$out"

new_key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes)

authority() { # NAME
    openssl req -x509 "${new_key[@]}" -days 3650 -subj "/CN=testbed-$1" -keyout "$1.key" -out "$1.crt" \
        -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign 2> /dev/null
}

certificate() { # AUTHORITY NAME SUBJECT [ALTERNATIVE_NAMES]
    local authority=$1 name=$2 subject=$3 names=${4:-}
    openssl req -new "${new_key[@]}" -subj "$subject" -keyout "$name.key" -out "$name.csr" 2> /dev/null
    {
        echo 'basicConstraints=CA:FALSE'
        echo 'keyUsage=digitalSignature,keyEncipherment'
        echo 'extendedKeyUsage=serverAuth,clientAuth'
        [ -z "$names" ] || echo "subjectAltName=$names"
    } > "$name.ext"
    openssl x509 -req -days 3650 -in "$name.csr" -CA "$authority.crt" -CAkey "$authority.key" -CAcreateserial \
        -extfile "$name.ext" -out "$name.crt" 2> /dev/null
    rm "$name.csr" "$name.ext"
}

kubeconfig() { # USER
    cat > "$1.kubeconfig" << YAML
apiVersion: v1
kind: Config
clusters:
- name: testbed
  cluster: {server: "https://$api_ip:6443", certificate-authority-data: $(base64 -w0 < ca.crt)}
users:
- name: $1
  user: {client-certificate-data: $(base64 -w0 < "$1.crt"), client-key-data: $(base64 -w0 < "$1.key")}
contexts:
- name: testbed
  context: {cluster: testbed, user: $1}
current-context: testbed
YAML
}

# Two authorities: a proxy's certificate signed by the clients' authority would let any client pose as any user.
authority ca
authority front-ca

inside=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
certificate ca apiserver /CN=kube-apiserver "DNS:localhost,$inside,IP:127.0.0.1,IP:$api_ip,IP:$service_ip"
certificate ca kubelet-server "/CN=$node" "DNS:$node,IP:$node_ip"
certificate ca kubelet-client /O=system:masters/CN=kube-apiserver-kubelet-client
certificate front-ca front-proxy-client /CN=front-proxy-client
certificate ca admin /O=system:masters/CN=admin
certificate ca controller-manager /CN=system:kube-controller-manager
certificate ca scheduler /CN=system:kube-scheduler
certificate ca kubelet "/O=system:nodes/CN=system:node:$node"
for user in admin controller-manager scheduler kubelet; do
    kubeconfig "$user"
done

openssl genrsa -out service-accounts.key 2048 2> /dev/null
openssl rsa -in service-accounts.key -pubout -out service-accounts.pub 2> /dev/null
