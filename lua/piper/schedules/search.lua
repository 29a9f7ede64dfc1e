-- search - finds an order of F, BI and BW on every rank that makes a step short under a limit of
-- what each rank may hold; schedules.automatic is its face.
--
-- Candidates are built in virtual time, many and cheaply, and the best are improved:
--
-- 1. By list scheduling: whenever a rank is free it takes what is ready, input gradients before
--    forward passes or the other way round, up to a number of microbatches in flight; weight
--    gradients fill the gaps, come when too many wait, and when only they free memory. This is the
--    heuristic of Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241, section 3.1,
--    with its yes-or-no choices tried in all combinations.
-- 2. From building blocks: when one microbatch passes each stage, repeated at even distances. How
--    long it lingers between two ranks, there and back, decides how much is held (Qi et al.,
--    "Pipeline Parallelism with Controllable Memory", 2024, arXiv 2405.15362), so a few distances
--    are tried for each leg; the block gives the order of F and BI, and BW fill it as above.
-- 3. The best of these, and of the schedules that others worked out by hand, are improved by moving
--    one action at a time along its rank, as long as nothing becomes longer.
--
-- Nothing depends on time or on the order of 'pairs': the same question has the same answer.
local simulate = require "piper.schedules.simulate"

local M = {}

local INF <const> = math.huge

---@class piper.SearchProblem
---@field ranks integer
---@field stages integer
---@field stages_per_rank integer
---@field microbatches integer
---@field rank integer[]          by stage from 0: its rank, from 1
---@field on integer[][]          by rank from 1: its stages, ascending
---@field cost table<string, number[]>  by pass (F, BI, BW; B where fusing is worth a try) and stage
---@field comm number
---@field limit integer[]         by rank from 1: (stage, microbatch) pairs it may hold
---@field known table[]           rows as 'search' gives them, of schedules to start from
---@field work? number[]          by rank from 1: the cost of all its actions; set here

-- An action here is { stage, pass, mb }.

-- ---- list scheduling -----------------------------------------------------------------------------

-- When the input of an action is there; INF: not known yet.
local function arrival(p, ends, stage, pass, mb)
  local from = pass == "F" and stage - 1 or stage + 1
  local at
  if from < 0 then return 0 end
  if from == p.stages then at = ends.F[stage][mb] else at = ends[pass][from][mb] end
  if not at then return INF end
  return from < p.stages and p.rank[from] ~= p.rank[stage] and at + p.comm or at
end

-- Rank by rank, in virtual time: whatever starts first is decided first, so all that arrived by then
-- is known. 'choose(r, now, ends, held)' gives rank r's next F or BI and when it can start. A waiting
-- BW goes first where 'gap' times its cost would stay idle otherwise, where more than waiting[r] wait,
-- and where the next action is a forward pass for which there is no memory. Nil: no rank can go on,
-- or some rank cannot be done by 'bound'.
local function list_schedule(p, choose, gap, waiting, bound)
  local ends = { F = {}, BI = {} }
  for stage = 0, p.stages - 1 do ends.F[stage], ends.BI[stage] = {}, {} end
  local rows, free, held, queue, first, choice, left = {}, {}, {}, {}, {}, {}, {}
  local function decide(r)
    local now = free[r]
    local action, start = choose(r, now, ends, held[r])
    local weight = queue[r][first[r]]
    if weight then
      local behind = #queue[r] - first[r] + 1 > waiting[r]
      local urgent = action and start <= now and action[2] == "BI"
      if not action or start > now + gap * p.cost.BW[weight[1]] or behind and not urgent then return { weight, now } end
    end
    return action and start < INF and { action, start } or nil
  end
  for r = 1, p.ranks do rows[r], free[r], held[r], queue[r], first[r], left[r] = {}, 0, 0, {}, 1, p.work[r] end
  for r = 1, p.ranks do choice[r] = decide(r) end
  for _ = 1, 3 * p.stages * p.microbatches do
    local r
    for k = 1, p.ranks do
      if choice[k] and (not r or choice[k][2] < choice[r][2]) then r = k end
    end
    if not r then return nil end
    local action, start = choice[r][1], choice[r][2]
    local stage, pass, mb = action[1], action[2], action[3]
    if start + left[r] > bound then return nil end
    rows[r][#rows[r] + 1] = action
    free[r], left[r] = start + p.cost[pass][stage], left[r] - p.cost[pass][stage]
    if pass == "BW" then
      held[r], first[r] = held[r] - 1, first[r] + 1
    else
      ends[pass][stage][mb] = free[r]
      if pass == "F" then held[r] = held[r] + 1 else queue[r][#queue[r] + 1] = { stage, "BW", mb } end
      local reader = p.rank[pass == "F" and stage + 1 or stage - 1]
      if reader and reader ~= r then choice[reader] = decide(reader) end
    end
    choice[r] = decide(r)
  end
  return rows
end

-- Chooses what is ready first; among both passes 'prefer', among stages the deepest or the first. A
-- stage has at most flying[stage] microbatches between F and BI, and leaves room for the stages
-- behind it on its rank, without which no microbatch could come back.
local function greedy(p, prefer, deep, flying)
  local next_f, next_i = {}, {}
  for stage = 0, p.stages - 1 do next_f[stage], next_i[stage] = 0, 0 end
  return function(r, now, ends, held)
    local best, start, list = nil, INF, p.on[r]
    -- what was chosen before has run if its end is known
    for _, stage in ipairs(list) do
      if ends.F[stage][next_f[stage]] then next_f[stage] = next_f[stage] + 1 end
      if ends.BI[stage][next_i[stage]] then next_i[stage] = next_i[stage] + 1 end
    end
    local function offer(stage, pass, mb)
      local at = math.max(now, arrival(p, ends, stage, pass, mb))
      if at < start or at == start and best and best[2] ~= pass and pass == prefer then
        best, start = { stage, pass, mb }, at
      end
    end
    for k = 1, #list do
      local index = deep and #list + 1 - k or k
      local stage = list[index]
      if next_i[stage] < next_f[stage] then offer(stage, "BI", next_i[stage]) end
      if next_f[stage] < p.microbatches and held < p.limit[r] - (#list - index)
        and next_f[stage] - next_i[stage] < flying[stage] then
        offer(stage, "F", next_f[stage])
      end
    end
    return best, start
  end
end

-- ---- building blocks -----------------------------------------------------------------------------

-- Chooses F and BI in the order of a block repeated every 'period': 'linger[leg]' is what a
-- microbatch waits on each hop between ranks; legs are the way through all ranks once, first forward
-- and then back.
local function block(p, linger, period)
  local legs, time, offset = p.stages_per_rank, 0, { F = {}, BI = {} }
  local function hop(pass, stage, to, leg)
    offset[pass][stage] = time
    local moves = p.rank[to] and p.rank[to] ~= p.rank[stage]
    time = time + p.cost[pass][stage] + (moves and p.comm + linger[leg] or 0)
  end
  for stage = 0, p.stages - 1 do hop("F", stage, stage + 1, stage // p.ranks + 1) end
  for stage = p.stages - 1, 0, -1 do hop("BI", stage, stage - 1, 2 * legs - stage // p.ranks) end
  local order, at = {}, {}
  for r, list in ipairs(p.on) do
    local row = {}
    for _, stage in ipairs(list) do
      for mb = 0, p.microbatches - 1 do
        row[#row + 1] = { stage, "F", mb, offset.F[stage] + mb * period }
        row[#row + 1] = { stage, "BI", mb, offset.BI[stage] + mb * period }
      end
    end
    table.sort(row, function(a, b)
      if a[4] ~= b[4] then return a[4] < b[4] end
      if a[2] ~= b[2] then return a[2] == "F" end
      if a[1] ~= b[1] then return a[1] > b[1] end
      return a[3] < b[3]
    end)
    order[r], at[r] = row, 1
  end
  return function(r, now, ends, held)
    local action = order[r][at[r]]
    if action and ends[action[2]][action[1]][action[3]] then
      at[r] = at[r] + 1
      action = order[r][at[r]]
    end
    if not action or action[2] == "F" and held >= p.limit[r] then return nil, INF end
    return action, math.max(now, arrival(p, ends, action[1], action[2], action[3]))
  end
end

-- ---- candidates ----------------------------------------------------------------------------------

local function mean(list)
  local sum = 0
  for stage = 0, #list do sum = sum + list[stage] end
  return sum / (#list + 1)
end

local function by_rank(p, fn)
  local list = {}
  for r = 1, p.ranks do list[r] = fn(r) end
  return list
end

-- All ways to choose one element of each of n lists: visit(choice).
local function product(lists, visit, choice, i)
  i, choice = i or 1, choice or {}
  if i > #lists then return visit(choice) end
  for _, v in ipairs(lists[i]) do
    choice[i] = v
    product(lists, visit, choice, i + 1)
  end
end

-- The candidates as functions that build rows, most general first within each family.
local function candidates(p)
  local list = {}
  local function add(build) list[#list + 1] = build end
  local f, i, w = mean(p.cost.F), mean(p.cost.BI), mean(p.cost.BW)
  local many = 3 * p.stages * p.microbatches
  local round = math.max(table.unpack(p.work)) / p.microbatches
  local function waiting(factor, share) return by_rank(p, function(r) return factor < INF and factor * share * (r - 1) or many end) end

  local flights = { 1, 1.25, 1.5, 1.75, 2, 2.5, 3, INF }
  product({ { "BI", "F" }, { true, false }, { 0, 0.5, 1 }, flights, { 0, 0.5, 1, 1.5, 2, INF } }, function(c)
    local prefer, deep, gap, flight, factor = table.unpack(c)
    local flying = {}
    for stage = 0, p.stages - 1 do
      flying[stage] = flight < INF and math.max(1, math.ceil(flight * (p.ranks + 1 - p.rank[stage]))) or many
    end
    add(function(bound) return list_schedule(p, greedy(p, prefer, deep, flying), gap, waiting(factor, 1), bound) end)
  end)

  local legs = p.stages_per_rank
  local forward = { 0, i / 2, i, math.max(0, i + w - p.comm) }
  local back = { 0, w / 2, math.max(0, w - p.comm), f, math.max(0, f + w - p.comm) }
  if legs > 2 then forward, back = { 0, i, i + w }, { 0, w, f + w } end
  if legs > 3 then forward, back = { 0, i + w }, { 0, f + w } end
  local lists = {}
  for leg = 1, legs do
    lists[leg] = leg <= 4 and forward or { 0 }
    lists[2 * legs + 1 - leg] = leg <= 4 and back or { 0 }
  end
  product(lists, function(c)
    local linger = table.move(c, 1, #c, 1, {})
    for _, gap in ipairs { 0, 0.5 } do
      for _, factor in ipairs { 0, 1, INF } do
        add(function(bound) return list_schedule(p, block(p, linger, round), gap, waiting(factor, legs), bound) end)
      end
    end
  end)
  return list
end

-- One microbatch after the other: holds the least, and always exists.
local function one_by_one(p)
  local linger, period = {}, 0
  for leg = 1, 2 * p.stages_per_rank do linger[leg] = 0 end
  for stage = 0, p.stages - 1 do period = period + p.cost.F[stage] + p.cost.BI[stage] + 2 * p.comm + 1 end
  return list_schedule(p, block(p, linger, period), 0, by_rank(p, function() return 0 end), INF)
end

-- ---- tasks -----------------------------------------------------------------------------------------

-- Rows as the tasks of simulate.run; 'action[task]' and 'weight[task]' lead back.
local function tasks_of(p, rows)
  local t = { n_ranks = p.ranks, cost = {}, rank = {}, needs = {}, order = {}, action = {}, weight = {}, fused = {} }
  local id = { F = {}, BI = {}, BW = {} }
  for _, pass in ipairs { "F", "BI", "BW" } do
    for stage = 0, p.stages - 1 do id[pass][stage] = {} end
  end
  for r, row in ipairs(rows) do
    t.order[r] = {}
    for i, a in ipairs(row) do
      local k = #t.cost + 1
      t.cost[k], t.rank[k], t.action[k], t.order[r][i] = p.cost[a[2]][a[1]], r, a, k
      id[a[2]][a[1]][a[3]] = k
    end
  end
  for k, a in ipairs(t.action) do
    local stage, pass, mb = a[1], a[2], a[3]
    local need
    if pass == "F" then need = stage > 0 and id.F[stage - 1][mb]
    elseif pass == "BW" then need = id.BI[stage][mb]
    else need = stage + 1 < p.stages and id.BI[stage + 1][mb] or id.F[stage][mb] end
    t.needs[k] = need and { need } or {}
    if pass == "BI" then t.weight[k] = id.BW[stage][mb] end
  end
  return t
end

local function peak(t, r)
  local held, most = 0, 0
  for _, k in ipairs(t.order[r]) do
    local pass = t.action[k][2]
    if pass == "F" then held = held + 1
    elseif pass == "BW" or t.fused[k] then held = held - 1 end
    most = math.max(most, held)
  end
  return most
end

-- Smaller is better, the first that differs decides: makespan, the most that a rank idles between
-- its first action and its last, the largest peak. Nil: the ranks wait in a circle.
local function score_of(p, t)
  local ends = simulate.run(t, p.comm)
  if not ends then return nil end
  local makespan, idle, most = 0, 0, 0
  for r, order in ipairs(t.order) do
    local busy = 0
    for _, k in ipairs(order) do busy = busy + t.cost[k] end
    local from, to = ends[order[1]] - t.cost[order[1]], ends[order[#order]]
    makespan, idle, most = math.max(makespan, to), math.max(idle, to - from - busy), math.max(most, peak(t, r))
  end
  return { makespan, idle, most }
end

-- Sums of the same costs in another order differ in the last bits.
local function less(a, b)
  for i = 1, #a do
    local slack = 1e-9 * (math.abs(a[i]) + math.abs(b[i]))
    if a[i] < b[i] - slack then return true end
    if a[i] > b[i] + slack then return false end
  end
  return false
end

-- ---- improvement -----------------------------------------------------------------------------------

-- Moves single actions by up to 8 places, 'tries' times, and keeps what makes neither the step nor
-- the sum of the ranks' spans longer. The order of a stage's microbatches stays.
local function improve(p, t, tries)
  local seed = 1
  local function random(n)
    seed = (seed * 1103515245 + 12345) % 2147483648
    return seed // 65536 % n + 1
  end
  local function measure()
    local ends = simulate.run(t, p.comm)
    if not ends then return nil end
    local makespan, spans = 0, 0
    for _, order in ipairs(t.order) do
      local last = ends[order[#order]]
      makespan, spans = math.max(makespan, last), spans + last - ends[order[1]] + t.cost[order[1]]
    end
    return { makespan, spans }
  end
  local best = measure()
  for _ = 1, tries do
    local r = random(p.ranks)
    local order = t.order[r]
    local from = random(#order)
    local to = from + (random(2) == 1 and 1 or -1) * random(8)
    if to >= 1 and to <= #order then
      local a, fine = t.action[order[from]], true
      for i = math.min(from, to), math.max(from, to) do
        local b = t.action[order[i]]
        if i ~= from and b[1] == a[1] and (b[2] == a[2] or b[3] == a[3]) then fine = false end
      end
      if fine then
        local k = table.remove(order, from)
        table.insert(order, to, k)
        local now = peak(t, r) <= p.limit[r] and measure()
        if now and not less(best, now) then
          best = now
        else
          table.remove(order, to)
          table.insert(order, from, k)
        end
      end
    end
  end
end

-- Where a fused backward pass is cheaper than its halves: fuses each BI that its BW follows, if that
-- makes the step no longer.
local function fuse(p, t)
  local best = score_of(p, t)
  for _, order in ipairs(t.order) do
    for i = #order - 1, 1, -1 do
      local k = order[i]
      local stage = t.action[k][1]
      local fused = p.cost.B and p.cost.B[stage]
      if t.weight[k] and t.weight[k] == order[i + 1] and fused < p.cost.BI[stage] + p.cost.BW[stage] then
        local before = t.cost[k]
        t.cost[k], t.fused[k] = fused, true
        table.remove(order, i + 1)
        local now = score_of(p, t)
        if now and not less({ best[1] }, { now[1] }) then
          best = now
        else
          t.cost[k], t.fused[k] = before, nil
          table.insert(order, i + 1, t.weight[k])
        end
      end
    end
  end
end

-- ---- all of it -------------------------------------------------------------------------------------

-- Work is counted in actions placed (each looks at all ranks), so that a step of any usual size takes
-- seconds: of too many candidates an even sample is tried, a stride of a large prime apart.
local BUILD_ACTIONS <const>, IMPROVE_ACTIONS <const>, MOST_MOVES <const> = 2500000, 1500000, 4000
local KEPT <const>, STRIDE <const> = 3, 104729

---The best order found.
---@param p piper.SearchProblem
---@return { [1]: integer, [2]: string, [3]: integer }[][] rows  by rank from 1: { stage, pass, mb }
function M.search(p)
  p.work = by_rank(p, function(r)
    local sum = 0
    for _, s in ipairs(p.on[r]) do sum = sum + p.microbatches * (p.cost.F[s] + p.cost.BI[s] + p.cost.BW[s]) end
    return sum
  end)
  local n_actions = 3 * p.stages * p.microbatches
  local list = candidates(p)
  local n_tried = math.max(1, math.min(#list, 16 * BUILD_ACTIONS // (n_actions * (8 + p.ranks))))
  local best = {} -- of the candidates so far, best first
  local function keep(rows)
    local t = rows and tasks_of(p, rows)
    local score = t and score_of(p, t)
    if not score then return end
    for r, limit in ipairs(p.limit) do
      if peak(t, r) > limit then return end
    end
    local at = #best + 1
    while at > 1 and less(score, best[at - 1].score) do at = at - 1 end
    if at > KEPT then return end
    table.insert(best, at, { tasks = t, score = score })
    best[KEPT + 1] = nil
  end
  keep(one_by_one(p))
  for _, rows in ipairs(p.known) do keep(rows) end
  for i = 1, n_tried do
    local bound = best[KEPT] and best[KEPT].score[1] * (1 + 1e-9) or INF
    keep(list[i * STRIDE % #list + 1](bound))
  end
  local tries = math.min(MOST_MOVES, IMPROVE_ACTIONS // (n_actions * #best))
  local winner
  for _, c in ipairs(best) do
    local before = { table.unpack(c.tasks.order) }
    for r, order in ipairs(before) do before[r] = table.move(order, 1, #order, 1, {}) end
    improve(p, c.tasks, tries)
    local score = score_of(p, c.tasks)
    if less(c.score, score) then c.tasks.order, score = before, c.score end
    c.score = score
    if p.cost.B then
      fuse(p, c.tasks)
      c.score = score_of(p, c.tasks)
    end
    if not winner or less(c.score, winner.score) then winner = c end
  end
  local rows = {}
  for r, order in ipairs(winner.tasks.order) do
    rows[r] = {}
    for i, k in ipairs(order) do
      local a = winner.tasks.action[k]
      rows[r][i] = { a[1], winner.tasks.fused[k] and "B" or a[2], a[3] }
    end
  end
  return rows
end

return M
