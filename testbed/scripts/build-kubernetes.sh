#!/bin/bash
# Builds the Kubernetes servers, kubectl and the bench's exec client as an ordinary program
# that depends on the Go module k8s.io/kubernetes.
#
#   build-kubernetes.sh VERSION OUTDIR          e.g. build-kubernetes.sh 1.36.3 ~/.cache/testbed/k8s-1.36.3
#
# OUTDIR appears complete or not at all: everything is built beside it and renamed at the end.
set -euo pipefail

version=$1 out=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
minor=$(cut -d. -f2 <<< "$version")
staging_version=v0.${version#1.}

work=$out.building
rm -rf "$work"
mkdir -p "$work/bin" "$work/src"
trap 'rm -rf "$work"' EXIT
cd "$work/src"

# The module pins its own parts (k8s.io/api, client-go, ...) at v0.0.0 and points each at a local folder. Whoever
# depends on it has to repeat every such line with the published version, so the list is read from its own go.mod.
go mod init testbed.invalid/kubernetes 2> /dev/null
gomod=$(go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^\t"GoMod": "\(.*\)",*$/\1/p')
go mod edit -require="k8s.io/kubernetes@v$version"
while read -r module; do
    go mod edit -replace="$module=$module@$staging_version"
done < <(sed -n 's|^\t*\(k8s.io/[a-z-]*\) => ./staging/.*|\1|p' "$gomod")

server() { # NAME CONSTRUCTOR: the same few lines that cmd/NAME has upstream
    mkdir "$1"
    cat > "$1/main.go" << GO
package main

import (
	"context"
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/$1/app"
)

var _ = context.Background

func main() { os.Exit(cli.Run(app.$2)) }
GO
}
server kube-apiserver 'NewAPIServerCommand()'
server kube-controller-manager 'NewControllerManagerCommand()'
server kube-scheduler 'NewSchedulerCommand()'
server kubelet 'NewKubeletCommand(context.Background())'
mkdir kubectl wsexec
cat > kubectl/main.go << 'GO'
package main

import (
	"k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
)

func main() { util.CheckErr(cli.RunNoErrOutput(cmd.NewDefaultKubectlCommand())) }
GO
cp "$here/wsexec.go" wsexec/main.go
go mod tidy

flags="-s -w"
for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=v$version -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
done
for command in kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl wsexec; do
    CGO_ENABLED=0 nice go build -trimpath -ldflags "$flags" -o "$work/bin/$command" "./$command"
done

rm -rf "$out"
mv "$work/bin" "$out"
