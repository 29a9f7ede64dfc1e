-- gpipe - all forward passes, then all backward passes, so every rank holds the activations of all
-- microbatches (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
-- Parallelism", 2019, arXiv 1811.06965; backward in the order of PyTorch's ScheduleGPipe).
local actions = require "piper.schedules.actions"
local F, B = actions.F, actions.B

return actions.define("gpipe", { placement = "single" }, function(rank, n, add)
  for mb = 0, n.microbatches - 1 do add(F(rank, mb)) end
  for mb = 0, n.microbatches - 1 do add(B(rank, mb)) end
end)
