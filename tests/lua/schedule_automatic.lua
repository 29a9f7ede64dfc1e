-- schedules.automatic: at least as good as the searches of metrics.csv, as good as the best of all
-- orders where those can be enumerated, within its memory limits, and the same every time.
local tap = require "tap"
local schedules = require "piper.schedules"
local simulate = require "piper.schedules.simulate"
local tables = require "schedule_table"

local function most(list)
  local m = list[0]
  for rank = 1, #list do m = math.max(m, list[rank]) end
  return m
end

-- The rows of metrics.csv.
local found = 0
for _, row in ipairs(tables.all()) do
  local limit = ({ zb1pauto = row.ranks, zb2pauto = 2 * row.ranks, zbvauto = 2 * row.ranks })[row.schedule]
  if limit then
    found = found + 1
    local list = schedules.automatic {
      ranks = row.ranks, microbatches = row.microbatches, memory_limit = limit, placement = row.placement,
    }
    schedules.check(list)
    local m = schedules.metrics(list)
    tap.ok(m.bubble <= tonumber(row.bubble) + 1e-6 and m.span_bubble <= tonumber(row.span_bubble) + 1e-6
      and m.period <= tonumber(row.period) and most(m.peak) <= limit,
      ("%s: bubble %.3f (%s), span %.3f (%s), peak %d (limit %d)"):format(row.file, m.bubble, row.bubble, m.span_bubble,
        row.span_bubble, most(m.peak), limit))
  end
end
tap.is(found, 6, "all rows of searches were compared")

-- All orders of one stage's F, BI, BW with microbatches in turn, at most 'limit' held.
local function orders(microbatches, limit)
  local list, word = {}, {}
  local function extend(f, i, w)
    if w == microbatches then list[#list + 1] = table.concat(word) return end
    local function with(letter, ...)
      word[#word + 1] = letter
      extend(...)
      word[#word] = nil
    end
    if f < microbatches and f - w < limit then with("F", f + 1, i, w) end
    if i < f then with("I", f, i + 1, w) end
    if w < i then with("W", f, i, w + 1) end
  end
  extend(0, 0, 0)
  return list
end

-- The shortest step of all combinations of orders, one stage a rank.
local function shortest(ranks, microbatches, limit, costs)
  local t = { n_ranks = ranks, cost = {}, rank = {}, needs = {}, order = {} }
  local function id(r, letter, mb) return ((r - 1) * 3 + ("FIW"):find(letter) - 1) * microbatches + mb end
  for r = 1, ranks do
    for letter in ("FIW"):gmatch "." do
      for mb = 1, microbatches do
        local need = letter == "F" and (r > 1 and id(r - 1, "F", mb)) or letter == "I" and (r < ranks and id(r + 1, "I", mb))
        local k = id(r, letter, mb)
        t.cost[k], t.rank[k], t.needs[k] = costs[letter], r, { need or nil }
      end
    end
  end
  local all, best = orders(microbatches, limit), math.huge
  local as_tasks = {}
  for r = 1, ranks do
    as_tasks[r] = {}
    for i, word in ipairs(all) do
      local count, list = { F = 0, I = 0, W = 0 }, {}
      for letter in word:gmatch "." do
        count[letter] = count[letter] + 1
        list[#list + 1] = id(r, letter, count[letter])
      end
      as_tasks[r][i] = list
    end
  end
  local function choose(r)
    if r > ranks then
      local ends, last = simulate.run(t, costs.comm), 0
      if ends then
        for _, order in ipairs(t.order) do last = math.max(last, ends[order[#order]]) end
        best = math.min(best, last)
      end
      return
    end
    for _, list in ipairs(as_tasks[r]) do
      t.order[r] = list
      choose(r + 1)
    end
  end
  choose(1)
  return best
end

for _, case in ipairs {
  { 2, 4, 1, { F = 1, I = 1, W = 1, comm = 0 } }, { 2, 4, 2, { F = 2, I = 3, W = 2, comm = 1 } },
  { 2, 4, 3, { F = 5, I = 7, W = 3, comm = 0.5 } }, { 2, 4, 4, { F = 1, I = 1, W = 3, comm = 2 } },
  { 3, 3, 2, { F = 2, I = 3, W = 2, comm = 1 } },
} do
  local ranks, microbatches, limit, costs = table.unpack(case)
  local list = schedules.automatic { ranks = ranks, microbatches = microbatches, memory_limit = limit, costs = costs }
  local m = schedules.metrics(list, costs)
  tap.near(m.makespan, shortest(ranks, microbatches, limit, costs), 1e-9,
    ("%d ranks, %d microbatches, limit %d, F %g I %g W %g comm %g: as short as any order"):format(ranks, microbatches, limit,
      costs.F, costs.I, costs.W, costs.comm))
  tap.ok(most(m.peak) <= limit, "... within the limit")
end

-- Unequal costs: better than every schedule worked out by hand that fits.
for _, costs in ipairs { { F = 2, I = 3, W = 2, comm = 1 }, { F = 4, I = 3, W = 2, comm = 0.5 } } do
  for _, case in ipairs { { "zb_h1", "single", 5 }, { "zb_h2", "single", 9 }, { "zbv", "v", 10 } } do
    local name, placement, limit = table.unpack(case)
    local spec = { ranks = 5, microbatches = 10, memory_limit = limit, placement = placement, costs = costs }
    local by_hand = schedules.metrics(schedules[name] { ranks = 5, microbatches = 10 }, costs).makespan
    local m = schedules.metrics(schedules.automatic(spec), costs)
    tap.ok(m.makespan <= by_hand and most(m.peak) <= limit, ("%s takes %g, the search finds %g"):format(name, by_hand, m.makespan))
  end
end

-- Less memory, a longer step; and a limit for each rank.
local function automatic(spec)
  spec.ranks, spec.microbatches = spec.ranks or 4, spec.microbatches or 8
  local list = schedules.automatic(spec)
  schedules.check(list)
  return schedules.metrics(list, spec.costs), list
end
local before = 0
for _, limit in ipairs { 12, 7, 5, 4, 2, 1 } do
  local m = automatic { memory_limit = limit }
  if m.makespan < before or most(m.peak) > limit then tap.ok(false, ("limit %d: makespan %g"):format(limit, m.makespan)) end
  before = m.makespan
end
tap.is(before, 4 * 2 * 8 + 8, "with room for one microbatch they follow each other")
local m = automatic { memory_limit = { [0] = 4, 4, 2, 4 } }
tap.ok(m.peak[2] <= 2 and m.makespan > 27, "a limit for each rank")
m = automatic { memory_limit = 2, placement = "v" }
tap.is(most(m.peak), 2, "two stages a rank need room for two")
m = automatic { placement = "v" }
tap.is(most(m.peak), 8, "the default limit is what 1F1B holds")
m = automatic { placement = "loop", stages_per_rank = 3, memory_limit = 14 }
tap.ok(most(m.peak) <= 14, "several stages round and round")

-- Costs by stage.
local uneven = { F = { [0] = 1, 1, 3, 1 }, I = 1, W = { [0] = 1, 1, 3, 1 } }
m = automatic { costs = uneven, memory_limit = 6 }
tap.ok(m.makespan <= schedules.metrics(schedules.zb_h1 { ranks = 4, microbatches = 8 }, uneven).makespan, "uneven stages")

-- A fused backward pass that is cheaper than its halves is used where it costs nothing.
local cheap = { F = 1, I = 1, W = 1, B = 1.5 }
local fused, list = automatic { costs = cheap, memory_limit = 8 }
tap.ok(schedules.text(list):find "%dB%d" and fused.makespan <= 27 and fused.busy[0] < 24, "fused where that is cheaper")
local _, split = automatic { costs = { F = 1, I = 1, W = 1, B = 2 }, memory_limit = 8 }
tap.ok(not schedules.text(split):find "%dB%d", "not where it is not")

-- Any size, and costs of nothing.
local sizes = 0
for _, placement in ipairs { "single", "v", "loop" } do
  for _, ranks in ipairs { 1, 3 } do
    for _, microbatches in ipairs { 1, 2, 5 } do
      local per_rank = placement == "single" and 1 or 2
      for _, limit in ipairs { per_rank, 2 * per_rank * ranks } do
        local r = automatic { ranks = ranks, microbatches = microbatches, placement = placement, memory_limit = limit }
        if most(r.peak) > limit then tap.ok(false, ("%s, %d ranks, %d microbatches, limit %d"):format(placement, ranks, microbatches, limit)) end
        sizes = sizes + 1
      end
    end
  end
end
tap.is(sizes, 36, "any size gives a schedule that can run within its limit")
tap.ok(pcall(automatic, { costs = { F = 1, I = 0, W = 0 } }), "passes that take no time")
tap.ok(pcall(automatic, { costs = { F = 0, I = 0, W = 0 } }), "none that takes time")

-- The same question, the same answer, also from another process, where Lua hashes differently.
local question = [[local s = require "piper.schedules" io.write(s.text(s.automatic { ranks = 4, microbatches = 6,
  placement = "v", memory_limit = 6, costs = { F = 2, I = 3, W = 2, comm = 1 } }), "\n")]]
local answers = {}
for i = 1, 3 do
  local p = io.popen(("'%s' -e '%s'"):format(os.getenv "PIPER", question))
  answers[i] = p:read "a"
  p:close()
end
tap.ok(#answers[1] > 100 and answers[1] == answers[2] and answers[1] == answers[3], "three processes find the same schedule")

-- Options.
local function fails(spec, pattern)
  tap.error_matches(function() schedules.automatic(spec) end, "schedule_automatic.lua:%d+: automatic: " .. pattern)
end
fails({ ranks = 4, microbatches = 8, memory_limit = 0 }, 'field "memory_limit" is 0: the smallest is 1, one activation for each stage')
fails({ ranks = 4, microbatches = 8, memory_limit = 1, placement = "v" }, 'field "memory_limit" is 1: the smallest is 2')
fails({ ranks = 2, microbatches = 8, memory_limit = { 4 } }, "memory_limit of rank 0 is missing")
fails({ ranks = 2, microbatches = 8, placement = "w" }, 'field "placement" is "w", not one of "single", "loop", "v"')
fails({ ranks = 2, microbatches = 8, stages_per_rank = 2 }, 'field "stages_per_rank" is 2')
fails({ ranks = 2, microbatches = 8, costs = { G = 1 } }, 'unknown field "G"')
fails({ ranks = 2, microbatches = 8, memory = 4 }, 'unknown field "memory"')
fails(4, "argument 1 is 4, not a table")
tap.done()
