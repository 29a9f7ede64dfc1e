-- check: options against a declared list, and the words of its messages.
local tap = require "tap"
local check = require "piper.check"

local line = "check%.lua:" .. debug.getinfo(1, "l").currentline + 1 .. ": "
tap.error_matches(function() check.fail("no") end, line .. "no$", "the position is the caller's")
tap.error_matches(function() check.fail("%d of %s", 3, "x") end, ": 3 of x$", "arguments are formatted")
tap.error_matches(function() check.fail("100%") end, ": 100%%$", "a lone percent sign is none")

local PLACE = { filter = "table", devices = "list", stream = "string?", depth = "integer>=1?", rate = "number>0|boolean?" }
-- no tail call: it would take the frame away whose line is named
local function place(spec)
  return function() local same = check.options("place", spec, PLACE) return same end
end

local fine = { filter = {}, devices = { 0, 1 } }
tap.is(check.options("place", fine, PLACE), fine, "what is right passes through")
tap.error_matches(place { filter = {}, devcies = { 0 } },
  '^.*check%.lua:%d+: place: unknown field "devcies" %(did you mean "devices"%?%)$')
tap.error_matches(place { filter = {}, devices = {}, colour = 1 },
  'place: unknown field "colour" %(fields: depth, devices, filter, rate, stream%)$')
tap.error_matches(place { { 0 } }, "place: unknown field 1 %(fields: ")
tap.error_matches(place { filter = {} }, 'place: field "devices" is missing: it is a list$')
tap.error_matches(place { filter = {}, devices = 3 }, 'place: field "devices" is 3, not a list$')
tap.error_matches(place { filter = {}, devices = { x = 1 } }, 'field "devices" is { x = 1 }, not a list$')
tap.error_matches(place { filter = "PP", devices = {} }, 'field "filter" is "PP", not a table$')
tap.error_matches(place { filter = {}, devices = {}, depth = 0 }, 'field "depth" is 0, not a whole number of at least 1$')
tap.error_matches(place { filter = {}, devices = {}, depth = 1.5 }, 'field "depth" is 1%.5, not a whole number')
tap.error_matches(place { filter = {}, devices = {}, depth = "2" }, 'field "depth" is "2", not a whole number')
tap.error_matches(place { filter = {}, devices = {}, rate = 0 }, 'field "rate" is 0, not a number above 0 or true or false$')
tap.error_matches(place { filter = {}, devices = {}, rate = 0 / 0 }, 'field "rate" is %-?nan, not a number')
tap.ok(pcall(place { filter = {}, devices = {}, rate = false, depth = 2.0 }), "alternatives, and a float that is whole")
tap.error_matches(place(nil), "place: expects a table of options, not nil$")
tap.error_matches(place "x", 'place: expects a table of options, not "x"$')

tap.is(check.value("f", "argument 1", nil, "string?"), nil, "an optional value may be absent")
tap.error_matches(function() check.value("f", "argument 1 (name)", 7, "string") end, "f: argument 1 %(name%) is 7, not a string$")
tap.is(check.choice("f", 'field "reduce"', "step", { "step", "microbatch" }), "step", "a choice")
tap.error_matches(function() check.choice("f", 'field "reduce"', "stpe", { "step", "microbatch" }) end,
  'f: field "reduce" is "stpe", not one of "step", "microbatch" %(did you mean "step"%?%)$')

local piper = require "piper"
local small = piper.model("m", function(m) m:loss(piper.nn.sum_squares(piper.nn.linear(m:input("x", { "batch", 2 }), "w", { out = 2 }))) end)
local run = piper.train(piper.compile(small, piper.strategy(), { batch = 1 }), { data = piper.data.table { x = { { 1, 2 } } } })
tap.is(check.show { PP = 0, MB = { 0, 1 } }, "{ MB = { 0, 1 }, PP = 0 }", "tables show sorted")
tap.is(check.show { [0] = 1, [true] = 2, ["a b"] = 3 }, '{ [true] = 2, [0] = 1, ["a b"] = 3 }', "keys that are no names")
tap.is(check.show(("x"):rep(100)), '"' .. ("x"):rep(57) .. '..."', "long strings are cut")
-- The core shows strings in the same way.
for _, case in ipairs {
  { "a\n\0b\127", "a??b?", "control characters" }, { "r\u{e9}sum\u{e9} \u{1F600}", "r\u{e9}sum\u{e9} \u{1F600}", "UTF-8" },
  { "a\xff\xc3(\xed\xa0\x80\xc0\x80", "a??(?????", "what is not UTF-8" },
  { ("x"):rep(56) .. "\u{e9}" .. ("x"):rep(50), ("x"):rep(56) .. "...", "no character is cut in two" },
  { ("x"):rep(58) .. "\u{e9}", ("x"):rep(58) .. "\u{e9}", "60 bytes are not long" },
  { ("\xff"):rep(5000), ("?"):rep(57) .. "...", "long and not UTF-8" },
} do
  tap.is(check.show(case[1]), '"' .. case[2] .. '"', case[3])
  local _, message = pcall(run.params, run, case[1])
  tap.like(message, "has no parameter " .. ('"' .. case[2] .. '"'):gsub("%p", "%%%0"), case[3] .. ", in the core")
end
tap.is(check.show { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, "{ 1, 2, 3, 4, 5, 6, 7, 8, ... }", "long tables are cut")
local loop = {}
loop.loop = loop
tap.is(check.show(loop), "{ loop = { loop = { loop = {...} } } }", "a table in itself ends")
tap.is(check.show(setmetatable({}, { __tostring = function() return "mine" end })), "mine", "__tostring speaks")

tap.like(check.here(), "check%.lua:" .. debug.getinfo(1, "l").currentline .. "$", "here is this line")

-- the user's frame may be deep below library frames, or in a callback of one
local list = setmetatable({}, { __index = function() check.fail("in a metamethod") end })
tap.error_matches(function() return list.x end, "^.*check%.lua:" .. debug.getinfo(1, "l").currentline - 1 .. ": in a metamethod$",
  "a callback of the user's is the user's")
tap.error_matches(coroutine.wrap(function() check.fail("in a coroutine") end), "check%.lua:%d+: in a coroutine$")

tap.done()
