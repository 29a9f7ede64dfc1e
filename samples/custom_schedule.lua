-- A schedule of one's own, three ways: as text, as a builder, and by search; each checked, measured
-- and trained. Start here to try an idea for a pipeline schedule.
--   piper samples/custom_schedule.lua
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules
local actions = require "piper.schedules.actions"

local ranks, microbatches, width = 3, 4, 16

-- Three stages; the last one ends in the loss.
local model = piper.model("chain", function(m)
  local h, y = m:input("x", { "batch", width }), m:input("y", { "batch", width })
  for stage = 0, ranks - 1 do
    piper.annotate("PP", function()
      h = nn.relu(nn.linear(h, "layer." .. stage, { out = width, init = { normal = 0.3 } }))
      if stage == ranks - 1 then m:loss(nn.mse(h, y)) end
    end)
  end
end)

-- What a pass of one stage takes on this imaginary machine, and a transfer.
local costs = { F = 2, I = 3, W = 2, comm = 1 }

local function try(name, list)
  schedules.check(list) -- raises the first fault, with its rank and column
  local m = schedules.metrics(list, costs)
  local plan = piper.compile(model, piper.strategy():add(list), { batch = 8 })
  local equal = plan:check_equivalence { steps = 2 }
  print(("%-12s step %2g, idle %4.1f%%, rank 0 holds %d microbatches; gradients differ by %.0g"):format(name, m.makespan,
    100 * m.bubble, m.peak[0], equal.grad))
  print(plan:actions())
end

try("1F1B", schedules.one_f_one_b { ranks = ranks, microbatches = microbatches })

-- 1. As text: a line a rank, <stage><pass><microbatch>. Here every backward pass is in two halves, I
-- and W. Nobody waits for a W, so the last rank, which others wait for, does all of its at the end.
try("text", schedules.parse [[
  0F0 0F1 0F2 0F3 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3
  1F0 1F1 1I0 1F2 1I1 1F3 1I2 1W0 1I3 1W1 1W2 1W3
  2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2W0 2W1 2W2 2W3
]])

-- A slip is named with its rank and column, and so are ranks that wait for each other.
local slip = schedules.parse [[
  0F0 0F1 0B1 0B0
  1F0 1B0 1F1 1B1
]]
slip[#slip].filters[3].MB = 0
print(select(2, pcall(schedules.check, slip)))

-- 2. As a builder: what rank r does, for any number of ranks and microbatches. The same idea: rank r
-- runs ahead by twice its distance from the end, and W waits until nothing else is left to do.
local late_weights = actions.define("late_weights", { placement = "single" }, function(rank, n, add)
  local ahead = 2 * (n.ranks - 1 - rank)
  for mb = 0, ahead - 1 do add(actions.F(rank, mb)) end
  for mb = 0, n.microbatches - 1 do
    add(actions.F(rank, ahead + mb)) -- left out where there is no such microbatch
    add(actions.BI(rank, mb))
  end
  for mb = 0, n.microbatches - 1 do add(actions.BW(rank, mb)) end
end)
try("late_weights", late_weights { ranks = ranks, microbatches = microbatches })

-- 3. By search: the best that is found for these costs if no rank may hold more than 3 microbatches.
try("automatic", schedules.automatic { ranks = ranks, microbatches = microbatches, costs = costs, memory_limit = 3 })
