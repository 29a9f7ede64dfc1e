-- The pictures and the table of doc/schedules.md are what the builders give.
local tap = require "tap"
local schedules = require "piper.schedules"

local f = assert(io.open(os.getenv "srcdir" .. "/doc/schedules.md"))
local page = f:read "a"
f:close()

local pictures = 0
for call, text in page:gmatch "\n`(schedules%.[%w_]+ {[^\n]*})`\n\n```\n(.-)\n```" do
  local list = load("return " .. call, call, "t", { schedules = schedules })()
  tap.is(text, schedules.text(list), call)
  pictures = pictures + 1
end
tap.is(pictures, 10, "a picture of each")

local rows = 0
for name, makespan, bubble, span, peak in page:gmatch "\n| `([%w_]+)` | [^|]+ | (%d+) | ([%d.]+) | ([%d.]+) | (%d+) |" do
  local m = schedules.metrics(schedules[name] { ranks = 4, microbatches = 8 })
  local most = 0
  for rank = 0, 3 do most = math.max(most, m.peak[rank]) end
  tap.is(("%d %.3f %.3f %d"):format(m.makespan, m.bubble, m.span_bubble, most), table.concat({ makespan, bubble, span, peak }, " "), name)
  rows = rows + 1
end
tap.is(rows, 10, "a row of each")
tap.done()
