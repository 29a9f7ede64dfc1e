# The Lua files have no unused variables, no accidental globals.
. "$srcdir/tests/lib/tap.sh"
command -v luacheck >/dev/null || skip_all "no luacheck"
cd "$srcdir" || bail "no source folder"
dirs=
for d in lua samples tests bench; do [ ! -d "$d" ] || dirs="$dirs $d"; done
# shellcheck disable=SC2086  # a list of words
is "$(luacheck --no-color --no-cache --config .luacheckrc -qq --formatter plain $dirs 2>&1)" "" "luacheck has nothing to say"
done_testing
