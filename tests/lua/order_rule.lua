-- What no directive orders: two rules, of which the one that simulates faster is kept, or the one that is
-- named; and what the memory planner's waits cost.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

-- Branches of different length, so that the rules have something to choose.
local model = piper.model("branches", function(m)
  local x = m:input("x", { "batch", 4 })
  local ends = {}
  for b = 1, 3 do
    local h = x
    for l = 1, b == 2 and 5 or b do
      piper.annotate("CHUNK", function() h = nn.relu(nn.linear(h, ("l%d.%d"):format(b, l), { out = 4 * b })) end)
    end
    piper.annotate("CHUNK", function() ends[b] = nn.sum_squares(h) end)
  end
  piper.annotate("CHUNK", function() m:loss(ends[1] + ends[2] + ends[3]) end)
end)
local function plan_of(rule)
  local s = piper.strategy()
  s:split { num_microbatches = 2 }
  s:place { filter = { CHUNK = { 0, 1, 2, 5, 8 } }, devices = { 0 } }
  s:place { filter = { CHUNK = { 3, 4, 6, 7, 9, 10, 11, 12 } }, devices = { 1 } }
  return piper.compile(model, s, { batch = 4, order_rule = rule })
end

local seconds = {}
for _, rule in ipairs { "critical_path", "downstream" } do
  local plan = plan_of(rule)
  seconds[rule] = plan.core:info().seconds
  tap.like(tostring(plan), "order by " .. rule .. "\n", rule .. " alone, where it is named")
  tap.ok(plan:check_equivalence().grad < 1e-9, rule .. ": equal to one device")
end
local plan = plan_of(nil)
local info = plan.core:info()
tap.is(info.seconds, math.min(seconds.critical_path, seconds.downstream), "the faster one is kept")
local function shows(of)
  local step, rule, other, time = tostring(of):match "predicted +step ([%d.]+ .?s),[^\n]*order by ([%w_]+) %(by ([%w_]+) ([%d.]+ .?s)%)"
  return step and rule ~= other and time ~= step
end
tap.ok(not tostring(plan):find "order by [%w_]+ %(", "nothing is said of the other one where it takes as long")
tap.error_matches(function() plan_of "fastest" end, 'compile: field "order_rule" is "fastest", not one of "critical_path", "downstream"')

-- Waits that memory adds, and what they cost.
local stages = piper.model("stages", function(m)
  local h = m:input("x", { "batch", 64 })
  for s = 0, 3 do
    piper.annotate("PP", function()
      for l = 1, 2 do h = nn.relu(nn.linear(h, ("l%d.%d"):format(s, l), { out = 64 })) end
      if s == 3 then m:loss(nn.sum_squares(h)) end
    end)
  end
end)
plan = piper.compile(stages, exact.strategy("one_f_one_b", 4, 8, 1), { batch = 64 })
tap.ok(shows(plan), "the time by the other one, where it differs")
tap.like(tostring(plan), "waits %d+ %(%d+ for reused memory make the step [%d.]+ .?s longer%)", "the waits of reused memory have their price")
tap.done()
