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
---@field actions? table          all actions; set here

-- An action here is { stage, pass, mb }; there is one table for each, p.actions[pass][stage][mb + 1].

local function all_actions(p)
  local all = {}
  for _, pass in ipairs { "F", "BI", "BW" } do
    all[pass] = {}
    for stage = 0, p.stages - 1 do
      local list = {}
      for mb = 0, p.microbatches - 1 do list[mb + 1] = { stage, pass, mb } end
      all[pass][stage] = list
    end
  end
  return all
end

-- ---- list scheduling -----------------------------------------------------------------------------

-- When the input of an action is there; INF: not known yet.
local function arrival(p, ends, stage, pass, mb)
  local from, at
  if pass == "F" then
    if stage == 0 then return 0 end
    from = stage - 1
    at = ends.F[from][mb]
  else
    from = stage + 1
    if from == p.stages then return ends.F[stage][mb] or INF end
    at = ends.BI[from][mb]
  end
  if not at then return INF end
  return p.rank[from] ~= p.rank[stage] and at + p.comm or at
end

-- Rank by rank, in virtual time: whatever starts first is decided first, so all that arrived by then
-- is known. 'choose(r, now, ends, held)' gives rank r's next F or BI and when it can start. A waiting
-- BW goes first where 'gap' times its cost would stay idle otherwise, where more than waiting[r] wait,
-- and where the next action is a forward pass for which there is no memory. Nil: no rank can go on,
-- or some rank cannot be done by 'bound'. Gives the score of the rows as well (see score_of): here
-- each action starts as early as its order lets it.
local function list_schedule(p, choose, gap, waiting, bound)
  local ranks, rank_of, cost, actions = p.ranks, p.rank, p.cost, p.actions
  local ends = { F = {}, BI = {} }
  for stage = 0, p.stages - 1 do ends.F[stage], ends.BI[stage] = {}, {} end
  local rows, free, held, queue, first, last, left = {}, {}, {}, {}, {}, {}, {}
  local chosen, starts = {}, {} -- by rank: its next action, and when; INF: none
  local began, most = {}, 0
  local function decide(r)
    local now = free[r]
    local action, start = choose(r, now, ends, held[r])
    local weight = queue[r][first[r]]
    if weight then
      local behind = last[r] - first[r] + 1 > waiting[r]
      local urgent = action and start <= now and action[2] == "BI"
      if not action or start > now + gap * cost.BW[weight[1]] or behind and not urgent then action, start = weight, now end
    end
    chosen[r], starts[r] = action, action and start or INF
  end
  for r = 1, ranks do
    rows[r], free[r], held[r], queue[r], first[r], last[r], left[r], began[r] = {}, 0, 0, {}, 1, 0, p.work[r], nil
  end
  for r = 1, ranks do decide(r) end
  local length = {}
  for r = 1, ranks do length[r] = 0 end
  for _ = 1, 3 * p.stages * p.microbatches do
    local r, start = nil, INF
    for k = 1, ranks do
      if starts[k] < start then r, start = k, starts[k] end
    end
    if not r then return nil end
    local action = chosen[r]
    local stage, pass, mb = action[1], action[2], action[3]
    if start + left[r] > bound then return nil end
    local takes = cost[pass][stage]
    local stop = start + takes
    length[r] = length[r] + 1
    rows[r][length[r]] = action
    if not began[r] then began[r] = start end
    free[r], left[r] = stop, left[r] - takes
    if pass == "BW" then
      held[r], first[r] = held[r] - 1, first[r] + 1
    else
      ends[pass][stage][mb] = stop
      local reader
      if pass == "F" then
        held[r] = held[r] + 1
        if held[r] > most then most = held[r] end
        reader = rank_of[stage + 1]
      else
        last[r] = last[r] + 1
        queue[r][last[r]] = actions.BW[stage][mb + 1]
        reader = rank_of[stage - 1]
      end
      if reader and reader ~= r then decide(reader) end
    end
    decide(r)
  end
  local makespan, idle = 0, 0
  for r = 1, ranks do makespan, idle = math.max(makespan, free[r]), math.max(idle, free[r] - began[r] - p.work[r]) end
  return rows, { makespan, idle, most }
end

-- Chooses what is ready first; among both passes 'prefer', among stages the deepest or the first. A
-- stage has at most flying[stage] microbatches between F and BI, and leaves room for the stages
-- behind it on its rank, without which no microbatch could come back.
local function greedy(p, prefer, deep, flying)
  local next_f, next_i = {}, {}
  local microbatches, actions = p.microbatches, p.actions
  for stage = 0, p.stages - 1 do next_f[stage], next_i[stage] = 0, 0 end
  return function(r, now, ends, held)
    local best, best_pass, start, list = nil, nil, INF, p.on[r]
    local n = #list
    for k = 1, n do
      local index = deep and n + 1 - k or k
      local stage = list[index]
      local f, i = next_f[stage], next_i[stage]
      -- what was chosen before has run if its end is known
      if ends.F[stage][f] then
        f = f + 1
        next_f[stage] = f
      end
      if ends.BI[stage][i] then
        i = i + 1
        next_i[stage] = i
      end
      if i < f then
        local at = arrival(p, ends, stage, "BI", i)
        if at < now then at = now end
        if at < start or at == start and best and best_pass ~= "BI" and prefer == "BI" then
          best, best_pass, start = actions.BI[stage][i + 1], "BI", at
        end
      end
      if f < microbatches and held < p.limit[r] - (n - index) and f - i < flying[stage] then
        local at = arrival(p, ends, stage, "F", f)
        if at < now then at = now end
        if at < start or at == start and best and best_pass ~= "F" and prefer == "F" then
          best, best_pass, start = actions.F[stage][f + 1], "F", at
        end
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
  -- Each pass of a stage comes at even distances; of several at one time F is first, then the deepest.
  local series, current = {}, {}
  local function advance(r)
    local first, at = nil, INF
    for _, s in ipairs(series[r]) do
      if s.at < at and s.mb < p.microbatches then first, at = s, s.at end
    end
    if not first then
      current[r] = nil
      return
    end
    first.mb = first.mb + 1
    current[r] = first.actions[first.mb]
    first.at = first.offset + first.mb * period
  end
  for r, list in ipairs(p.on) do
    series[r] = {}
    for _, pass in ipairs { "F", "BI" } do
      for k = #list, 1, -1 do
        local from = offset[pass][list[k]]
        table.insert(series[r], { actions = p.actions[pass][list[k]], offset = from, at = from, mb = 0 })
      end
    end
    advance(r)
  end
  return function(r, now, ends, held)
    local action = current[r]
    if action and ends[action[2]][action[1]][action[3]] then
      advance(r)
      action = current[r]
    end
    if not action or action[2] == "F" and held >= p.limit[r] then return nil, INF end
    local at = arrival(p, ends, action[1], action[2], action[3])
    return action, at > now and at or now
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

-- The candidates as functions that build rows, most general first within each family; false where the
-- choices come to the same as others before, as many do in a small problem.
local function candidates(p)
  local list, seen = {}, {}
  local function add(choices, build)
    local key = table.concat(choices, " ")
    list[#list + 1], seen[key] = not seen[key] and build, true
  end
  local f, i, w = mean(p.cost.F), mean(p.cost.BI), mean(p.cost.BW)
  local round = math.max(table.unpack(p.work)) / p.microbatches
  local function waiting(factor, share) -- as many as there are: all of them
    return by_rank(p, function(r)
      return factor < INF and math.min(math.floor(factor * share * (r - 1)), #p.on[r] * p.microbatches) or #p.on[r] * p.microbatches
    end)
  end

  local flights = { 1, 1.25, 1.5, 1.75, 2, 2.5, 3, INF }
  product({ { "BI", "F" }, { true, false }, { 0, 0.5, 1 }, flights, { 0, 0.5, 1, 1.5, 2, INF } }, function(c)
    local prefer, deep, gap, flight, factor = table.unpack(c)
    local flying = {}
    for stage = 0, p.stages - 1 do
      local most = flight < INF and math.max(1, math.ceil(flight * (p.ranks + 1 - p.rank[stage]))) or p.microbatches
      flying[stage] = math.min(most, p.microbatches)
    end
    local wait, deepest = waiting(factor, 1), deep and p.stages_per_rank > 1
    local choices = { prefer, tostring(deepest), gap, table.concat(flying, " ", 0), table.concat(wait, " ") }
    add(choices, function(bound) return list_schedule(p, greedy(p, prefer, deepest, flying), gap, wait, bound) end)
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
        local wait = waiting(factor, legs)
        add({ table.concat(linger, " "), gap, table.concat(wait, " ") }, function(bound)
          return list_schedule(p, block(p, linger, round), gap, wait, bound)
        end)
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

-- Rows as tasks, much as those of simulate.run; 'action[task]' and 'weight[task]' lead back, and
-- need[task] is what has to end before it, 0: nothing.
local function tasks_of(p, rows)
  local t = { n_ranks = p.ranks, cost = {}, rank = {}, need = {}, order = {}, action = {}, weight = {}, fused = {} }
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
    t.need[k] = need or 0
    if pass == "BI" then t.weight[k] = id.BW[stage][mb] end
  end
  return t
end

local function peak(t, r)
  local held, most, action = 0, 0, t.action
  for _, k in ipairs(t.order[r]) do
    local pass = action[k][2]
    if pass == "F" then
      held = held + 1
      if held > most then most = held end
    elseif pass == "BW" or t.fused[k] then
      held = held - 1
    end
  end
  return most
end

-- When each task ends: simulate.run for tasks that need at most one other, and without garbage, since
-- it runs for every move that is tried. Nil: the ranks wait in a circle, or something ends after 'by'.
local function run(t, comm, by)
  local order, need, cost, rank = t.order, t.need, t.cost, t.rank
  local ends, at, time, ready = t.ends or {}, {}, {}, {}
  local waits = t.waits or {} -- by task: the other rank that waits for it; there is one at most
  t.ends, t.waits = ends, waits
  for k = 1, #cost do ends[k], waits[k] = false, false end
  local n, left = t.n_ranks, 0
  for r = 1, n do
    at[r], time[r], ready[r] = 1, 0, n + 1 - r
    left = left + #order[r]
  end
  while n > 0 do
    local r = ready[n]
    n = n - 1
    local row, i, now = order[r], at[r], time[r]
    local k = row[i]
    while k do
      local from = need[k]
      if from > 0 then
        local arrives = ends[from]
        if not arrives then break end
        if rank[from] ~= r then arrives = arrives + comm end
        if arrives > now then now = arrives end
      end
      now = now + cost[k]
      if now > by then return nil end
      ends[k] = now
      if waits[k] then
        n = n + 1
        ready[n] = waits[k]
      end
      left, i = left - 1, i + 1
      k = row[i]
    end
    at[r], time[r] = i, now
    if k then waits[need[k]] = r end
  end
  return left == 0 and ends or nil
end

-- Smaller is better, the first that differs decides: makespan, the most that a rank idles between
-- its first action and its last, the largest peak. Nil: the ranks wait in a circle.
local function score_of(p, t)
  local ends = run(t, p.comm, INF)
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

-- What no order can beat: all ranks' work, and the step of a rank that starts as soon as its first
-- microbatch can be there and never idles.
local function lower_bounds(p)
  local arrives, step, work = 0, 0, 0
  local started = {}
  for stage = 0, p.stages - 1 do
    local r = p.rank[stage]
    if stage > 0 and p.rank[stage - 1] ~= r then arrives = arrives + p.comm end
    if not started[r] then
      started[r] = true
      step, work = math.max(step, arrives + p.work[r]), work + p.work[r]
    end
    arrives = arrives + p.cost.F[stage]
  end
  return { step, work }
end

-- Moves single actions by up to 8 places, 'tries' times, and keeps what makes neither the step nor
-- the sum of the ranks' spans longer. The order of a stage's microbatches stays.
local function improve(p, t, tries)
  local seed = 1
  local function random(n)
    seed = (seed * 1103515245 + 12345) % 2147483648
    return seed // 65536 % n + 1
  end
  local best = { INF, INF }
  local function measure()
    local ends = run(t, p.comm, best[1] * (1 + 4e-9)) -- what takes longer is not kept
    if not ends then return nil end
    local makespan, spans = 0, 0
    for _, order in ipairs(t.order) do
      local last = ends[order[#order]]
      makespan, spans = math.max(makespan, last), spans + last - ends[order[1]] + t.cost[order[1]]
    end
    return { makespan, spans }
  end
  best = measure()
  local bounds = lower_bounds(p)
  for _ = 1, tries do
    if not p.cost.B and not less(bounds, best) then return end -- halves that come to stand together may be fused
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
  p.actions = all_actions(p)
  local n_actions = 3 * p.stages * p.microbatches
  local list = candidates(p)
  local n_tried = math.max(1, math.min(#list, 16 * BUILD_ACTIONS // (n_actions * (8 + p.ranks))))
  local best = {} -- of the candidates so far, best first
  local function keep(rows, known_score)
    if known_score and best[KEPT] and not less(known_score, best[KEPT].score) then return end
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
    local build = list[i * STRIDE % #list + 1]
    if build then keep(build(bound)) end
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
