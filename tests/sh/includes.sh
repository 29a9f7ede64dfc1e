# Who may include whom in src/ (an arrow "A <- B" says that B may include A, through chains too).
. "$srcdir/tests/lib/tap.sh"
cd "$srcdir" || bail "no source folder"

cat >"$tmp/arrows" <<'END'
base <- ir
ir <- passes
ir <- plan
plan <- sim
base <- device
device <- comm
plan <- runtime
device <- runtime
comm <- runtime
passes <- compile
plan <- compile
sim <- compile
compile <- bind
runtime <- bind
bind <- main
plan <- tools
kernels <- device
END

# what NAME FILE...: prints each include of FILEs that no arrow allows
cat >"$tmp/check.awk" <<'END'
FNR == NR { may[$3, $1] = 1; folder[$1] = folder[$3] = 1; next }
FNR != NR && !closed {
  closed = 1
  do {
    more = 0
    for (a in folder) for (b in folder) for (c in folder)
      if ((a, b) in may && (b, c) in may && !((a, c) in may)) { may[a, c] = 1; more = 1 }
  } while (more)
}
function folder_of(path) {
  if (path ~ /^kernels\//) return "kernels"
  sub(/^src\//, "", path)
  return path ~ /\// ? substr(path, 1, index(path, "/") - 1) : "main"
}
/^[ \t]*#[ \t]*include/ {
  from = folder_of(FILENAME)
  what = $0
  sub(/^[ \t]*#[ \t]*include[ \t]*/, "", what)
  if (what ~ /^"/) {
    split(what, part, "\"")
    to = part[2]
    if (to == "config.h") next
    dir = to ~ /\// ? substr(to, 1, index(to, "/") - 1) : (from == "main" || from == "kernels" ? from : "?")
    if (!(dir in folder)) print FILENAME ":" FNR ": \"" to "\" is not named from src/ or the top"
    else if (dir == "kernels" && from != "kernels" && to != "kernels/kernels.h")
      print FILENAME ":" FNR ": of kernels/ only kernels.h is for others"
    else if (dir != from && !((from, dir) in may))
      print FILENAME ":" FNR ": " from " may not include " dir " (" to ")"
  } else if (what ~ /^<(lua|lauxlib|lualib)/ && from != "bind" && from != "main") {
    print FILENAME ":" FNR ": " from " may not know of Lua"
  }
}
END

check() { awk -f "$tmp/check.awk" "$tmp/arrows" "$@"; }

files=$(find src kernels -name '*.[ch]' -o -name '*.def' -o -name '*.cu' -o -name '*.cuh' | sort)
# shellcheck disable=SC2086  # a list of words
is "$(check $files)" "" "every include follows an arrow"

# the check itself sees what it should
mkdir -p "$tmp/src/base" "$tmp/src/plan" "$tmp/src/bind" "$tmp/kernels"
cd "$tmp" || bail "no temporary folder"
try() { # LINE FILE WANT NAME
  echo "$1" >"$2"
  is "$(check "$2")" "$3" "$4"
}
try '#include "ir/dag.h"' src/base/x.c 'src/base/x.c:1: base may not include ir (ir/dag.h)' "base includes nothing above it"
try '#include "base/err.h"' src/plan/x.c '' "plan may include base, through ir"
try '  #  include "sim/sim.h"' src/plan/x.c 'src/plan/x.c:1: plan may not include sim (sim/sim.h)' "an indented include counts"
try '#include "dag.h"' src/plan/x.c 'src/plan/x.c:1: "dag.h" is not named from src/ or the top' "headers are named with their folder"
try '#include <lua.h>' src/plan/x.c 'src/plan/x.c:1: plan may not know of Lua' "Lua stays in bind"
try '#include <lua.h>' src/bind/x.c '' "bind knows Lua"
try '#include "gemm.h"' kernels/x.c '' "but they include their neighbours by name"
try '#include "base/err.h"' kernels/x.c 'kernels/x.c:1: kernels may not include base (base/err.h)' "kernels stand alone"

done_testing
