# The library in the binary, PIPER_LUA in its place, and whose line an error names.
. "$srcdir/tests/lib/tap.sh"
cd "$tmp" || bail "no temporary folder"

mkdir piper
echo 'error "this is not the library"' >piper/init.lua
out=$(LUA_PATH='./?.lua;./?/init.lua' "$PIPER" -e 'print(type(require "piper"))' 2>&1)
is "$out" table "a folder named piper does not hide the library"

out=$("$PIPER" -e 'print(debug.getinfo(require("piper.check").fail, "S").source)' 2>&1)
is "$out" "=[piper]/check.lua" "library chunks are named [piper]/..."
out=$("$PIPER" -e 'require "piper.nosuch"' 2>&1)
like "$out" "piper has no module 'piper.nosuch'" "a part that does not exist"

mkdir -p dev/piper/sub
echo 'return { mine = true, where = debug.getinfo(1, "S").source }' >dev/piper/init.lua
echo 'return debug.getinfo(1, "S").source' >dev/piper/sub/part.lua
echo 'return = 1' >dev/piper/broken.lua
export PIPER_LUA="$tmp/dev"
out=$("$PIPER" -e 'local p = require "piper" print(p.mine, p.where)' 2>&1)
is "$out" "true	=[piper]/init.lua" "PIPER_LUA is read in place of the binary's"
out=$("$PIPER" -e 'print((require "piper.sub.part"))' 2>&1)
is "$out" "=[piper]/sub/part.lua" "also below folders"
out=$("$PIPER" -e 'require "piper.check"' 2>&1)
like "$out" "no file '.*/dev/piper/check.lua' \(PIPER_LUA\)" "what is missing there is named"
out=$("$PIPER" -e 'require "piper.broken"' 2>&1)
like "$out" '\[piper\]/broken.lua:1: ' "a syntax error names its line"
out=$("$PIPER" -E -e 'print(rawget(require("piper"), "mine"))' 2>&1)
is "$out" nil "-E leaves PIPER_LUA out"
unset PIPER_LUA

cat >blame.lua <<'END'
local check = require "piper.check"
local function helper()
  check.options("place", { devcies = 1 }, { devices = "list" })
end
local function outer()
  helper()
end
outer()
END
out=$("$PIPER" blame.lua 2>&1)
is "$out" 'piper: blame.lua:3: place: unknown field "devcies" (did you mean "devices"?)
	called from blame.lua:6
	called from blame.lua:8' "an error of the library names the script's line and how it came there"
printf '%s\n' 'local check = require "piper.check"' 'local function f() check.fail "no" end local function g() f() end' 'g() g()' >line.lua
is "$("$PIPER" line.lua 2>&1)" 'piper: line.lua:2: no
	called from line.lua:3' "each line once"
printf '%s\n' 'local piper = require "piper"' 'piper.model("m", function()' '  local t = nil' '  pcall(error)' '  t.x = 1' 'end)' >inside.lua
out=$("$PIPER" inside.lua 2>&1)
like "$out" 'inside.lua:5: in ' "a traceback has the frames of the script"
unlike "$out" '\[C\]|\[piper\]|tail calls' "and no other"
is "$("$PIPER" -e 'require("piper.check").fail("no")' 2>&1)" "piper: (command line):1: no" "one frame needs no more"
out=$("$PIPER" -e 'local t = nil
local ok, e = pcall(require("piper.check").fail, "no")
t.x = 1' 2>&1)
like "$out" '^stack traceback' "a later plain error has its traceback"

done_testing
