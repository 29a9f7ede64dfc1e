-- dualpipev - DualPipe cut in half: on a V (rank r holds the stages r and 2 x ranks - 1 - r) the way
-- there and the way back are the two directions, so that forward and backward overlap as in DualPipe
-- with one copy of the parameters (DeepSeek-AI's DualPipe 1.0, DualPipeV; Qi et al., "DualPipe could
-- be better without the Dual", 2025; equal to PyTorch's ScheduleDualPipeV).
--
-- Its shape needs 2 x ranks microbatches; with fewer it is that schedule without the others.
local actions = require "piper.schedules.actions"
local dual_steps = require "piper.schedules.dual_steps"

return actions.define("dualpipev", { placement = "v" }, function(rank, n, add)
  local stage = { [0] = rank, 2 * n.ranks - 1 - rank }
  dual_steps(rank, n.ranks, n.microbatches, stage, function(_, mb) return mb end, add)
end)
