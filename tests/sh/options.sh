# The command line: options, arg, messages and exit codes, as lua(1) has them.
. "$srcdir/tests/lib/tap.sh"
cd "$tmp" || bail "no temporary folder"

# run NAME WANT-STATUS ARGS...: stdout in $out, stderr in $err
run() {
  name=$1 want=$2
  shift 2
  "$PIPER" "$@" >out 2>err </dev/null
  status=$?
  out=$(cat out) err=$(cat err)
  is "$status" "$want" "$name: exit $want"
}

cat >args.lua <<'END'
local low = 0
while arg[low - 1] do low = low - 1 end
for i = low + 1, #arg do io.write(i, "=", arg[i], " ") end
print(select("#", ...), ...)
END

run "script" 0 args.lua a 'b c' ''
is "$out" "0=args.lua 1=a 2=b c 3= 3	a	b c	" "arguments arrive in arg and ..."
run "options before the script" 0 -e 'x = 1' -W args.lua -e
is "$out" "-3=-e -2=x = 1 -1=-W 0=args.lua 1=-e 1	-e" "options have negative indices, what follows the script is its own"

run "-e" 0 -e 'print(1)' -e 'print(2)'
is "$out" "1
2" "-e may be repeated"
run "-e without a space" 0 '-eprint(3)'
is "$out" 3 "-eCHUNK"
run "-e without chunk" 1 -e
like "$err" "^piper: '-e' needs argument" "says what is missing"
like "$err" "^usage: piper " "and shows the usage"
run "-e with an error" 1 -e 'error("no", 0)' -e 'print "not reached"'
like "$err" "^piper: no$" "the message"
is "$out" "" "a failed chunk ends it all"
run "-e with a script" 0 -e 'y = 5' -e 'print(y)' args.lua
is "$(head -n 1 out)" 5 "-e runs before the script"

echo 'return { answer = 42 }' >mod.lua
LUA_PATH="./?.lua;$LUA_PATH"
run "-l" 0 -l mod -e 'print(mod.answer)'
is "$out" 42 "-l mod makes the global mod"
run "-l without a space" 0 -lmod -e 'print(mod.answer)'
is "$out" 42 "-lmod"
run "-l g=mod" 0 -l g=mod -e 'print(g.answer, mod)'
is "$out" "42	nil" "-l g=mod makes the global g"
run "-l piper" 0 -l p=piper -e 'print(type(p))'
is "$out" table "-l finds the library"
run "-l of nothing" 1 -l nosuchmodule
like "$err" "^piper: module 'nosuchmodule' not found" "says which module"
run "-l without name" 1 -l
like "$err" "^piper: '-l' needs argument" "says what is missing"

run "-v" 0 -v
like "$out" '^Piper [0-9.]+ \(Lua 5\.4\.[0-9]+\)$' "-v shows both versions"
run "-v with -e" 0 -v -e 'print "on"'
is "$(sed -n 2p out)" on "and goes on"
run "--version" 0 --version
like "$out" '^Piper [0-9.]+ \(Lua 5\.4' "--version starts like -v"
like "$out" '^kernels: ' "and says what is compiled in"
run "--help" 0 --help
like "$out" '^usage: piper \[options\] \[script \[args\]\]$' "--help shows the usage on stdout"
like "$out" '^Documents: doc/guide.md .* installed in /.*/doc$' "and where the documents are"

run "an unknown long option" 1 --verison
like "$err" "^piper: unrecognized option '--verison'" "is named"
like "$err" '^usage: ' "with the usage"
run "an unknown short option" 1 -z
like "$err" "^piper: unrecognized option '-z'" "is named"
run "options do not run together" 1 -vi
like "$err" "^piper: unrecognized option '-vi'" "is named"

run "-W" 0 -W -e 'warn("careful")'
like "$err" 'Lua warning: careful' "-W turns warnings on"
run "no -W" 0 -e 'warn("careful")'
is "$err" "" "and they are off without"

export LUA_INIT='print "init"'
run "LUA_INIT" 0 -e 'print "chunk"'
is "$out" "init
chunk" "LUA_INIT runs first"
export LUA_INIT_5_4='print "init 5.4"'
run "LUA_INIT_5_4" 0 -e ''
is "$out" "init 5.4" "LUA_INIT_5_4 wins"
run "-E" 0 -E -e 'print(package.path:find("%./%?%.lua;/nowhere"))'
is "$out" nil "-E leaves the environment out"
unset LUA_INIT_5_4
echo 'print "from file"' >init.lua
export LUA_INIT=@init.lua
run "LUA_INIT=@file" 0 -e ''
is "$out" "from file" "LUA_INIT may name a file"
export LUA_INIT='error("bad init", 0)'
run "a bad LUA_INIT" 1 -e 'print "not reached"'
is "$out" "" "ends it"
unset LUA_INIT

out=$(echo 'print("stdin", ...)' | "$PIPER")
is "$out" "stdin" "no script and no terminal: stdin is run"
out=$(echo 'print("stdin", ...)' | "$PIPER" - x y)
is "$out" "stdin	x	y" "- runs stdin, with arguments"
echo 'print("dash file")' >./-
out=$("$PIPER" -- - </dev/null)
is "$out" "dash file" "-- - is a file"
out=$(echo 'error("bad", 0)' | "$PIPER" 2>&1)
is $? 1 "an error in stdin: exit 1"
like "$out" '^piper: bad$' "with the message"

printf '#!/usr/bin/env piper\nprint "ran"\nerror "here"\n' >shebang.lua
run "a first line with #!" 1 shebang.lua
is "$out" ran "is skipped"
like "$err" '^piper: shebang\.lua:3: here$' "and counts as a line"

run "no such file" 1 nosuch.lua
like "$err" '^piper: cannot open nosuch\.lua' "is named"
echo 'x = = 1' >syntax.lua
run "a syntax error" 1 syntax.lua
like "$err" '^piper: syntax\.lua:1: ' "names file and line"
unlike "$err" traceback "and needs no traceback"

printf 'local function f(t)\n  return t.x.y\nend\nprint "before"\nf({})\n' >deep.lua
run "a runtime error" 1 deep.lua
like "$err" "^piper: deep\.lua:2: attempt to index a nil value" "names file and line"
like "$err" '^stack traceback:' "has a traceback"
like "$err" "deep\.lua:5: in main chunk" "down to the main chunk"

run "an error object" 1 -e 'error({ code = 2 })'
like "$err" '^piper: \(error object is a table value\)' "is described"
run "an error object with __tostring" 1 -e 'error(setmetatable({}, { __tostring = function() return "mine" end }))'
is "$err" "piper: mine" "speaks for itself"
run "an error with nil" 1 -e 'error()'
like "$err" '^piper: (nil|\(error object is a nil value\))' "nil is described"

run "os.exit(3)" 3 -e 'os.exit(3)'
run "os.exit(true, true)" 0 -e 'os.exit(true, true)'
run "os.exit(false)" 1 -e 'os.exit(false)'

run "piper is no global in scripts" 0 -e 'print(piper, nn)'
is "$out" "nil	nil" "scripts require it"

# What cannot be written is not lost in silence.
# lost NAME ARGS...: with a full device for output
lost() {
  name=$1
  shift
  "$PIPER" "$@" 2>err >/dev/full </dev/null
  is "$? $(cat err)" "1 piper: cannot write the output: No space left on device" "$name: is said"
}
if [ -c /dev/full ]; then
  lost "print" -e 'print(1)'
  lost "io.write" -e 'io.write(1)'
  lost "print of much" -e 'print(("x"):rep(100000))'
  echo 'print(1)' >print.lua
  lost "a script" print.lua
  lost "os.exit" -e 'print(1) os.exit(0)'
  for option in --help --version -v; do lost "$option" "$option"; done
  "$PIPER" -e 'io.write(("x"):rep(100000))' 2>err >/dev/full
  is "$?" 1 "io.write of much: exit 1"
  like "$(cat err)" "^piper: cannot write the output" "is said"
  "$PIPER" -e 'x = 1' >/dev/full
  is "$?" 0 "nothing to write is no error"
fi
"$PIPER" -e 'local f = io.open("file", "w") print(1) f:write "a" f:close()' 2>err >&-
is "$? $(cat err) $(cat file)" "1 piper: cannot write the output: Bad file descriptor a" "closed, and no file gets the output"
"$PIPER" -e 'x = 1' >&-
is "$?" 0 "closed, and nothing to write"
run "print" 0 -e 'print(nil, 1.5, true, setmetatable({}, { __tostring = function() return "T" end })) print() print "a\0b"'
is "$(tr '\0' 0 <out)" "nil	1.5	true	T

a0b" "as lua(1) has it"

# state is closed: finalizers run
run "finalizers" 0 -e 'setmetatable({}, { __gc = function() print "closed" end })'
is "$out" closed "run at the end"

# a message about memory, not a crash
run "not enough memory" 1 -e 'local s = ("x"):rep(1 << 62)'
like "$err" 'piper: .*(too large|not enough memory)' "is an error"

done_testing
