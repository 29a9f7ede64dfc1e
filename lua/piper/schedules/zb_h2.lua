-- zb_h2 - ZB-H1 with as many forward passes ahead as fill the time until the first gradient comes
-- back, and weight gradients that wait twice as long: about twice the activations of 1F1B, and no
-- bubble between a rank's first action and its last; what is left is the ranks' different start
-- (Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 2.2, figure 3).
local actions = require "piper.schedules.actions"
local F, BI, BW = actions.F, actions.BI, actions.BW

return actions.define("zb_h2", { placement = "single" }, function(rank, n, add)
  local warmup, waiting = 2 * (n.ranks - 1 - rank), 2 * rank
  for mb = 0, warmup - 1 do add(F(rank, mb)) end
  for mb = 0, n.microbatches - 1 do
    add(F(rank, warmup + mb))
    add(BI(rank, mb))
    if mb >= waiting then add(BW(rank, mb - waiting)) end
  end
  for mb = math.max(0, n.microbatches - waiting), n.microbatches - 1 do add(BW(rank, mb)) end
end)
