-- composed - a schedule with what else a strategy may say of its stages: replicas at any level of ZeRO,
-- experts spread over devices, recomputation.
local piper = require "piper"

local M = {}

-- Every builder with a shape of its own, and searches, one for each placement; 'stages' of each rank.
M.schedules = {
  gpipe = { stages = 1 }, one_f_one_b = { stages = 1 }, interleaved_one_f_one_b = { stages = 2 }, looped_bfs = { stages = 2 },
  zb_h1 = { stages = 1 }, zb_h2 = { stages = 1 }, interleaved_zero_bubble = { stages = 2 }, zbv = { stages = 2 },
  dualpipe = { stages = 1 }, dualpipev = { stages = 2 },
  automatic = { stages = 1, search = { costs = { F = 2, I = 3, W = 2, comm = 1 } } },
  automatic_v = { stages = 2, search = { placement = "v", costs = { F = 2, I = 3, W = 2, B = 4, comm = 1 } } },
  automatic_loop = { stages = 2, search = { placement = "loop", memory_limit = 3, costs = { comm = 0.5 } } },
}

M.names = {}
for name in pairs(M.schedules) do M.names[#M.names + 1] = name end
table.sort(M.names)

-- 'ranks' sets of 'devices' devices: neighbours, or, with 'across', every ranks-th one, the last first.
function M.sets(ranks, devices, across)
  local sets = {}
  for r = 1, ranks do
    sets[r] = {}
    for j = 1, devices do sets[r][j] = across and (devices - j) * ranks + r - 1 or (r - 1) * devices + j - 1 end
  end
  return sets
end

local searched = {} -- a search takes its time

-- The schedule's list of directives; 'sets' are the devices of each rank.
function M.list_on(name, microbatches, sets)
  local form, ranks = M.schedules[name], #sets
  if not form.search then
    return piper.schedules[name] { ranks = ranks, microbatches = microbatches, devices = sets }
  end
  local key = ("%s %d %d"):format(name, ranks, microbatches)
  if not searched[key] then
    local spec = { ranks = ranks, microbatches = microbatches }
    for k, v in pairs(form.search) do spec[k] = v end
    searched[key] = piper.schedules.automatic(spec)
  end
  local list = {}
  for i, d in ipairs(searched[key]) do
    list[i] = d.op == "place" and { op = "place", filter = d.filter, devices = sets[d.devices[1] + 1] } or d
  end
  return list
end

function M.list(name, ranks, microbatches, devices, across)
  return M.list_on(name, microbatches, M.sets(ranks, devices, across))
end

-- 'list' in groups of 'size', as shard takes them.
function M.groups(list, size)
  local groups = {}
  for i = 1, #list, size do groups[#groups + 1] = table.move(list, i, i + size - 1, 1, {}) end
  return groups
end

-- The device sets of each stage (from 0), several where it has several directions; and how many stages.
function M.stage_sets(list)
  local sets, stages = {}, 0
  for _, d in ipairs(list) do
    if d.op == "place" then
      for _, stage in ipairs(type(d.filter.PP) == "table" and d.filter.PP or { d.filter.PP }) do
        sets[stage] = sets[stage] or {}
        table.insert(sets[stage], d.devices)
        stages = math.max(stages, stage + 1)
      end
    end
  end
  return sets, stages
end

---@class Composed
---@field list piper.Directive[]  of a schedule, with its places
---@field replicate? table        fields of the replicate directive that every stage gets, on whatever devices it is
---@field group? integer          devices that share the experts of a stage; nil: no shard directive
---@field recompute? piper.Filter

---@param c Composed
function M.strategy(c)
  local s = piper.strategy():add(c.list)
  local sets, stages = M.stage_sets(c.list)
  for stage = 0, stages - 1 do
    local all, groups = {}, {}
    for _, set in ipairs(sets[stage]) do
      table.move(set, 1, #set, #all + 1, all)
      if c.group then table.move(M.groups(set, c.group), 1, #set // c.group, #groups + 1, groups) end
    end
    if c.replicate then
      local spec = { filter = { PP = stage }, devices = all }
      for k, v in pairs(c.replicate) do spec[k] = v end
      s:replicate(spec)
    end
    if c.group then s:shard { filter = { PP = stage, EP = "*" }, devices = groups } end
  end
  if c.recompute then s:recompute { filter = c.recompute } end
  return s
end

return M
