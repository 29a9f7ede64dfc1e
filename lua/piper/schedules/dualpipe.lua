-- dualpipe - two pipelines through the same ranks, one from each end: every stage has two copies, on
-- rank s for the first half of the microbatches and on rank ranks - 1 - s for the second, so at any
-- time a rank has forward work of one direction to run together with backward work of the other.
-- Both copies are one parameter, whose gradients are added up over both places (DeepSeek-AI,
-- "DeepSeek-V3 Technical Report", 2024, arXiv 2412.19437, section 3.2.1; the order of their code,
-- DualPipe 1.0).
--
-- It needs an even number of ranks, since the two directions meet in the middle. Its shape needs
-- 2 x ranks microbatches; with fewer it is that schedule without the others.
local check = require "piper.check"
local actions = require "piper.schedules.actions"
local dual_steps = require "piper.schedules.dual_steps"

local function check_even(n)
  if n.ranks % 2 == 1 then
    check.fail('dualpipe: field "ranks" is %d: its two directions meet between two ranks, so the number is even; '
      .. "the smallest above is %d", n.ranks, n.ranks + 1)
  end
end

return actions.define("dualpipe", { placement = "bidirectional", check = check_even }, function(rank, n, add)
  local from_end = rank >= n.ranks // 2 -- this rank meets the second direction first
  local there, back = rank, n.ranks - 1 - rank
  local stage = { [0] = from_end and back or there, from_end and there or back }
  local function mb(flow, k)
    if (flow == 1) ~= from_end then return n.half + k end -- second direction
    return k < n.half and k or n.microbatches -- which does not exist
  end
  dual_steps(math.min(there, back), n.ranks // 2, n.half, stage, mb, add)
end)
