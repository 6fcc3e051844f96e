# What the tests beside it share, which source it: a cluster with one node, ended when they end, and words of the shell.
# $1: the static production binary; built by .ci/build if not given. Needs root, jq and ../shared/envtest (or $ENVTEST).
set -Eeuo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
envtest=${ENVTEST:-../shared/envtest}
KUBEBUILDER_ASSETS=${KUBEBUILDER_ASSETS:-$("$envtest/build" --cluster)}
export KUBEBUILDER_ASSETS PATH=$KUBEBUILDER_ASSETS:$PATH
binary=$(realpath "${1:-$(.ci/build)}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
scratch=$(mktemp -d)
dir=$scratch/c # short: containerd's sockets are in it, and a socket's path has at most 107 bytes
export KUBECONFIG=$dir/kubeconfig

heading() { title=$1; printf '\n== %s (at %d s)\n' "$title" "$SECONDS"; }
fail() { failure=$*; printf 'e2e: %s\n' "$*" >&2; exit 1; }
trap 'failure="line $LINENO: $BASH_COMMAND"' ERR
# Repeats a command until it succeeds, for states that `kubectl wait` does not support: for a minute, or for $limit seconds.
eventually() {
  local limit=${limit:-60}
  local deadline=$((SECONDS + limit))
  until "$@"; do
    ((SECONDS < deadline)) || fail "not within $limit s: $*"
    sleep 0.1
  done
}
gone() { [[ -z $(kubectl get "$@" --ignore-not-found -o name) ]]; }
cluster_pid() { jq -r ".pids[\"$1\"]" "$dir/cluster.json"; }
# While the controllers sleep, the garbage collector cannot delete children before the operator does.
controllers_sleep() { kill -STOP "$(cluster_pid kube-controller-manager)"; }
controllers_wake() { kill -CONT "$(cluster_pid kube-controller-manager)"; }
# The requests of a service account, $operator's if none is named, from the line $audit_from of the log on, in this form of jq. An
# incomplete last line is skipped.
audit_from=1
audited() { # FORM [ACCOUNT]
  tail -n "+$audit_from" "$dir/audit.log" | jq -rR --arg name ":${2:-$operator}" 'fromjson? | select(.user.username | endswith($name))
    | .objectRef as $o | "\($o.resource)\(if $o.subresource then "/" + $o.subresource else "" end)" as $resource | '"$1"
}
# Verb, resource, name, status code.
requests() { audited '"\(.verb) \($resource) \($o.name // "-") \(.responseStatus.code)"' "$@"; }
# The writes among them, without Events and Leases.
writes() { requests "$@" | grep -E '^(create|update|patch|delete) ' | grep -vE ' (events|leases) ' || true; }
# The rules of a service account, by the roles that are bound to it: verb, resource, API group.
rules() { # NAMESPACE ACCOUNT
  kubectl get clusterrolebindings,rolebindings -A -o json |
    jq -r --arg namespace "$1" --arg name "$2" '.items[] | select(any(.subjects[]?; .kind == "ServiceAccount" and .namespace == $namespace and .name == $name))
      | "\(.metadata.namespace // "default") \(.roleRef.kind)/\(.roleRef.name)"' |
    while read -r namespace role; do kubectl -n "$namespace" get "$role" -o json; done |
    jq -r '.rules[] | .verbs[] as $verb | .resources[]? as $resource | .apiGroups[] as $group | "\($verb) \($resource) \($group)"' | sort -u
}
# Fails unless the operator has used each of its rules, and was allowed each request. The regular expressions name the rules for what the
# test does not bring about.
least_rights() { # NAMESPACE ACCOUNT [RULE]...
  local unused
  # An admission plugin of OpenShift requires the one for `finalizers`. A Lease is read if two Pods create it at the same time.
  local excepted=('update .*/finalizers .*' 'get leases .*' "${@:3}")
  rules "$1" "$2" >"$scratch/rules"
  audited '"\(.verb) \($resource) \($o.apiGroup // "")"' "$1:$2" | sort -u >"$scratch/asked"
  comm -12 "$scratch/rules" "$scratch/asked"
  unused=$(comm -23 "$scratch/rules" "$scratch/asked" | grep -vxE -f <(printf '%s\n' "${excepted[@]}") || true)
  [[ -z $unused ]] || fail "rules that nothing uses: ${unused//$'\n'/, }"
  if requests "$1:$2" | grep ' 403$'; then fail "a role forbids what the operator needs"; fi
}
# The name of the Pod that leads, and whether there is one.
leader() { # NAMESPACE
  local holder
  holder=$(kubectl -n "$1" get leases -o 'jsonpath={.items[0].spec.holderIdentity}')
  echo "${holder%_*}"
}
is_led() { kubectl -n "$1" get "pod/$(leader "$1")" >"$scratch/leader" 2>&1; }

finish() {
  local status=$?
  if ((status != 0)) && [[ -e $KUBECONFIG ]]; then
    printf '\n== FAILED; the current state\n'
    state || true
    tail -n 5 "$dir"/{registry,containerd,kubelet}.log | cut -c 1-1000 || true
  fi
  ended || true
  "$envtest/cluster" down --dir "$dir" || true
  rm -rf "$scratch"
  # Last, where it is found.
  ((status == 0)) || printf 'e2e: failed in "%s": %s\n' "${title:-}" "${failure:-status $status}" >&2
}
ended() { :; } # what else a test has to end

# A machine has one node, on the bridge envtest0: wait for the node of another test, and remove the node of a killed one.
no_node() { ! pgrep -x kubelet >/dev/null; }
# The registry of a cluster ends at its start if it reads the cluster's state while that is written. Then no image could be pulled.
all_run() { jq -r '.pids[] | "/proc/\(.)/exe"' "$dir/cluster.json" | xargs readlink >"$scratch/running"; }
start_cluster() {
  local failed=0
  limit=600 eventually no_node
  if [[ -e /sys/class/net/envtest0 ]]; then ip link del envtest0; fi
  trap finish EXIT
  until "$envtest/cluster" up --dir "$dir" --audit --fake-nodes 0 && all_run; do
    tail -n 3 "$dir"/*.log | cut -c 1-400 || true
    "$envtest/cluster" down --dir "$dir" || true
    ((++failed < 3)) || fail "no cluster"
  done
  "$envtest/cluster" image "listwatch:$version" "$binary=/listwatch" --dir "$dir"
}
