# Ctrl-C ends a script within a second, wherever it is.
. "$srcdir/tests/lib/tap.sh"
case $SANITIZED in *tsan*) skip_all "TSan holds signals back until the next system call" ;; esac
cd "$tmp" || bail "no temporary folder"

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# interrupt NAME CHUNK: sends SIGINT when the chunk has printed "ready"; message in $err
interrupt() {
  rm -f out
  # a background job of a shell ignores SIGINT, and what it starts does too; pty gives a fresh one
  printf '%s\n' "io.stdout:setvbuf 'no'" "$2" >chunk.lua
  "$builddir/tests/lib/pty" "$PIPER" chunk.lua >out 2>&1 <<END
expect ready
pause 100
send \\x03
exit
END
  status=$?
  [ $status -ne 77 ] || skip_all "no pseudo-terminal"
  is "$(tail -n 1 out)" "exit 1" "$1"
  [ $status -eq 0 ] || diag "$(cat out)"
}

began=$(now_ms)
interrupt "an empty loop" 'print "ready" while true do end'
took=$(($(now_ms) - began))
if [ "$took" -lt 1500 ]; then ok 0 "within a second"; else ok 1 "within a second ($took ms)"; fi
interrupt "a loop in a coroutine" 'print "ready" coroutine.wrap(function() while true do end end)()'
interrupt "a coroutine in a coroutine" '
  local co = coroutine.create(function()
    coroutine.wrap(function() print "ready" while true do end end)()
  end)
  print(coroutine.resume(co))
  while true do end'
interrupt "a loop that catches errors" 'print "ready" while true do pcall(function() while true do end end) end'
interrupt "a loop that makes coroutines and catches" '
  print "ready"
  while true do coroutine.resume(coroutine.create(function() while true do end end)) end'
interrupt "a sort" 'print "ready" while true do local t = {} for i = 1, 1000 do t[i] = -i end table.sort(t) end'
interrupt "a read that waits" 'print "ready" io.read() while true do end'
interrupt "a text without end" 'print "ready" require "piper".data.text("/dev/zero", { context = 8 })'

cat >closing.lua <<'END'
local file <close> = setmetatable({}, { __close = function()
  local s = 0
  for i = 1, 100 do s = s + i end
  print("closed", s)
end })
print "ready"
while true do end
END
"$builddir/tests/lib/pty" "$PIPER" closing.lua >out 2>&1 <<'END'
expect ready
send \x03
expect closed
expect 5050
expect interrupted
exit
END
ok $? "what is open is closed first, then the message comes"
is "$(tail -n 1 out)" "exit 1" "exit code 1"
printf '%s\n' 'local function work()' '  while true do end' 'end' 'print "ready"' 'work()' >frames.lua
"$builddir/tests/lib/pty" "$PIPER" frames.lua >out 2>&1 <<'END'
expect ready
pause 200
send \x03
expect frames.lua:2: interrupted
expect called from frames.lua:5
exit
END
ok $? "the message has the script's frames"
unlike "$(cat out)" 'traceback|\[C\]|\[piper\]' "without frames of the library"

# a C function that does not look: the second Ctrl-C kills
printf 'print "ready"\nlocal s = ("a"):rep(40)\nprint(s:find((".-"):rep(24) .. "b"))\n' >stuck.lua
"$builddir/tests/lib/pty" "$PIPER" stuck.lua >out 2>&1 <<'END'
expect ready
pause 200
send \x03
pause 300
send \x03
exit
END
is "$(tail -n 1 out)" "signal 2" "a second Ctrl-C kills"

done_testing
