-- actions - the words that schedules are written in: the actions of a pipeline rank, which rank
-- holds which stage, and 'define', which turns the order of one rank into a schedule builder.
--
--   local actions = require "piper.schedules.actions"
--   local F, B = actions.F, actions.B
--   return actions.define("mine", { placement = "single" }, function(rank, n, add)
--     for mb = 0, n.microbatches - 1 do add(F(rank, mb)) add(B(rank, mb)) end
--   end)
local check = require "piper.check"

local M = {}

---Forward pass of one stage and microbatch.
function M.F(stage, mb) return { PP = stage, MB = mb, PASS = "F" } end
---Fused backward pass: input and weight gradients in one.
function M.B(stage, mb) return { PP = stage, MB = mb, PASS = "B" } end
---Backward pass for the input gradient alone, which is what the stage before waits for.
function M.BI(stage, mb) return { PP = stage, MB = mb, PASS = "BI" } end
---Backward pass for the weight gradients alone, which nothing waits for before the step's end.
function M.BW(stage, mb) return { PP = stage, MB = mb, PASS = "BW" } end
---A group whose members overlap: communication of one hides behind compute of the other. A missing
---member (see 'define', only microbatches that exist) leaves the other alone.
function M.pair(forward, backward) return { forward, backward } end

---@class piper.Placement
---@field rank fun(stage: integer, n: piper.ScheduleShape): integer
---@field stage fun(rank: integer, chunk: integer, n: piper.ScheduleShape): integer  chunk 0 is the first that a microbatch meets
---@field stages_per_rank? integer  the only number there may be

---@type table<string, piper.Placement>
M.placements = {
  -- stage s on rank s
  single = {
    stages_per_rank = 1,
    rank = function(stage) return stage end,
    stage = function(rank) return rank end,
  },
  -- round and round: stage s on rank s mod ranks
  loop = {
    rank = function(stage, n) return stage % n.ranks end,
    stage = function(rank, chunk, n) return rank + chunk * n.ranks end,
  },
  -- there and back: rank r holds the stages r and 2 x ranks - 1 - r, so the last rank has two
  -- neighbouring stages, and the first rank the first stage and the last
  v = {
    stages_per_rank = 2,
    rank = function(stage, n) return math.min(stage, 2 * n.ranks - 1 - stage) end,
    stage = function(rank, chunk, n) return chunk == 0 and rank or 2 * n.ranks - 1 - rank end,
  },
  -- two copies of each stage: microbatches of the first half go from rank 0 to the last, those of
  -- the second half from the last rank to rank 0
  bidirectional = {
    stages_per_rank = 1,
    rank = function(stage, n, mb) return mb < n.half and stage or n.ranks - 1 - stage end,
    stage = function(rank, chunk, n) return chunk == 0 and rank or n.ranks - 1 - rank end,
  },
}

---@class piper.ScheduleSpec
---@field ranks integer            pipeline ranks
---@field microbatches integer     pieces of the batch (tag MB)
---@field stages_per_rank? integer the stages (tag PP) that a rank holds, where the schedule leaves a choice
---@field devices? integer[][]|piper.Mesh|false  a device set for each rank (default rank r on device r;
---of a mesh, the slices of its axis pp); false: no placement

---@class piper.ScheduleShape
---@field ranks integer
---@field microbatches integer
---@field stages_per_rank integer
---@field stages integer
---@field half integer  bidirectional: microbatches 0 .. half - 1 enter at rank 0, the others at the last rank
---@field placement string
---@field devices integer[][]|false

local DECLARED = {
  ranks = "integer>=1", microbatches = "integer>=1", stages_per_rank = "integer>=1?", devices = "any?",
}

---Checks the device sets of 'ranks' pipeline ranks; the default puts rank r on device r.
---@param where string
---@return integer[][]|false
function M.device_sets(where, devices, ranks)
  if devices == false then return false end
  local sets = {}
  if devices == nil then
    for r = 0, ranks - 1 do sets[r + 1] = { r } end
    return sets
  end
  if getmetatable(devices) == require "piper.mesh".Mesh then devices = devices:slices "pp" end
  check.value(where, 'field "devices"', devices, "list")
  if #devices ~= ranks then
    check.fail("%s: devices lists %d device sets for %d ranks", where, #devices, ranks)
  end
  for r, set in ipairs(devices) do
    if type(set) ~= "table" then
      check.fail("%s: the device set of rank %d is %s: it is a list such as { %s }", where, r - 1, check.show(set),
        math.type(set) == "integer" and set or r - 1)
    end
    sets[r] = set
  end
  return sets
end

-- A schedule is a table of all its actions.
local MOST = 1 << 22

---Checks the options of a builder.
---@param where string
---@param spec piper.ScheduleSpec
---@param placement string
---@param stages_per_rank? integer  the default
---@param further? table<string, string>  options beside those of piper.ScheduleSpec
---@return piper.ScheduleShape
function M.shape(where, spec, placement, stages_per_rank, further)
  local declared = {}
  for _, fields in ipairs { DECLARED, further } do
    for field, kind in pairs(fields) do declared[field] = kind end
  end
  check.options(where, spec, declared)
  local fixed = M.placements[placement].stages_per_rank
  local per_rank = spec.stages_per_rank or fixed or stages_per_rank or 2
  if fixed and per_rank ~= fixed then
    check.fail('%s: field "stages_per_rank" is %d: its placement, "%s", has %d on each rank', where, per_rank, placement, fixed)
  end
  if 1.0 * spec.ranks * per_rank * spec.microbatches > MOST then
    check.fail("%s: %.15g ranks x %.15g stages x %.15g microbatches are too many: the product is at most %d", where,
      spec.ranks, per_rank, spec.microbatches, MOST)
  end
  return {
    ranks = math.tointeger(spec.ranks),
    microbatches = math.tointeger(spec.microbatches),
    stages_per_rank = math.tointeger(per_rank),
    stages = math.tointeger(spec.ranks * per_rank),
    half = (math.tointeger(spec.microbatches) + 1) // 2,
    placement = placement,
    devices = M.device_sets(where, spec.devices, spec.ranks),
  }
end

local function range(first, last)
  local list = {}
  for i = first, last do list[#list + 1] = i end
  return list
end

---Appends the placement of every stage.
---@param list piper.Directive[]
---@param n piper.ScheduleShape
function M.place(list, n)
  if not n.devices then return end
  local rank = M.placements[n.placement].rank
  for stage = 0, n.stages - 1 do
    if n.placement == "bidirectional" then
      for _, mbs in ipairs { range(0, n.half - 1), range(n.half, n.microbatches - 1) } do
        if mbs[1] then
          local filter = { PP = stage, MB = n.microbatches > 1 and mbs or nil }
          list[#list + 1] = { op = "place", filter = filter, devices = n.devices[rank(stage, n, mbs[1]) + 1] }
        end
      end
    else
      list[#list + 1] = { op = "place", filter = { PP = stage }, devices = n.devices[rank(stage, n) + 1] }
    end
  end
end

---The list of directives: split, placement, and the order of each rank.
---@param n piper.ScheduleShape
---@param rows (piper.Filter|piper.Filter[])[][]  rows[r + 1]: the groups of rank r
---@return piper.Directive[]
function M.assemble(n, rows)
  local list = { { op = "split", filter = {}, dim_name = "MB", num_microbatches = n.microbatches } }
  M.place(list, n)
  for r = 1, n.ranks do list[#list + 1] = { op = "order", filters = rows[r] } end
  return list
end

---A schedule builder. 'order_of(rank, n, add)' adds the groups of one rank in order; a group of a
---microbatch that does not exist is left out, so a schedule whose shape needs more microbatches is
---the full one without those: what is left keeps its order, and waits for nothing new.
---@param name string
---@param form { placement: string, stages_per_rank?: integer, check?: fun(n: piper.ScheduleShape) }
---@param order_of fun(rank: integer, n: piper.ScheduleShape, add: fun(group: piper.Filter|piper.Filter[]))
---@return fun(spec: piper.ScheduleSpec): piper.Directive[]
function M.define(name, form, order_of)
  return function(spec)
    local n = M.shape(name, spec, form.placement, form.stages_per_rank)
    if form.check then form.check(n) end
    local rows = {}
    for rank = 0, n.ranks - 1 do
      local row = {}
      order_of(rank, n, function(group)
        if group[1] then -- a pair
          local f, b = group[1].MB < n.microbatches, group[2].MB < n.microbatches
          if f and b then row[#row + 1] = group else group = f and group[1] or group[2] end
        end
        if not group[1] and group.MB < n.microbatches then row[#row + 1] = group end
      end)
      rows[rank + 1] = row
    end
    return M.assemble(n, rows)
  end
end

return M
