-- one_f_one_b - 1F1B: a rank runs as many forward passes ahead as there are stages behind it, then
-- one forward and one backward in turn, so rank r holds the activations of at most ranks - r
-- microbatches, however many there are (Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN
-- Training", 2021, arXiv 2006.09503, PipeDream-Flush).
local actions = require "piper.schedules.actions"
local F, B = actions.F, actions.B

return actions.define("one_f_one_b", { placement = "single" }, function(rank, n, add)
  local warmup = n.ranks - 1 - rank
  for mb = 0, warmup - 1 do add(F(rank, mb)) end
  for mb = 0, n.microbatches - 1 do
    add(F(rank, warmup + mb))
    add(B(rank, mb))
  end
end)
