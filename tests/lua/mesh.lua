-- Devices as a grid with named axes: numbering, slices, groups, and what is refused.
local tap = require "tap"
local mesh = require "piper.mesh"
local schedules = require "piper.schedules"

local function show(list)
  local words = {}
  for i, v in ipairs(list) do words[i] = type(v) == "table" and "{" .. show(v) .. "}" or tostring(v) end
  return table.concat(words, " ")
end

local m = mesh { pp = 4, dp = 2 }
tap.is(show(m { pp = 0 }), "0 1", "pp is outermost, dp varies within")
tap.is(show(m { pp = 3 }), "6 7", "the last slice")
tap.is(show(m { dp = 1 }), "1 3 5 7", "a slice of the inner axis")
tap.is(show(m { pp = 2, dp = 1 }), "5", "both axes: one device")
tap.is(show(m {}), "0 1 2 3 4 5 6 7", "none: all of them")
tap.is(show(m { pp = { 3, 0 }, dp = "*" }), "6 7 0 1", "lists keep their order, * is all")
tap.is(show(m:slices "pp"), "{0 1} {2 3} {4 5} {6 7}", "slices of an axis")
tap.is(show(m:slices "dp"), "{0 2 4 6} {1 3 5 7}", "slices of the other")
tap.is(tostring(m), "mesh pp = 4, dp = 2", "prints its axes in order")
for _ = 1, 20 do
  if tostring(mesh { tp = 2, cp = 2, ep = 2, dp = 2, pp = 2 }) ~= "mesh pp = 2, dp = 2, ep = 2, cp = 2, tp = 2" then
    tap.ok(false, "the usual order")
  end
end

tap.is(show(mesh({ pp = 4, dp = 2 }, { order = { "dp", "pp" } }) { pp = 0 }), "0 4", "an order of one's own")
tap.is(show(mesh { { "dp", 2 }, { "pp", 4 } } { pp = 0 }), "0 4", "a list of pairs is in order")
tap.is(show(mesh { { "node", 2 }, { "gpu", 3 } } { node = 1 }), "3 4 5", "axes of any name")
tap.is(show(mesh { any = 3 } {}), "0 1 2", "one axis needs no order")

local three = mesh { pp = 2, dp = 2, ep = 2 }
tap.is(show(three:groups("ep", { pp = 0 })), "{0 1} {2 3}", "groups that differ in the innermost axis")
tap.is(show(three:groups("dp", { pp = 1 })), "{4 6} {5 7}", "... in the middle one")
tap.is(show(three:groups "pp"), "{0 4} {1 5} {2 6} {3 7}", "... in the outermost")
tap.is(show(three:groups("ep", { ep = 1, pp = 0 })), "{1} {3}", "of a slice of the axis itself")

local list = schedules.one_f_one_b { ranks = 4, microbatches = 4, devices = m }
tap.is(show { list[2].devices, list[5].devices }, "{0 1} {6 7}", "a schedule takes the slices of pp")
list = schedules.one_f_one_b { ranks = 2, microbatches = 4, devices = m:slices "dp" }
tap.is(show(list[3].devices), "1 3 5 7", "or slices of any axis")
local s = require "piper.strategy"()
s:place { filter = { PP = 0 }, devices = m { pp = 1 } }
tap.is(show(s.directives[1].devices), "2 3", "a directive takes a slice")

local function fails(fn, pattern) tap.error_matches(fn, "mesh.lua:%d+: " .. pattern) end
fails(function() mesh { pp = 0 } end, "mesh: axis pp is 0, not a whole number of at least 1")
fails(function() mesh { pp = 2, gpu = 2 } end,
  'mesh: where axis gpu goes is not known %(the usual order has pp, dp, ep, cp, tp%): list the axes, outermost first, as { { "gpu", 2 }')
fails(function() mesh {} end, "mesh: has no axis")
fails(function() mesh(4) end, "mesh: argument 1 is 4, not a table")
fails(function() mesh { 4, 2 } end, 'mesh: element 1 is 4, not a pair such as { "pp", 4 }')
fails(function() mesh { { "pp", 4 }, { "pp", 2 } } end, "mesh: axis pp is given twice")
fails(function() mesh { { "pp", 4 }, dp = 2 } end, "mesh: argument 1 is .*, not a list")
fails(function() mesh { ["p p"] = 4 } end, 'mesh: "p p" is not the name of an axis')
fails(function() mesh({ pp = 4, dp = 2 }, { order = { "pp" } }) end, "mesh: order leaves out axis dp")
fails(function() mesh({ pp = 4, dp = 2 }, { order = { "pp", "dpp" } }) end, 'mesh: order names "dpp", which is no axis %(did you mean "dp"%?%)')
fails(function() mesh({ pp = 4, dp = 2 }, { order = { "pp", "pp" } }) end, "mesh: order names pp twice")
fails(function() mesh({ { "pp", 4 } }, { order = { "pp" } }) end, "mesh: a list of pairs has an order already")
fails(function() mesh { pp = 1 << 62, dp = 1 << 62 } end, "mesh: has more than 65536 devices")
fails(function() m { qp = 0 } end, 'mesh: no axis is called "qp" %(did you mean "pp"%?%)')
fails(function() m { pp = 4 } end, "mesh: pp = 4, but pp runs from 0 to 3")
fails(function() m { pp = {} } end, "mesh: pp has no index")
fails(function() m { pp = "x" } end, 'mesh: pp is "x", not a whole number')
fails(function() m(0) end, "mesh: argument 1 is 0, not a table")
fails(function() m:slices "tp" end, 'slices: no axis is called "tp"')
fails(function() m:groups("tp") end, 'groups: no axis is called "tp"')
fails(function() schedules.gpipe { ranks = 2, microbatches = 1, devices = m } end, "gpipe: devices lists 4 device sets for 2 ranks")
fails(function() schedules.gpipe { ranks = 2, microbatches = 1, devices = mesh { dp = 2 } } end, 'slices: no axis is called "pp"')
tap.done()
