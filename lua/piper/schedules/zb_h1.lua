-- zb_h1 - 1F1B with its backward pass in two: the stage before waits only for the input gradient
-- (BI), so weight gradients (BW) can wait and fill the bubble. Rank r keeps r of them waiting, so
-- that every rank holds as much as the first one does under 1F1B, and the bubble is a third of
-- 1F1B's (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 2.1).
local actions = require "piper.schedules.actions"
local F, BI, BW = actions.F, actions.BI, actions.BW

return actions.define("zb_h1", { placement = "single" }, function(rank, n, add)
  local warmup, waiting = n.ranks - 1 - rank, rank
  for mb = 0, warmup - 1 do add(F(rank, mb)) end
  for mb = 0, n.microbatches - 1 do
    add(F(rank, warmup + mb))
    add(BI(rank, mb))
    if mb >= waiting then add(BW(rank, mb - waiting)) end
  end
  for mb = math.max(0, n.microbatches - waiting), n.microbatches - 1 do add(BW(rank, mb)) end
end)
