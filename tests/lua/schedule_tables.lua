-- The schedule builders give exactly the tables of tests/data/schedules, and schedules.check names
-- what is wrong with a schedule written by hand.
local tap = require "tap"
local schedules = require "piper.schedules"

local dir = os.getenv "srcdir" .. "/tests/data/schedules/"

local function read_table(file)
  local head, rows = {}, {}
  for line in io.lines(dir .. file) do
    local k, v = line:match "^# (%w+): (.*)"
    if k then head[k] = v else rows[#rows + 1] = line end
  end
  return head, rows
end

local LETTER = { F = "F", B = "B", BI = "I", BW = "W" }
local function text(filter) return ("%d%s%d"):format(filter.PP, LETTER[filter.PASS], filter.MB) end

local function rows_of(list)
  local rows = {}
  for _, d in ipairs(list) do
    if d.op == "order" then
      local row = {}
      for _, group in ipairs(d.filters) do row[#row + 1] = text(group) end
      rows[#rows + 1] = table.concat(row, " ")
    end
  end
  return rows
end

local BUILDERS = { gpipe = schedules.gpipe, ["1f1b"] = schedules.one_f_one_b }
local n = 0
for line in io.lines(dir .. "metrics.csv") do
  local file, name = line:match "^([^,]+),([^,]+),"
  local build = BUILDERS[name]
  if build then
    local head, rows = read_table(file)
    local list = build { ranks = tonumber(head.ranks), microbatches = tonumber(head.microbatches) }
    tap.is(table.concat(rows_of(list), "\n"), table.concat(rows, "\n"), file)
    tap.ok(schedules.check(list), file .. " passes its own check")
    n = n + 1
  end
end
tap.is(n, 11, "all tables of gpipe and 1f1b were compared")

local list = schedules.one_f_one_b { ranks = 2, microbatches = 2, devices = { { 4, 5 }, { 6, 7 } } }
tap.is(list[2].op .. list[2].devices[1] .. list[2].devices[2], "place45", "devices: a set for each rank")
list = schedules.gpipe { ranks = 2, microbatches = 2, devices = false }
tap.is(#list, 3, "devices = false: no placement")

-- Faults of hand-written schedules.
local function broken(change)
  local s = schedules.one_f_one_b { ranks = 2, microbatches = 3 }
  local orders = {}
  for _, d in ipairs(s) do
    if d.op == "order" then orders[#orders + 1] = d.filters end
  end
  change(orders, s)
  return function() schedules.check(s) end
end
local F = "F"
local function act(pp, pass, mb) return { PP = pp, PASS = pass, MB = mb } end

tap.error_matches(broken(function(o) table.remove(o[2], 4) end),
  "schedule_tables.lua:%d+: check: rank 1: 1B1 is missing %(5 columns%)")
tap.error_matches(broken(function(o) o[2][5] = act(1, F, 0) end),
  "check: rank 1, column 5: 1F0 again %(first at rank 1, column 1%)")
tap.error_matches(broken(function(o) o[1][1], o[1][3] = o[1][3], o[1][1] end),
  "check: rank 0, column 1: 0B0 comes before 0F0")
tap.error_matches(broken(function(o) o[1][2] = act(0, F, 3) end),
  "check: rank 0, column 2: 0F3, but microbatches run from 0 to 2")
tap.error_matches(broken(function(o) table.insert(o[1], act(3, F, 0)) end), "check: stage 2 is in no order")
tap.error_matches(broken(function(o) o[2][2] = act(1, "BI", 0) end), "check: rank 1: 1W0 is missing")
tap.error_matches(broken(function(o) o[2][2].PASS = nil end), "rank 1, column 2: .* does not name one PP, one MB and one PASS")
tap.error_matches(broken(function(_, s) table.remove(s, 1) end), 'check: the list has no split')
tap.error_matches(broken(function(o) o[1][2], o[1][3] = o[1][3], o[1][2] o[2][1], o[2][3] = o[2][3], o[2][1]
  o[2][2], o[2][4] = o[2][4], o[2][2] end),
  "check: the ranks wait for each other: rank 0, column 2: 0B0 waits for 1[IB]0; rank 1, column 1: 1F1 waits for 0F1")

-- Options.
tap.error_matches(function() schedules.gpipe { rank = 2, microbatches = 1 } end,
  'gpipe: unknown field "rank" %(did you mean "ranks"%?%)')
tap.error_matches(function() schedules.one_f_one_b { ranks = 0, microbatches = 1 } end, 'one_f_one_b: field "ranks" is 0')
tap.error_matches(function() schedules.one_f_one_b { ranks = 2, microbatches = 1.5 } end, 'field "microbatches" is 1.5')
tap.error_matches(function() schedules.gpipe { ranks = 2, microbatches = 1, devices = { { 0 } } } end,
  "gpipe: devices lists 1 device sets for 2 ranks")
tap.done()
