-- The interpreter finds its own library.
local tap = require "tap"
local piper = require "piper"
tap.is(type(piper), "table", "piper is a table")
tap.is(require "piper", piper, "it is loaded once")
tap.is(arg[0]:match("[^/]+$"), "smoke.lua", "arg[0] is the script")
tap.done()
