# What `run` and `nightly` share, which source it: an environment, and words of the shell.
set -euo pipefail
exec </dev/null
cd "$(git -C "$(dirname "${BASH_SOURCE[0]}")" rev-parse --show-toplevel)"
export ENVTEST=${ENVTEST:-$PWD/../shared/envtest}
export PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/local/go/bin
export CARGO_TERM_COLOR=never
# Nothing is built twice.
export CARGO_INCREMENTAL=0
# With this, a test fails if the machine lacks something that it needs, such as the right to use nft.
export CI=true

heading() { title=$1; printf '\n=== %s (at %d s)\n' "$title" "$SECONDS"; }
fail() { printf 'ci: %s\n' "$*" >&2; exit 1; }

# background NAME COMMAND...: starts it. What it prints is in $scratch/NAME, and its log in $scratch/NAME.log.
declare -A started=()
background() {
  local name=$1
  shift
  heading "$name, in the background"
  "$@" >"$scratch/$name" 2>"$scratch/$name.log" &
  started[$name]=$!
}
# wait_for NAME...: waits until they have ended.
wait_for() {
  local name
  for name in "$@"; do
    heading "$name: wait for it"
    wait "${started[$name]}" || { tail -n 100 "$scratch/$name.log" "$scratch/$name"; fail "$name failed"; }
    unset "started[$name]"
  done
}

# tests [CARGO ARGUMENTS] -- [ARGUMENTS OF THE TESTS]: a test or two that fail beside others, on a machine that others use too, run
# once more, alone, and then decide. Not those that draw seeds: the second run would have others.
tests() {
  local cargo=() failed
  while [[ $1 != -- ]]; do cargo+=("$1"); shift; done
  cargo test --locked --no-fail-fast "${cargo[@]}" "$@" 2>&1 | tee "$scratch/tests" && return
  mapfile -t failed < <(sed -n 's/^test \([a-z0-9_:]*\).* \.\.\. FAILED$/\1/p' "$scratch/tests")
  [[ ${#failed[@]} == [12] && ${failed[*]} != *random* ]] && ! grep -F '(signal: ' "$scratch/tests" || fail "failed: ${failed[*]:-to build}"
  heading "Once more, alone: ${failed[*]}"
  cargo test --locked "${cargo[@]}" -- --exact "${failed[@]}" --test-threads 1 | tee "$scratch/again"
  [[ $(grep -c '^test .* ok$' "$scratch/again") == "${#failed[@]}" ]] || fail "not found again: ${failed[*]}"
}

# packages NAME...: packages of Debian.
packages() {
  if ! dpkg-query --show --showformat '${db:Status-Status}\n' "$@" >"$scratch/packages" 2>&1 || grep -qv '^installed$' "$scratch/packages"; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
  fi
}

heading "Commit"
git rev-parse HEAD
scratch=$(mktemp -d)
finish() {
  local status=$?
  ((${#started[@]} == 0)) || kill "${started[@]}" 2>/dev/null || true
  rm -rf "$scratch"
  ((status == 0)) || printf 'ci: failed in "%s"\n' "$title" >&2
}
trap finish EXIT
