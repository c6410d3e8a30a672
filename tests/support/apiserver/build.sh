#!/usr/bin/env bash
# Makes a real control plane for the end-to-end tests: kube-apiserver and kube-controller-manager, built from Debian's
# source package of Kubernetes 1.20.2, and etcd. Prints the folder that holds the three binaries.
#
# Where KUBEBUILDER_ASSETS names a folder that holds them, such as one with a newer release, it prints that and builds
# nothing. Otherwise it needs Debian 12, root and apt; the first time takes about six minutes on two cores, and the
# result is kept in the cache folder. Kubernetes 1.20 knows structural schemas, status and scale, watches and RBAC;
# CEL rules came later, and it drops them.
set -euo pipefail

has_binaries() {
  [[ -x $1/etcd && -x $1/kube-apiserver && -x $1/kube-controller-manager ]]
}

if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
  has_binaries "$KUBEBUILDER_ASSETS" && { echo "$KUBEBUILDER_ASSETS"; exit 0; }
  echo "KUBEBUILDER_ASSETS is $KUBEBUILDER_ASSETS, which lacks etcd, kube-apiserver or kube-controller-manager" >&2
  exit 1
fi

out=${XDG_CACHE_HOME:-$HOME/.cache}/sternpost/kube-1.20.2
has_binaries "$out" && { echo "$out"; exit 0; }

if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "building a control plane takes Debian 12, root and apt: or name a folder with etcd, kube-apiserver and" \
    "kube-controller-manager in KUBEBUILDER_ASSETS" >&2
  exit 1
fi

mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$out/build.log
tree=$work/go/src/k8s.io/kubernetes

get_source() {
  # Source packages come from wherever this machine gets its binary packages, with lists of their own.
  mkdir -p "$work/lists/partial"
  apt-get indextargets --format 'deb-src $(SITE) $(RELEASE) $(COMPONENT)' |
    grep -E ' bookworm main$' | sort -u >"$work/sources.list"
  local options=(
    -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::Lists=$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
  apt-get update
  apt-get install -y --no-install-recommends \
    dpkg-dev etcd-server golang-github-modern-go-reflect2-dev golang-go openssl
  cd "$work"
  apt-get "${options[@]}" update
  apt-get "${options[@]}" source --download-only kubernetes
  mkdir -p "$(dirname "$tree")"
  tar xzf kubernetes_*.orig.tar.gz
  mv kubernetes-[0-9]* "$tree"
}

make_openapi() {
  # The one generated file that the source package lacks.
  go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
  local staged='api|apiextensions-apiserver|apimachinery|apiserver|client-go|cloud-provider|controller-manager'
  staged+='|kube-aggregator|kube-controller-manager|kube-proxy|kube-scheduler|kubelet|metrics'
  local packages
  packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=true' pkg staging/src/k8s.io | xargs -n1 dirname | sort -u |
    sed 's#^staging/src/##; s#^pkg/#k8s.io/kubernetes/pkg/#' |
    grep -v '_examples\|/cmd/\|pkg/builder\|sample-\|custom_metrics\|external_metrics' | sort -u |
    sed -E "s#^k8s.io/($staged)/#k8s.io/kubernetes/vendor/k8s.io/\\1/#" | paste -sd,)
  "$work/openapi-gen" --go-header-file hack/boilerplate/boilerplate.generatego.txt -O zz_generated.openapi \
    --output-package k8s.io/kubernetes/pkg/generated/openapi --output-base "$GOPATH/src" \
    --report-filename "$work/violations" -i "$packages"
}

build() {
  get_source
  cd "$tree"
  export GO111MODULE=off GOFLAGS='' GOPATH=$work/go GOCACHE=$work/go-cache
  # The vendored reflect2 is older than the maps of this Go; Debian's package of it is not.
  rm -rf vendor/github.com/modern-go/reflect2
  cp -rL /usr/share/gocode/src/github.com/modern-go/reflect2 vendor/github.com/modern-go/
  make_openapi
  local binary
  for binary in kube-apiserver kube-controller-manager; do
    go build -o "$work/$binary" "./cmd/$binary"
  done
  # Only what is whole gets its final name.
  mv "$work/kube-apiserver" "$work/kube-controller-manager" "$out/"
  cp "$(command -v etcd)" "$out/etcd"
}

echo "building a control plane for the tests, about six minutes; the log is $log" >&2
# In the background, because bash lets a function that stands before || go on behind a command that fails.
(build) >"$log" 2>&1 &
wait $! || { tail -n 20 "$log" >&2; exit 1; }
echo "$out"
