-- automatic - a schedule made to measure: searched for, with split backward, under a limit of what
-- each rank may hold and the costs of one's own model (see search.lua for how).
local check = require "piper.check"
local actions = require "piper.schedules.actions"
local search = require "piper.schedules.search"
local simulate = require "piper.schedules.simulate"

---@class piper.AutomaticSpec : piper.ScheduleSpec
---@field costs? piper.ScheduleCosts  F, I, W, B and comm; B lets halves that follow each other be fused
---@field memory_limit? integer|table<integer, integer>  (stage, microbatch) pairs that a rank may hold
---from F until W, for all ranks or keyed by rank (default ranks x stages_per_rank: as much as 1F1B)
---@field placement? "single"|"loop"|"v"  default "single"

local DECLARED = { costs = "table?", memory_limit = "integer|table?", placement = "string?" }

-- The limit of each rank, from 1. Less than one pair for each of its stages, and nothing comes back.
local function limits(spec, n)
  local list = {}
  for rank = 0, n.ranks - 1 do
    local limit = spec.memory_limit
    if type(limit) == "table" then limit = limit[rank] end
    if spec.memory_limit == nil then limit = n.ranks * n.stages_per_rank end
    local what = type(spec.memory_limit) == "table" and ("memory_limit of rank %d"):format(rank) or 'field "memory_limit"'
    check.value("automatic", what, limit, "integer>=0")
    if limit < n.stages_per_rank then
      check.fail("automatic: %s is %d: the smallest is %d, one activation for each stage of the rank", what, limit, n.stages_per_rank)
    end
    list[rank + 1] = limit
  end
  return list
end

local KNOWN = { single = { "zb_h1", "zb_h2" }, v = { "zbv" }, loop = { "interleaved_zero_bubble" } }

-- The schedules that others worked out for this placement, as the search takes them.
local function known(placement, n)
  local list = {}
  for i, name in ipairs(KNOWN[placement]) do
    local directives = require("piper.schedules." .. name) {
      ranks = n.ranks, microbatches = n.microbatches, stages_per_rank = n.stages_per_rank, devices = false,
    }
    local rows = {}
    for r = 1, n.ranks do
      rows[r] = {}
      for k, f in ipairs(directives[r + 1].filters) do rows[r][k] = { f.PP, f.PASS, f.MB } end
    end
    list[i] = rows
  end
  return list
end

---A schedule with split backward for given costs under a memory limit; deterministic.
---@param spec piper.AutomaticSpec
---@return piper.Directive[]
return function(spec)
  check.value("automatic", "argument 1", spec, "table")
  local placement = spec.placement or "single"
  check.choice("automatic", 'field "placement"', placement, { "single", "loop", "v" })
  local n = actions.shape("automatic", spec, placement, 2, DECLARED)
  local cost_of = simulate.cost_function("automatic", spec.costs)
  local p = {
    ranks = n.ranks, stages = n.stages, stages_per_rank = n.stages_per_rank, microbatches = n.microbatches,
    rank = {}, on = {}, cost = { F = {}, BI = {}, BW = {} }, comm = spec.costs and spec.costs.comm or 0,
    limit = limits(spec, n), known = known(placement, n),
  }
  if spec.costs and spec.costs.B then p.cost.B = {} end
  for stage = 0, n.stages - 1 do
    local r = actions.placements[placement].rank(stage, n) + 1
    p.rank[stage], p.on[r] = r, p.on[r] or {}
    table.insert(p.on[r], stage)
    for pass, list in pairs(p.cost) do list[stage] = cost_of(pass, stage) end
  end
  local rows = {}
  for r, row in ipairs(search.search(p)) do
    rows[r] = {}
    for i, a in ipairs(row) do rows[r][i] = actions[a[2]](a[1], a[3]) end
  end
  return actions.assemble(n, rows)
end
