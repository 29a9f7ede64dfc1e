# tap.sh - points of a shell test in TAP.
#
#   . "$srcdir/tests/lib/tap.sh"
#   is "$(echo a)" a "echo echoes"
#   done_testing
#
# $tmp is a fresh folder that goes when the test ends.
tap_run=0
tap_failed=0
tmp=$(mktemp -d "${TMPDIR:-/tmp}/piper-test.XXXXXX") || exit 99
trap 'rm -rf "$tmp"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT

diag() { printf '%s\n' "$*" | sed 's/^/# /'; }

# ok STATUS NAME: STATUS 0 holds
ok() {
  tap_run=$((tap_run + 1))
  if [ "$1" -eq 0 ]; then
    echo "ok $tap_run - $2"
  else
    tap_failed=$((tap_failed + 1))
    echo "not ok $tap_run - $2"
  fi
}

# is GOT WANT NAME
is() {
  if [ "$1" = "$2" ]; then
    ok 0 "$3"
  else
    ok 1 "$3"
    diag " got: $1"
    diag "want: $2"
  fi
}

# like GOT PATTERN NAME: an extended regular expression that some line matches
like() {
  if printf '%s\n' "$1" | grep -Eq -e "$2"; then
    ok 0 "$3"
  else
    ok 1 "$3"
    diag " got: $1"
    diag "want a match of: $2"
  fi
}

# unlike GOT PATTERN NAME
unlike() {
  if printf '%s\n' "$1" | grep -Eq -e "$2"; then
    ok 1 "$3"
    diag " got: $1"
    diag "want no match of: $2"
  else
    ok 0 "$3"
  fi
}

skip() {
  tap_run=$((tap_run + 1))
  echo "ok $tap_run - $2 # SKIP $1"
}

skip_all() {
  echo "1..0 # SKIP $1"
  exit 0
}

bail() {
  echo "Bail out! $*"
  exit 1
}

done_testing() {
  echo "1..$tap_run"
  [ "$tap_failed" -eq 0 ]
  exit
}
