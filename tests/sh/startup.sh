# A start costs at most 10 ms more than one of lua5.4, library included.
. "$srcdir/tests/lib/tap.sh"
command -v lua5.4 >/dev/null || skip_all "no lua5.4 to compare with"
[ -z "$SANITIZED" ] || skip_all "an instrumented build"

# the shortest of 15 runs, in microseconds: other work on the machine only adds
shortest() {
  best=
  i=0
  while [ $i -lt 15 ]; do
    t0=$(date +%s%N)
    "$@" >/dev/null
    t1=$(date +%s%N)
    us=$(((t1 - t0) / 1000))
    if [ -z "$best" ] || [ $us -lt "$best" ]; then best=$us; fi
    i=$((i + 1))
  done
  echo "$best"
}

lua=$(shortest lua5.4 -e '')
bare=$(shortest "$PIPER" -e '')
library=$(shortest "$PIPER" -e 'local piper = require "piper"')
diag "microseconds: lua5.4 $lua, piper $bare, with the library $library"
ok $((bare - lua > 10000)) "piper starts as lua5.4 does"
ok $((library - lua > 10000)) "and loads its library in time"
done_testing
