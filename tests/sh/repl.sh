# The interactive session, on a terminal and from a pipe.
. "$srcdir/tests/lib/tap.sh"

HOME=$tmp
XDG_STATE_HOME=
TERM=vt100
export HOME XDG_STATE_HOME TERM

# session NAME <commands of tests/lib/pty.c
session() {
  out=$("$builddir/tests/lib/pty" "$PIPER" 2>&1)
  status=$?
  [ $status -ne 77 ] || skip_all "no pseudo-terminal"
  if [ $status -eq 0 ]; then ok 0 "$1"; else ok 1 "$1"; diag "$out"; fi
}

session "expressions echo" <<'END'
expect Piper
expect >
send 1 + 1\r
expect 1 + 1
expect 2
send "a" .. "b", nil, 3\r
expect ab
expect nil
expect 3
expect > 
send \x04
exit
END
like "$out" '^exit 0$' "Ctrl-D leaves with status 0"

session "help" <<'END'
expect >
send help\r
expect A model and a strategy make a plan
expect directives.md
expect > 
send \x04
exit
END

session "topics of help, results, quit" <<'END'
expect >
send help "plan"\r
expect check_equivalence
expect > 
send help(piper.compile)\r
expect no topic
expect topics are model, nn, plan, run, schedules, strategy
expect > 
send nn\r
expect nn: add, attention
expect > 
send quit\r
expect Ctrl-D leaves
expect > 
send exit()\r
expect Ctrl-D leaves
expect > 
send piper.modle\r
expect there is no "modle"
expect > 
send \x04
exit
END
unlike "$out" 'table: 0x|\[C\]|\[piper\]|traceback' "no address, and no frame but the session's"
folder=$(echo help | "$PIPER" -i 2>&1 | sed -n 's/^\(.*doc\)\.$/\1/p')
ok "$(test -f "$folder/guide.md"; echo $?)" "the documents are where help says"

session "a chunk may take several lines" <<'END'
expect >
send for i = 1, 2 do\r
expect >>
send print("i" .. "=" .. i)\r
expect >>
send end\r
expect i=1
expect i=2
send function f()\r
expect >>
send return "of " .. "f" end\r
send f()\r
expect of f
expect > 
send \x04
exit
END

session "an error leaves the session alive" <<'END'
expect >
send error "no" .. ""\r
expect no
send local t = nil; t.x = 1\r
expect attempt to index a nil value
expect traceback
send x x x\r
expect syntax error near
send 40 + 2\r
expect 42
expect > 
send \x04
exit
END

session "Ctrl-C at the prompt drops the line" <<'END'
expect >
send print("left" .. "over")
expect over
send \x03
expect > 
send 6 * 7\r
expect 42
expect > 
send \x04
exit
END
unlike "$out" 'leftover' "and does not run it"

session "Ctrl-C drops a chunk of several lines" <<'END'
expect >
send function f(\r
expect >>
send \x03
expect > 
send 6 * 7\r
expect 42
expect > 
send \x04
exit
END

case $SANITIZED in
*tsan*) skip "TSan holds signals back until the next system call" "Ctrl-C ends a loop" ;;
*)
session "Ctrl-C ends a loop, back to the prompt" <<'END'
expect >
send print("sta" .. "rted") while true do end\r
expect started
send \x03
expect interrupted
expect > 
send 6 * 7\r
expect 42
expect > 
send print("ag" .. "ain") while true do end\r
expect again
send \x03
expect interrupted
expect > 
send \x04
exit
END
like "$out" '^exit 0$' "and the session ends well"
;;
esac

session "the library is at hand" <<'END'
expect >
send type(piper), piper == require "piper"\r
expect table
expect true
expect > 
send \x04
exit
END

LC_ALL=C.UTF-8
export LC_ALL
session "characters of several bytes can be typed and deleted" <<'END'
expect >
send #"\xc3\xa9\xe2\x82\xac"\r
expect 5
expect > 
send "\xc3\xa9\xe2\x82\xac\x7f" .. 9\r
expect é9
expect > 
send \x04
exit
END
unset LC_ALL

# lines of earlier sessions come back with the up arrow
ok "$(test -s "$tmp/.piper_history"; echo $?)" "history is kept in the home folder"
is "$(stat -c %a "$tmp/.piper_history")" 600 "for its owner alone"
rm -f "$tmp/.piper_history"
session "a line of one session" <<'END'
expect >
send 111 * 7\r
expect 777
expect > 
send \x04
exit
END
session "comes back in the next one" <<'END'
expect >
send \x1b[A
expect 111 * 7
send \r
expect 777
expect > 
send \x04
exit
END

XDG_STATE_HOME=$tmp/state
session "XDG_STATE_HOME holds the history" <<'END'
expect >
send 1\r
expect 1
expect > 
send \x04
exit
END
ok "$(test -s "$tmp/state/piper/history"; echo $?)" "in piper/history"

HOME=/nonexistent XDG_STATE_HOME=/proc/nonexistent
session "a history that cannot be written is no news" <<'END'
expect >
send 111 * 7\r
expect 777
expect > 
send \x04
exit
END
unlike "$out" 'rror|ermission|annot' "nothing is said about it"

# without a terminal: -i reads lines plainly
out=$(printf '1 + 1\nfor i = 1, 2 do\nprint(i * 10)\nend\n' | "$PIPER" -i 2>&1)
is "$(echo "$out" | tr -d '> ' | tail -n +2)" '2
10
20' "-i works on a pipe"
out=$(printf 'for i = 1, 2 do\n' | "$PIPER" -i 2>&1)
like "$out" "'end' expected" "a chunk that never ends is an error at the end of input"
out=$(echo 'x = 5' >"$tmp/x.lua"; echo 'x + 1' | "$PIPER" -i "$tmp/x.lua" 2>&1)
like "$out" '> 6$' "-i runs the script first"
out=$(echo '_PROMPT = "? " print(1)' | "$PIPER" -i 2>&1)
like "$out" '^\? $' "_PROMPT is the prompt"

done_testing
