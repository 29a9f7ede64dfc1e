-- simulate - when the actions of a schedule run, in time units of one's own: bubble, idle time and
-- what is held, for comparing schedules before any model exists (plan:simulate does it for plans).
--
-- Every rank runs its groups strictly in order; an action starts when its rank is free and what it
-- waits for has ended, plus 'comm' if that was on another rank. Sends never block. The terms are
-- those of Qi et al., "Zero Bubble Pipeline Parallelism", 2023, arXiv 2401.10241.
local check = require "piper.check"
local rows_of = require "piper.schedules.rows"
local schedule_check = require "piper.schedules.check"
local show = require "piper.show"

local M = {}

---@class piper.ScheduleCosts  time units; a number, or a table keyed by stage from 0
---@field F? number     forward (default 1)
---@field I? number     backward for inputs (default 1)
---@field W? number     backward for weights (default 1)
---@field B? number     fused backward (default I + W)
---@field R? number     recomputed forward (default F)
---@field comm? number  a transfer between two ranks (default 0)
---@field pairs? "atomic"|"relaxed"  an overlapped group starts and ends as one (default), or runs
---member after member, each waiting only for what it needs itself
---@field pair_cost? number  of an overlapped group if atomic (default the sum of its members)

local COSTS = {
  F = "number>=0|table?", I = "number>=0|table?", W = "number>=0|table?", B = "number>=0|table?", R = "number>=0|table?",
  comm = "number>=0?", pairs = "string?", pair_cost = "number>=0?",
}

local FIELD = { F = "F", BI = "I", BW = "W", B = "B", R = "R" }

---Checks costs and gives the cost of a pass of a stage.
---@param where string
---@param costs? piper.ScheduleCosts
---@return fun(pass: string, stage: integer): number
function M.cost_function(where, costs)
  costs = check.options(where, costs or {}, COSTS)
  check.choice(where, 'field "pairs"', costs.pairs or "atomic", { "atomic", "relaxed" })
  local function of(field, stage, default)
    local v = costs[field]
    if type(v) ~= "table" then return v or default end
    return check.value(where, ("cost %s of stage %d"):format(field, stage), v[stage], "number>=0")
  end
  return function(pass, stage)
    local field = FIELD[pass]
    if field == "B" and not costs.B then return of("I", stage, 1) + of("W", stage, 1) end
    if field == "R" and not costs.R then return of("F", stage, 1) end
    return of(field, stage, 1)
  end
end

---@class piper.Tasks  a schedule as arrays: what runs on one rank as one thing is a task
---@field n_ranks integer
---@field cost number[]
---@field rank integer[]       from 1
---@field needs integer[][]    tasks that have to end before it starts
---@field order integer[][]    [rank]: its tasks in order

-- The tasks of checked rows. Atomic groups are one task; else each action is one.
local function tasks_of(rows, seen, n_stages, cost_of, atomic, pair_cost)
  local t = { n_ranks = #rows, cost = {}, rank = {}, needs = {}, order = {} }
  local task, n = {}, 0 -- task[action]
  for r, row in ipairs(rows) do
    t.order[r] = {}
    for _, group in ipairs(row) do
      for m, a in ipairs(group) do
        local new = m == 1 or not atomic
        if new then
          n = n + 1
          t.cost[n], t.rank[n], t.needs[n] = 0, r, {}
          t.order[r][#t.order[r] + 1] = n
        end
        task[a] = n
        t.cost[n] = t.cost[n] + cost_of(a.pass, a.stage)
        if atomic and m > 1 and pair_cost then t.cost[n] = pair_cost end
      end
    end
  end
  for _, row in ipairs(rows) do
    for _, group in ipairs(row) do
      for _, a in ipairs(group) do
        local need = schedule_check.waits_for(a, seen, n_stages)
        local k = task[a]
        if need and task[need] ~= k then t.needs[k][#t.needs[k] + 1] = task[need] end
      end
    end
  end
  return t
end

---Runs the tasks; 'free[r]' is when rank r may start (default 0). Nil if the ranks wait for each
---other in a circle.
---@param t piper.Tasks
---@param comm number
---@param free? number[]
---@return number[]? ends  by task
function M.run(t, comm, free)
  local ends, at, time, waiting, ready = {}, {}, {}, {}, {}
  local left = 0
  for r = 1, t.n_ranks do
    at[r], time[r], ready[r] = 1, free and free[r] or 0, t.n_ranks + 1 - r
    left = left + #t.order[r]
  end
  while #ready > 0 do
    local r = table.remove(ready)
    local order = t.order[r]
    local k = order[at[r]]
    while k do
      local start, blocked = time[r], nil
      for _, need in ipairs(t.needs[k]) do
        local arrives = ends[need]
        if not arrives then
          blocked = need
          break
        end
        if t.rank[need] ~= r then arrives = arrives + comm end
        if arrives > start then start = arrives end
      end
      if blocked then
        waiting[blocked] = waiting[blocked] or {}
        table.insert(waiting[blocked], r)
        break
      end
      time[r] = start + t.cost[k]
      ends[k] = time[r]
      left = left - 1
      if waiting[k] then table.move(waiting[k], 1, #waiting[k], #ready + 1, ready) end
      at[r] = at[r] + 1
      k = order[at[r]]
    end
  end
  return left == 0 and ends or nil
end

-- Time per iteration when iterations follow each other with no barrier. The ends of one iteration
-- are a linear map, in the algebra of max and +, of the ends of the one before: its entry (i, j) is
-- the end of rank i when rank j alone starts at 0 and the others have long been free. The rate is
-- the largest mean of a circle in that map (Karp 1978).
local function period(t, comm)
  local n, map, distance = t.n_ranks, {}, { {} }
  for j = 1, n do
    local free = {}
    for r = 1, n do free[r] = r == j and 0 or -math.huge end
    local ends = M.run(t, comm, free)
    map[j] = {}
    for i = 1, n do map[j][i] = ends[t.order[i][#t.order[i]]] end
  end
  for v = 1, n do distance[1][v] = 0 end
  for k = 2, n + 1 do
    distance[k] = {}
    for v = 1, n do
      local best = -math.huge
      for u = 1, n do best = math.max(best, distance[k - 1][u] + map[u][v]) end
      distance[k][v] = best
    end
  end
  local rate = -math.huge
  for v = 1, n do
    local least = math.huge
    for k = 1, n do least = math.min(least, (distance[n + 1][v] - distance[k][v]) / (n + 1 - k)) end
    rate = math.max(rate, least)
  end
  return rate
end

-- The most that a counter reaches along a row: it grows at each pass of 'plus' and falls at each of
-- 'minus'; within a group it grows first.
local function highest(row, plus, minus)
  local held, most = 0, 0
  for _, group in ipairs(row) do
    for _, a in ipairs(group) do
      if a.pass == plus then held = held + 1 end
    end
    most = math.max(most, held)
    for _, a in ipairs(group) do
      if minus[a.pass] then held = held - 1 end
    end
  end
  return most
end

---@class piper.ScheduleMetrics  tables keyed by rank
---@field makespan number     last end minus first start over all ranks
---@field busy table<integer, number>  time spent computing
---@field bubble number       1 - sum(busy) / (ranks x makespan)
---@field span_bubble number  1 - max(busy) / longest span, a span being one rank's first start to last end
---@field idle number         the most that any rank's span exceeds its busy time
---@field period number       time per iteration when iterations follow each other with no barrier
---@field peak table<integer, integer>    most activations held at once: (stage, microbatch) from F until B, or W if split
---@field peak_i table<integer, integer>  the same, freed at BI if split
---@field wq table<integer, integer>      most BW pending at once

local metrics_form = show.form(function(m)
  local rows = {}
  for i, rank in ipairs(show.ranks(m.busy)) do
    rows[i] = { rank, m.busy[rank], m.peak[rank], m.peak_i[rank], m.wq[rank] }
  end
  return ("makespan %.6g  bubble %.4g  span_bubble %.4g  period %s  idle %.6g\n%s"):format(m.makespan, m.bubble,
    m.span_bubble, m.period and ("%.6g"):format(m.period) or "-", m.idle,
    show.columns({ "rank", "busy", "peak", "peak_i", "wq" }, rows))
end)
local by_rank = {}
for _, name in ipairs { "busy", "peak", "peak_i", "wq" } do by_rank[name] = show.by_rank(name) end

---The metrics of checked rows.
---@param rows piper.Rows
---@param costs? piper.ScheduleCosts
---@return piper.ScheduleMetrics
function M.metrics_of(rows, seen, n_stages, costs)
  local cost_of = M.cost_function(rows.where, costs)
  costs = costs or {}
  local comm = costs.comm or 0
  local t = tasks_of(rows, seen, n_stages, cost_of, costs.pairs ~= "relaxed", costs.pair_cost)
  local ends = M.run(t, comm)
  if not ends then
    check.fail("%s: the ranks wait for each other when overlapped groups start as one: use pairs = \"relaxed\"", rows.where)
  end
  local m = { busy = {}, peak = {}, peak_i = {}, wq = {} }
  local first, last, span, busiest, total = math.huge, -math.huge, 0, 0, 0
  m.idle = 0
  for r, order in ipairs(t.order) do
    local busy = 0
    for _, k in ipairs(order) do busy = busy + t.cost[k] end
    local from, to = ends[order[1]] - t.cost[order[1]], ends[order[#order]]
    m.busy[r - 1] = busy
    first, last = math.min(first, from), math.max(last, to)
    span, busiest, total = math.max(span, to - from), math.max(busiest, busy), total + busy
    m.idle = math.max(m.idle, to - from - busy)
    m.peak[r - 1] = highest(rows[r], "F", { B = true, BW = true })
    m.peak_i[r - 1] = highest(rows[r], "F", { B = true, BI = true })
    m.wq[r - 1] = highest(rows[r], "BI", { BW = true })
  end
  m.makespan = last - first
  m.bubble = m.makespan > 0 and 1 - total / (#rows * m.makespan) or 0
  m.span_bubble = span > 0 and 1 - busiest / span or 0
  m.period = period(t, comm)
  for name, form in pairs(by_rank) do form(m[name]) end
  return metrics_form(m)
end

---What a schedule costs, by simulating it: see piper.ScheduleMetrics.
---@param list piper.Directive[]|piper.Strategy
---@param costs? piper.ScheduleCosts
---@return piper.ScheduleMetrics
function M.metrics(list, costs)
  local rows = rows_of.read("metrics", list)
  local seen, n_stages = schedule_check.rows(rows)
  return M.metrics_of(rows, seen, n_stages, costs)
end

return M
