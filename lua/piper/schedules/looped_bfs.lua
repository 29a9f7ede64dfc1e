-- looped_bfs - breadth first over several stages a rank: each stage runs all microbatches before
-- the rank's next stage starts, and backward in the exact reverse. Every rank holds everything, but
-- all microbatches of a stage run together, so what a stage gathers (ZeRO-3) or reduces is needed
-- for the shortest time (Lamy-Poirier, "Breadth-First Pipeline Parallelism", 2022, arXiv 2211.05953;
-- backward in the order of PyTorch's ScheduleLoopedBFS).
local actions = require "piper.schedules.actions"
local F, B = actions.F, actions.B

return actions.define("looped_bfs", { placement = "loop" }, function(rank, n, add)
  for chunk = 0, n.stages_per_rank - 1 do
    for mb = 0, n.microbatches - 1 do add(F(rank + chunk * n.ranks, mb)) end
  end
  for chunk = n.stages_per_rank - 1, 0, -1 do
    for mb = n.microbatches - 1, 0, -1 do add(B(rank + chunk * n.ranks, mb)) end
  end
end)
