-- schedules - pipeline schedules as lists of directives: a split over MB, the placement of every
-- stage, and one order a rank. Copy one and change it: nothing here is special.
--
--   strategy:add(piper.schedules.one_f_one_b { ranks = 4, microbatches = 8 })
local check = require "piper.check"

local M = {}

---@class piper.ScheduleSpec
---@field ranks integer         pipeline ranks; stage s (tag PP = s) runs on the s-th of them
---@field microbatches integer  pieces of the batch (tag MB)
---@field devices? integer[][]|false  a device set for each rank (default { r }); false: no placement

local DECLARED = { ranks = "integer>=1", microbatches = "integer>=1", devices = "any?" }

-- Checks the options of a schedule with one stage on each rank.
local function options(where, spec)
  check.options(where, spec, DECLARED)
  local devices = spec.devices
  if devices then
    check.value(where, 'field "devices"', devices, "list")
    if #devices ~= spec.ranks then
      check.fail("%s: devices lists %d device sets for %d ranks", where, #devices, spec.ranks)
    end
  elseif devices == nil then
    devices = {}
    for r = 0, spec.ranks - 1 do devices[r + 1] = { r } end
  end
  return spec.ranks, spec.microbatches, devices
end

local function forward(stage, mb) return { PP = stage, MB = mb, PASS = "F" } end
local function backward(stage, mb) return { PP = stage, MB = mb, PASS = "B" } end

-- The list of directives: 'groups[r]' is the order of rank r, one stage a rank.
local function schedule(ranks, microbatches, devices, groups)
  local list = { { op = "split", filter = {}, dim_name = "MB", num_microbatches = microbatches } }
  for r = 0, ranks - 1 do
    if devices then
      list[#list + 1] = { op = "place", filter = { PP = r }, devices = devices[r + 1] }
    end
    list[#list + 1] = { op = "order", filters = groups[r] }
  end
  return list
end

---GPipe: all forward passes, then all backward passes, so every rank holds the activations of all
---microbatches (Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline
---Parallelism", 2019; the backward order is that of PyTorch's ScheduleGPipe).
---@param spec piper.ScheduleSpec
---@return piper.Directive[]
function M.gpipe(spec)
  local ranks, microbatches, devices = options("gpipe", spec)
  local groups = {}
  for r = 0, ranks - 1 do
    local order = {}
    for mb = 0, microbatches - 1 do order[#order + 1] = forward(r, mb) end
    for mb = 0, microbatches - 1 do order[#order + 1] = backward(r, mb) end
    groups[r] = order
  end
  return schedule(ranks, microbatches, devices, groups)
end

---1F1B: a rank runs as many forward passes ahead as there are stages behind it, then one forward
---and one backward in turn, so rank r holds the activations of at most ranks - r microbatches
---(Narayanan et al., "PipeDream-Flush", 2021).
---@param spec piper.ScheduleSpec
---@return piper.Directive[]
function M.one_f_one_b(spec)
  local ranks, microbatches, devices = options("one_f_one_b", spec)
  local groups = {}
  for r = 0, ranks - 1 do
    local order = {}
    local warmup = math.min(ranks - 1 - r, microbatches)
    for mb = 0, warmup - 1 do order[#order + 1] = forward(r, mb) end
    for mb = warmup, microbatches - 1 do
      order[#order + 1] = forward(r, mb)
      order[#order + 1] = backward(r, mb - warmup)
    end
    for mb = microbatches - warmup, microbatches - 1 do order[#order + 1] = backward(r, mb) end
    groups[r] = order
  end
  return schedule(ranks, microbatches, devices, groups)
end

-- "1F3" of a filter that names one stage, microbatch and pass.
local LETTER = { F = "F", B = "B", BI = "I", BW = "W" }
local function action(filter, where)
  local stage, mb, pass = filter.PP, filter.MB, filter.PASS
  if math.type(stage) ~= "integer" or math.type(mb) ~= "integer" or not LETTER[pass] then
    check.fail("check: %s: %s does not name one PP, one MB and one PASS", where, check.show(filter))
  end
  return ("%d%s%d"):format(stage, LETTER[pass], mb), stage, mb, pass
end

---Explains what is wrong with a schedule written by hand: raises the first fault, naming rank (the
---n-th order of the list, from 0) and column (the group's index in its filters, from 1); true if
---there is none. Every stage that occurs has to run F, and either B or both BI and BW, once for
---each microbatch; a backward pass never comes before its forward pass on the same rank, nor BW
---before BI; and the ranks, each in its order, must not wait for each other in a circle.
---@param list piper.Directive[]
---@return true
function M.check(list)
  check.value("check", "argument 1", list, "list")
  local split, orders
  orders = {}
  for i, d in ipairs(list) do
    if type(d) ~= "table" then check.fail("check: element %d is %s, not a directive", i, check.show(d)) end
    if d.op == "split" and (d.dim_name or "MB") == "MB" then split = d end
    if d.op == "order" then orders[#orders + 1] = d end
  end
  if not split then check.fail 'check: the list has no split with dim_name = "MB"' end
  if #orders == 0 then check.fail "check: the list has no order" end
  check.value("check", "num_microbatches of split", split.num_microbatches, "integer>=1")
  local n_mb = split.num_microbatches

  local seen, rank_of, n_stages = {}, {}, 0 -- seen[action] = { rank =, column = }
  for r, order in ipairs(orders) do
    check.value("check", ("filters of rank %d's order"):format(r - 1), order.filters, "list")
    for column, group in ipairs(order.filters) do
      local where = ("rank %d, column %d"):format(r - 1, column)
      check.value("check", where, group, "table")
      for _, filter in ipairs(group[1] ~= nil and group or { group }) do
        local name, stage, mb, pass = action(filter, where)
        if mb < 0 or mb >= n_mb then
          check.fail("check: %s: %s, but microbatches run from 0 to %d", where, name, n_mb - 1)
        end
        if seen[name] then
          check.fail("check: %s: %s again (first at rank %d, column %d)", where, name, seen[name].rank, seen[name].column)
        end
        seen[name] = { rank = r - 1, column = column }
        rank_of[stage] = rank_of[stage] or r - 1
        n_stages = math.max(n_stages, stage + 1)
        local after = pass ~= "F" and (pass == "BW" and "I" or "F")
        local before = after and seen[("%d%s%d"):format(stage, after, mb)]
        if after and not before then
          check.fail("check: %s: %s comes before %d%s%d", where, name, stage, after, mb)
        end
      end
    end
  end
  for stage = 0, n_stages - 1 do
    local rank = rank_of[stage]
    if not rank then check.fail("check: stage %d is in no order; stages run to %d", stage, n_stages - 1) end
    for mb = 0, n_mb - 1 do
      local function has(letter) return seen[("%d%s%d"):format(stage, letter, mb)] end
      local function missing(letter)
        check.fail("check: rank %d: %d%s%d is missing (%d columns)", rank, stage, letter, mb, #orders[rank + 1].filters)
      end
      if not has "F" then missing "F" end
      if has "B" and (has "I" or has "W") then
        check.fail("check: rank %d: stage %d, microbatch %d has both B and a split backward", rank, stage, mb)
      end
      if has "I" and not has "W" then missing "W" end
      if has "W" and not has "I" then missing "I" end
      if not has "B" and not has "I" then missing "B" end
    end
  end
  M.replay(orders, n_stages)
  return true
end

-- Runs the orders against the data flow of a chain of stages; raises where they wait in a circle.
function M.replay(orders, n_stages)
  local done, at, finished = {}, {}, 0
  for r in ipairs(orders) do at[r] = 1 end
  local function waits_for(stage, mb, pass)
    if pass == "F" and stage > 0 then return ("%dF%d"):format(stage - 1, mb) end
    if pass == "F" or pass == "BW" or stage == n_stages - 1 then return nil end
    local fused = ("%dB%d"):format(stage + 1, mb)
    return done[fused] and fused or ("%dI%d"):format(stage + 1, mb)
  end
  repeat
    local moved = false
    for r, order in ipairs(orders) do
      local progress = true
      while progress and order.filters[at[r]] do
        local group = order.filters[at[r]]
        group = group[1] ~= nil and group or { group }
        local left = 0
        for _, filter in ipairs(group) do
          local name, stage, mb, pass = action(filter, "")
          local need = waits_for(stage, mb, pass)
          if not done[name] and (not need or done[need]) then done[name], moved = true, true end
          if not done[name] then left = left + 1 end
        end
        progress = left == 0
        if progress then
          at[r] = at[r] + 1
          if not order.filters[at[r]] then finished = finished + 1 end
        end
      end
    end
  until not moved
  if finished == #orders then return end
  local stuck = {}
  for r, order in ipairs(orders) do
    local group = order.filters[at[r]]
    if group then
      for _, filter in ipairs(group[1] ~= nil and group or { group }) do
        local name, stage, mb, pass = action(filter, "")
        if not done[name] then
          stuck[#stuck + 1] = ("rank %d, column %d: %s waits for %s"):format(r - 1, at[r], name, waits_for(stage, mb, pass))
        end
      end
    end
  end
  check.fail("check: the ranks wait for each other: %s", table.concat(stuck, "; "))
end

return M
