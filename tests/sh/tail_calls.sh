# Messages name a line of the script although "return f(...)" leaves no frame of the function that
# it ends.
. "$srcdir/tests/lib/tap.sh"
cd "$tmp" || bail "no temporary folder"

# message NAME SCRIPT MESSAGE
message() {
  printf '%s\n' "$2" >train.lua
  "$PIPER" train.lua >out 2>err </dev/null
  is "$? $(head -n 1 err)" "1 piper: $3" "$1"
}
lr='adamw: field "lr" is missing: it is a number of at least 0'
by='(called by the "return" of a function that this line calls)'
message "the end of a script" 'local piper = require "piper"

return piper.adamw {}' "train.lua:3: $lr"
message "... its first line" 'return require("piper").adamw {}' "train.lua:1: $lr"
message "... a method" 'local piper = require "piper"
local s = piper.strategy()
return s:place { filter = {}, devcies = { 0 } }' 'train.lua:3: place: unknown field "devcies" (did you mean "devices"?)'
message "the end of a function" 'local piper = require "piper"
local function make() return piper.adamw {} end
local optimizer = make()' "train.lua:3: $lr $by"
message "... by pcall" 'local piper = require "piper"
local _, why = pcall(function()
  return piper.adamw {}
end)
error(why, 0)' "train.lua:2: $lr $by"
message "... a method" 'local piper = require "piper"
local function place(s) return s:place { filter = {}, devcies = { 0 } } end
local s = place(piper.strategy())' "train.lua:3: place: unknown field \"devcies\" (did you mean \"devices\"?) $by"
message "... of compile" 'local piper = require "piper"
local function make() return piper.compile(1) end
local plan = make()' "train.lua:3: compile: argument 1 is 1, not a model of piper.model $by"
message "no tail call" 'local piper = require "piper"
local function make()
  local optimizer = piper.adamw {}
  return optimizer
end
local optimizer = make()' "train.lua:3: $lr"
message "tail calls of the library" 'require("piper").strategy.load "nowhere.json"' "train.lua:1: load: nowhere.json: No such file or directory"

# What stands before a script for this is not seen.
printf 'print(1, ...)\nlocal _ = 2\nreturn print(_)\n' >plain.lua
is "$("$PIPER" plain.lua a b)" "1	a	b
2" "arguments and names as ever"
printf '#!/usr/bin/env piper\nprint(1) error "here"\n' >bang.lua
"$PIPER" bang.lua >out 2>err </dev/null
is "$(cat out; head -n 1 err)" "1
piper: bang.lua:2: here" "a first line for the shell"
printf 'x = = 1\n' >wrong.lua
"$PIPER" wrong.lua >out 2>err </dev/null
is "$? $(head -n 1 err)" "1 piper: wrong.lua:1: unexpected symbol near '='" "a syntax error"
"$PIPER" nowhere.lua >out 2>err </dev/null
is "$? $(head -n 1 err)" "1 piper: cannot open nowhere.lua: No such file or directory" "a file that is not there"
"$PIPER" / >out 2>err </dev/null
like "$? $(head -n 1 err)" "^1 piper: cannot read /" "a folder"
: >empty.lua
"$PIPER" empty.lua >out 2>err </dev/null
is "$? $(cat out err)" "0 " "an empty file"
done_testing
