-- check - what is wrong with a schedule: the first fault, at its rank and column.
--
-- Faults of single cells come first, then those of cells against one another, then those of the
-- whole, so that a mistake in one cell is reported at that cell and not at what follows from it.
local check = require "piper.check"
local rows_of = require "piper.schedules.rows"

local M = {}

local function fail_at(rows, action, fmt, ...)
  check.fail("%s: %s: %s", rows.where, rows.cell(action.rank, action.column), fmt:format(...))
end

local function name(stage, letter, mb) return stage .. letter .. mb end

local function each(rows, visit)
  for _, row in ipairs(rows) do
    for _, group in ipairs(row) do
      for _, action in ipairs(group) do visit(action) end
    end
  end
end

local function position(rows, action) return "at " .. rows.cell(action.rank, action.column) end

local function check_microbatches(rows)
  each(rows, function(a)
    if a.mb >= rows.microbatches then
      fail_at(rows, a, "%s, but microbatches run from 0 to %d", a.name, rows.microbatches - 1)
    end
  end)
end

-- ---- placement ---------------------------------------------------------------------------------

local function names_index(wanted, index)
  if wanted == nil or wanted == "*" then return true end
  if type(wanted) ~= "table" then return wanted == index end
  for _, w in ipairs(wanted) do
    if w == index then return true end
  end
  return false
end

-- The directives that place a whole stage, or some microbatches of it.
local function places_stages(filter)
  for tag in pairs(filter) do
    if tag ~= "PP" and tag ~= "MB" then return false end
  end
  return filter.PP ~= false and filter.MB ~= false
end

-- Gives each action the devices that the list places it on; false if it places none of them.
local function find_devices(rows)
  local places, by_stage, found = {}, {}, false
  for _, d in ipairs(rows.places) do
    if type(d.filter) == "table" and places_stages(d.filter) then places[#places + 1] = d end
  end
  each(rows, function(a)
    if not by_stage[a.stage] then
      local list = {}
      for _, d in ipairs(places) do
        if names_index(d.filter.PP, a.stage) then list[#list + 1] = d end
      end
      by_stage[a.stage] = list
    end
    for _, d in ipairs(by_stage[a.stage]) do
      if names_index(d.filter.MB, a.mb) and not a.devices then
        a.devices, a.place, found = check.show(d.devices), d, true
      end
    end
  end)
  return found
end

-- The devices of most actions of a row, of the first ones among equals, and the first action on them.
local function devices_of(row)
  local count, first, best = {}, {}, nil
  for _, group in ipairs(row) do
    for _, a in ipairs(group) do
      if a.devices then
        count[a.devices] = (count[a.devices] or 0) + 1
        first[a.devices] = first[a.devices] or a
      end
    end
  end
  for devices, n in pairs(count) do
    local earlier = best and first[devices].column < first[best].column
    if not best or n > count[best] or n == count[best] and earlier then best = devices end
  end
  return best, first[best]
end

-- One order is for one device set: where it is not, says which stage must sit where.
local function check_placement(rows)
  if not find_devices(rows) then return end
  each(rows, function(a)
    if not a.devices then
      fail_at(rows, a, "%s, but no place matches stage %d of microbatch %d", a.name, a.stage, a.mb)
    end
  end)
  for rank, row in ipairs(rows) do
    local devices, first = devices_of(row)
    for _, group in ipairs(row) do
      for _, a in ipairs(group) do
        if a.devices ~= devices then
          fail_at(rows, a, "%s: stage %d is placed on %s%s; rank %d's order is for %s (%s, %s), so stage %d has to be there too",
            a.name, a.stage, a.devices, a.place.line and (" (%s)"):format(a.place.line) or "", rank - 1, devices, first.name,
            position(rows, first), a.stage)
        end
      end
    end
  end
end

-- ---- every action once ---------------------------------------------------------------------------

local function check_once(rows)
  local seen = {}
  each(rows, function(a)
    local first = seen[a.name]
    if first then
      fail_at(rows, a, "%s again (first %s)", a.name, position(rows, first))
    end
    seen[a.name] = a
  end)
  return seen
end

-- A stage that is named less often than it has microbatches is a slip, and so is one with no stage
-- before it.
local function check_stages(rows)
  local count, first = {}, {}
  each(rows, function(a)
    count[a.stage] = (count[a.stage] or 0) + 1
    first[a.stage] = first[a.stage] or a
  end)
  local stages = {}
  for stage in pairs(count) do stages[#stages + 1] = stage end
  table.sort(stages)
  local n_stages = 0
  for _, stage in ipairs(stages) do
    if stage == n_stages and count[stage] >= rows.microbatches then n_stages = stage + 1 end
  end
  for _, stage in ipairs(stages) do
    if stage >= n_stages then
      local a = first[stage]
      if n_stages > 0 and count[stage] < rows.microbatches then
        fail_at(rows, a, "%s, but the other actions are of the stages 0 to %d", a.name, n_stages - 1)
      end
      fail_at(rows, a, "%s, but stage %d is in no order", a.name, n_stages)
    end
  end
  return n_stages
end

-- All passes of a stage and microbatch run on one rank, after what they need.
local function check_passes(rows, seen)
  each(rows, function(a)
    local fused = (a.pass == "BI" or a.pass == "BW") and seen[name(a.stage, "B", a.mb)]
    if fused then
      fail_at(rows, a, "%s, but %s is %s: a backward pass is either fused or split", a.name, fused.name,
        position(rows, fused))
    end
  end)
  each(rows, function(a)
    local function other(letter) return seen[name(a.stage, letter, a.mb)] end
    if a.pass == "F" then return end
    local need = a.pass == "BW" and "I" or "F"
    local before = other(need)
    if before and before.rank ~= a.rank then
      fail_at(rows, a, "%s, but %s is %s: all passes of a stage and microbatch run on one rank", a.name, before.name,
        position(rows, before))
    elseif not before or before.column > a.column then
      fail_at(rows, a, "%s comes before %s%s", a.name, name(a.stage, need, a.mb),
        before and (" (%s)"):format(position(rows, before)) or ", which is missing")
    end
    local backward = a.pass == "R" and (other "B" or other "I")
    if backward and (backward.rank ~= a.rank or backward.column < a.column) then
      fail_at(rows, a, "%s comes after %s (%s)", a.name, backward.name, position(rows, backward))
    end
  end)
end

-- An action that is nowhere: where the same pass of its neighbours is shows where it belongs; a half
-- backward pass may be a slip itself.
local function missing(rows, seen, stage, letter, mb)
  local rank, near
  each(rows, function(a)
    if a.stage == stage and (not rank or a.mb == mb) then rank = a.rank end
  end)
  if letter == "W" then near = seen[name(stage, "I", mb)] end
  near = near or seen[name(stage, letter, mb - 1)] or seen[name(stage, letter, mb + 1)]
  near = near or seen[name(stage, "I", mb)] or seen[name(stage, "F", mb)] or seen[name(stage, "B", mb)]
  rank = near and near.rank or rank
  local n = #rows[rank + 1]
  check.fail("%s: %s: %s is missing (%d column%s%s)", rows.where, rows.cell(rank), name(stage, letter, mb), n, n == 1 and "" or "s",
    near and ("; %s is %s"):format(near.name, position(rows, near)) or "")
end

local function check_complete(rows, seen, n_stages)
  for stage = 0, n_stages - 1 do
    for mb = 0, rows.microbatches - 1 do
      local function has(letter) return seen[name(stage, letter, mb)] end
      if not has "F" then missing(rows, seen, stage, "F", mb) end
      if has "I" and not has "W" then missing(rows, seen, stage, "W", mb) end
      if not has "B" and not has "I" then missing(rows, seen, stage, "B", mb) end
    end
  end
end

-- ---- the ranks against one another ---------------------------------------------------------------

---What an action waits for beside the actions before it in its row; nil: nothing.
---@param seen table<string, piper.Action> by name
---@return piper.Action?
function M.waits_for(a, seen, n_stages)
  if a.pass == "F" then return seen[name(a.stage - 1, "F", a.mb)] end
  if a.pass == "BW" then return seen[name(a.stage, "I", a.mb)] end
  if a.pass == "R" or a.stage == n_stages - 1 then return seen[name(a.stage, "F", a.mb)] end
  return seen[name(a.stage + 1, "B", a.mb)] or seen[name(a.stage + 1, "I", a.mb)]
end

-- Runs the rows against the data flow of a chain of stages until no rank can go on; at[r] is where
-- rank r - 1 stands. A rank looks again when what its group waits for is done.
local function replay(rows, seen, n_stages)
  local at, waiting, done, ready = {}, {}, {}, {}
  for r = 1, #rows do at[r], ready[r] = 1, r end
  while #ready > 0 do
    local r = table.remove(ready)
    local group = rows[r][at[r]]
    while group do
      local blocked
      repeat -- members may need one another
        local moved = false
        blocked = nil
        for _, a in ipairs(group) do
          if not done[a] then
            local need = M.waits_for(a, seen, n_stages)
            if not need or done[need] then
              done[a], moved = true, true
              if waiting[a] then table.move(waiting[a], 1, #waiting[a], #ready + 1, ready) end
              waiting[a] = nil
            else
              blocked = need
            end
          end
        end
      until not moved
      if blocked then
        waiting[blocked] = waiting[blocked] or {}
        table.insert(waiting[blocked], r)
        break
      end
      at[r] = at[r] + 1
      group = rows[r][at[r]]
    end
  end
  return at, done
end

-- Follows who waits for whom from a rank that is stuck until one comes again: that is the circle.
local function check_circle(rows, seen, n_stages)
  local at, done = replay(rows, seen, n_stages)
  local r
  for k = 1, #rows do r = r or rows[k][at[k]] and k end
  if not r then return end
  local chain, link = {}, {}
  while not link[r] do
    local stuck, need
    for _, a in ipairs(rows[r][at[r]]) do
      local wanted = not done[a] and M.waits_for(a, seen, n_stages)
      if wanted and not done[wanted] and not need then stuck, need = a, wanted end
    end
    chain[#chain + 1] = ("%s: %s waits for %s (%s)"):format(rows.cell(r - 1, at[r]), stuck.name, need.name,
      rows.cell(need.rank, need.column))
    link[r] = #chain
    r = need.rank + 1
  end
  check.fail("%s: the ranks wait for each other: %s", rows.where, table.concat(chain, "; ", link[r]))
end

---Raises the first fault of a schedule; returns its actions by name, and the number of stages.
---@param rows piper.Rows
---@return table<string, piper.Action> seen
---@return integer n_stages
function M.rows(rows)
  check_microbatches(rows)
  check_placement(rows)
  local seen = check_once(rows)
  local n_stages = check_stages(rows)
  check_passes(rows, seen)
  check_complete(rows, seen, n_stages)
  check_circle(rows, seen, n_stages)
  return seen, n_stages
end

---Explains what is wrong with a schedule written by hand: raises the first fault, naming rank (the
---n-th order of the list, from 0) and column (the group's index in its filters, from 1); true if
---there is none. Every stage that occurs has to run F, and either B or both BI and BW, once for
---each microbatch, all on one rank; a backward pass never comes before its forward pass, nor BW
---before BI; what one order names is placed on one device set, if the list places it; and the ranks,
---each in its order, must not wait for each other in a circle.
---@param list piper.Directive[]|piper.Strategy
---@return true
function M.check(list)
  M.rows(rows_of.read("check", list))
  return true
end

return M
