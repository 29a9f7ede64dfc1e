-- schedules.metrics gives every column of metrics.csv, for every table, those of searches included.
local tap = require "tap"
local schedules = require "piper.schedules"
local tables = require "schedule_table"

local function list_of(t)
  local words = {}
  for rank = 0, #t do words[rank + 1] = ("%d"):format(t[rank]) end
  return table.concat(words, " ")
end

for _, row in ipairs(tables.all()) do
  local list = schedules.parse(row.text)
  local m = schedules.metrics(list)
  local wrong = {}
  local function compare(column, got)
    local want = tonumber(row[column]) or row[column]
    local same = got == want or math.type(want) == "float" and math.abs(got - want) < 1e-6
    if not same then wrong[#wrong + 1] = ("%s: got %s, want %s"):format(column, got, want) end
  end
  for _, column in ipairs { "makespan", "bubble", "span_bubble", "idle", "period" } do compare(column, m[column]) end
  for _, column in ipairs { "busy", "peak", "peak_i", "wq" } do
    if row[column] ~= list_of(m[column]) then compare(column, list_of(m[column])) end
  end
  compare("makespan_232_comm1", schedules.metrics(list, { F = 2, I = 3, W = 2, comm = 1 }).makespan)
  compare("makespan_pair2", schedules.metrics(list, { pair_cost = 2 }).makespan)
  compare("makespan_relaxed", schedules.metrics(list, { pairs = "relaxed" }).makespan)
  tap.is(table.concat(wrong, "; "), "", row.file)
end

-- Costs.
local two = schedules.one_f_one_b { ranks = 2, microbatches = 2 }
tap.is(schedules.metrics(two, { F = 1, B = 10 }).makespan, 1 + 2 * 11 + 10, "B has a cost of its own")
tap.is(schedules.metrics(two, { F = { [0] = 1, 5 }, I = 0, W = 0 }).busy[1], 10, "costs by stage")
tap.is(schedules.metrics(two, { comm = 0.5 }).makespan, 1 + 6 + 2 + 2 * 0.5, "a transfer takes time")
local strategy = require "piper.strategy"()
strategy:add(two)
tap.is(schedules.metrics(strategy).makespan, 9, "a strategy will do, too")
local again = schedules.parse "0F0 0R0 0B0 0F1 0R1 0B1"
tap.is(schedules.metrics(again, { F = 3 }).makespan, 2 * (3 + 3 + 2), "R costs what F does")
tap.is(schedules.metrics(again).peak[0], 1, "R holds nothing more")

tap.error_matches(function() schedules.metrics(two, { F = -1 }) end, 'schedule_metrics.lua:%d+: metrics: field "F" is %-1')
tap.error_matches(function() schedules.metrics(two, { F = { 1 } }) end, "metrics: cost F of stage 0 is missing")
tap.error_matches(function() schedules.metrics(two, { pairs = "both" }) end, 'field "pairs" is "both", not one of')
tap.error_matches(function() schedules.metrics(two, { G = 1 }) end, 'metrics: unknown field "G"')
tap.error_matches(function() schedules.metrics(schedules.parse "0F0 (0F1+0B0) 0B1 0B1") end, "metrics: rank 0, column 4: 0B1 again")
-- Each half of the pair on one rank waits for the other rank's pair.
local crossed = schedules.parse "0F0 (0F1+0B0) 0B1\n1F0 (1F1+1B0) 1B1"
tap.is(schedules.metrics(crossed, { pairs = "relaxed" }).busy[0], 6, "members that wait crosswise run one after another")
tap.error_matches(function() schedules.metrics(crossed) end, "when overlapped groups start as one")
tap.done()
