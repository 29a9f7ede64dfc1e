-- A directive's form is checked where it is written: one message, the script's line, the remedy.
local tap = require "tap"
local strategy = require "piper.strategy"

local s = strategy()
local function fails(method, spec, pattern)
  tap.error_matches(function() s[method](s, spec) end, "strategy_form.lua:%d+: " .. pattern)
end

fails("place", { filter = {}, devcies = { 0 } }, 'place: unknown field "devcies" %(did you mean "devices"%?%)')
fails("place", { filter = {} }, 'place: field "devices" is missing: it is a list')
fails("place", { devices = { 0 } }, 'place: field "filter" is missing')
fails("place", { filter = {}, devices = {} }, "place: devices is empty")
fails("place", { filter = {}, devices = { 0, 1, 0 } }, "place: device 0 is listed twice in { 0, 1, 0 }")
fails("place", { filter = {}, devices = { -1 } }, "place: device 1 of the list is %-1")
fails("place", { filter = {}, devices = { 1.5 } }, "place: device 1 of the list is 1.5")
fails("place", { filter = {}, devices = { "0" } }, 'place: device 1 of the list is "0"')
fails("place", { filter = { PP = -1 }, devices = { 0 } }, "place: PP = %-1 in the filter { PP = %-1 }")
fails("place", { filter = { PP = "0" }, devices = { 0 } }, 'place: PP = "0" in the filter')
fails("place", { filter = { PP = {} }, devices = { 0 } }, "place: PP = {}")
fails("place", { filter = { 3 }, devices = { 0 } }, "place: the filter { 3 } has no tag before 3")
fails("place", { filter = {}, devices = { 0 }, stream = "a b" }, 'place: stream is "a b"')
fails("place", "x", 'place: expects a table of options, not "x"')
fails("order", { filters = { { PASS = "BX" }, {} } }, 'order: group 1: PASS in the filter { PASS = "BX" } is "BX", not one of')
fails("order", { filters = { {} } }, "order: filters lists at least two groups")
fails("order", { filters = { 3, {} } }, "order: group 1 is 3: a filter or a list of filters was expected")
fails("order", { filters = { { { PP = 0 }, PP = 1 }, {} } }, 'order: group 1 mixes filters and the field "PP"')
fails("order", { filter = {} }, 'order: unknown field "filter" %(did you mean "filters"%?%)')
fails("split", { filter = {}, num_microbatches = 0 }, 'split: field "num_microbatches" is 0')
fails("split", { filter = {} }, 'split: field "num_microbatches" is missing')
fails("split", { dim_name = "PASS", num_microbatches = 2 }, 'split: dim_name cannot be "PASS"')
fails("replicate", { filter = {}, devices = { 0, 1 }, reduce_steam = "x" }, 'replicate: unknown field "reduce_steam" %(did you mean "reduce_stream"%?%)')
fails("replicate", { filter = {}, devices = { 0, 1 }, bucket_size = 0 }, 'replicate: field "bucket_size" is 0')
fails("add", 7, "add: argument 1 is 7")
fails("add", { { op = "plaec" } }, 'add: op of directive 1 is "plaec", not one of .*%(did you mean "place"%?%)')
fails("add", { 3 }, "add: element 1 is 3, not a directive")
tap.is(#s.directives, 0, "nothing that failed was kept")

local devices = { 0, 1 }
s:place { filter = { PP = { 0, 1 } }, devices = devices }
devices[1] = 9
tap.is(s.directives[1].devices[1], 0, "a directive is a copy")
tap.like(tostring(s), "place     filter = { PP = { 0, 1 } }, devices = { 0, 1 }   %(.*strategy_form.lua:%d+%)", "prints with its line")
tap.done()
