-- interleaved_zero_bubble - interleaved 1F1B with split backward: with several stages a rank (stage
-- s on rank s mod ranks) what ZB-H1 is to 1F1B. Warm-up is one step shorter for each rank, since an
-- input gradient comes back sooner than a whole backward pass, and rank r keeps r weight gradients
-- waiting (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, on the interleaved
-- schedule of arXiv 2104.04473; the order of PyTorch's ScheduleInterleavedZeroBubble).
local actions = require "piper.schedules.actions"
local F, BI, BW = actions.F, actions.BI, actions.BW

-- The steps of a rank: { chunk, mb } in the order in which they run forward, or backward; rounds as
-- in interleaved_one_f_one_b.
local function steps(n, backward)
  local list, first = {}, 0
  local rounds = math.max(1, n.microbatches // n.ranks)
  for round = 0, rounds - 1 do
    local size = n.microbatches // rounds + (round < n.microbatches % rounds and 1 or 0)
    for chunk = 0, n.stages_per_rank - 1 do
      for mb = first, first + size - 1 do
        list[#list + 1] = { backward and n.stages_per_rank - 1 - chunk or chunk, mb }
      end
    end
    first = first + size
  end
  return list, (n.microbatches + rounds - 1) // rounds
end

return actions.define("interleaved_zero_bubble", { placement = "loop" }, function(rank, n, add)
  local forward, round = steps(n, false)
  local backward = steps(n, true)
  local warmup = math.min(#forward, (n.stages_per_rank - 1) * round + n.ranks - 1 - rank)
  local waiting = math.min(rank, #backward)
  local function stage(step) return rank + step[1] * n.ranks, step[2] end
  for i = 1, warmup do add(F(stage(forward[i]))) end
  for i = 1, #backward do
    if forward[warmup + i] then add(F(stage(forward[warmup + i]))) end
    add(BI(stage(backward[i])))
    if i > waiting then add(BW(stage(backward[i - waiting]))) end
  end
  for i = #backward - waiting + 1, #backward do add(BW(stage(backward[i]))) end
end)
