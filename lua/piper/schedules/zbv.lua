-- zbv - zero bubble on a V: rank r holds the stages r and 2 x ranks - 1 - r, so loss and first
-- gradient arise on the rank that is last to start, memory is the same on all ranks (that of 1F1B),
-- and with F = BI = BW there is no bubble within a rank's span (Qi et al., "Pipeline Parallelism with
-- Controllable Memory", 2024, arXiv 2405.15362, and "Zero Bubble Pipeline Parallelism", 2023, arXiv
-- 2401.10241, section 6; the order of their handcrafted schedule and PyTorch's
-- ScheduleZBVZeroBubble).
--
-- The shape needs 2 x ranks - 1 microbatches; with fewer it is that schedule without the others.
local actions = require "piper.schedules.actions"
local F, BI, BW = actions.F, actions.BI, actions.BW

return actions.define("zbv", { placement = "v" }, function(rank, n, add)
  local microbatches = math.max(n.microbatches, 2 * n.ranks - 1)
  local down, up = rank, 2 * n.ranks - 1 - rank
  local done = { [F] = { [down] = 0, [up] = 0 }, [BI] = { [down] = 0, [up] = 0 }, [BW] = { [down] = 0, [up] = 0 } }
  local function run(stage, ...) -- each pass for its next microbatch
    for _, pass in ipairs { ... } do
      add(pass(stage, done[pass][stage]))
      done[pass][stage] = done[pass][stage] + 1
    end
  end
  local forward, input, weight = done[F], done[BI], done[BW]

  -- warm-up: into the V, until this rank's second stage has its first input gradient
  for _ = 1, 2 * (n.ranks - rank) - 1 do run(down, F) end
  for _ = 1, rank do
    run(up, F)
    run(down, F)
  end
  for _ = 1, n.ranks - rank do run(up, F, BI, BW) end
  -- steady state: both stages in turn, nothing waits
  while forward[up] < forward[down] or forward[down] < microbatches do
    if forward[down] < microbatches then run(down, F) end
    run(down, BI, BW)
    run(up, F, BI, BW)
  end
  -- cool-down: input gradients first, others wait for them; weight gradients fill the rest
  for _ = 1, rank do
    run(down, BI)
    run(up, BI)
  end
  for _ = 1, n.ranks - rank do run(down, BI, BW) end
  while weight[up] < input[up] do run(up, BW) end
  while weight[down] < input[down] do run(down, BW) end
end)
