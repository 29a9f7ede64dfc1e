-- interleaved_one_f_one_b - 1F1B over several stages a rank (stage s on rank s mod ranks): a
-- microbatch passes every rank V times through a V-th of the work, which divides the bubble by V
-- and multiplies the transfers by V (Narayanan et al., "Efficient Large-Scale Language Model
-- Training on GPU Clusters Using Megatron-LM", 2021, arXiv 2104.04473, section 2.2; microbatches in
-- rounds as in PyTorch's ScheduleInterleaved1F1B).
--
-- Microbatches go in rounds of at least as many as there are ranks: a rank runs its first stage for
-- the whole round, then its second, and backward the other way round. Where the rounds cannot be
-- equal, the first ones are one longer, which keeps every warm-up long enough.
local actions = require "piper.schedules.actions"
local F, B = actions.F, actions.B

-- The steps of a rank: { chunk, mb } in the order in which they run forward, or backward.
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

return actions.define("interleaved_one_f_one_b", { placement = "loop" }, function(rank, n, add)
  local forward, round = steps(n, false)
  local backward = steps(n, true)
  local warmup = math.min(#forward, (n.stages_per_rank - 1) * round + 2 * (n.ranks - 1 - rank))
  local function stage(step) return rank + step[1] * n.ranks, step[2] end
  for i = 1, warmup do add(F(stage(forward[i]))) end
  for i = 1, #backward do
    if forward[warmup + i] then add(F(stage(forward[warmup + i]))) end
    add(B(stage(backward[i])))
  end
end)
