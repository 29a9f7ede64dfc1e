-- What a rank holds, counted on the instructions of the plan: the "peak" column of every table, and bytes that
-- follow it. Under 1F1B neither grows with the number of microbatches.
local tap = require "tap"
local piper = require "piper"
local tables = require "schedule_table"
local nn, schedules = piper.nn, piper.schedules

local models = {}
local function model(stages)
  models[stages] = models[stages] or piper.model("equal", function(m)
    local h = m:input("x", { "batch", 4 }, "f32")
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        h = nn.relu(nn.linear(h, "first" .. s, { out = 4 }))
        h = nn.gelu(nn.linear(h, "second" .. s, { out = 4 }))
        if s == stages - 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
  return models[stages]
end
local function plan_of(list, stages, microbatches, samples)
  return piper.compile(model(stages), piper.strategy():add(list), { batch = samples * microbatches })
end

local function words(t)
  local list = {}
  for rank = 0, #t do list[rank + 1] = t[rank] end
  return table.concat(list, " ")
end
for _, row in ipairs(tables.all()) do
  local held = plan_of(schedules.parse(row.text), row.stages, row.microbatches, 2):held()
  if row.text:find("(", 1, true) then
    -- The members of an overlapped group run side by side in the table; where the plan has the backward pass
    -- first, one pair less is held.
    local close = true
    for rank = 0, row.ranks - 1 do
      local peak = tonumber(row.peak:match(("%S+ "):rep(rank) .. "(%S+)"))
      close = close and (held[rank] == peak or held[rank] == peak - 1)
    end
    if not tap.ok(close, row.file .. ": one less at most") then tap.diag(words(held) .. " for " .. row.peak) end
  else
    tap.is(words(held), row.peak, row.file)
  end
end

-- Bytes. A stage of this model holds of a sample two rows of four numbers that it computes (after each
-- linear), and the row that it was sent. Inputs are there all the time.
local SAMPLES, ROW = 256, 4 * 4
local function held_bytes(plan, rank, microbatches)
  local m = plan:memory()[rank]
  local inputs = rank == 0 and SAMPLES * ROW * microbatches or 0
  return m.activations + m.comm - inputs
end
local first
for _, microbatches in ipairs { 4, 5, 8, 32 } do
  local plan = plan_of(schedules.one_f_one_b { ranks = 4, microbatches = microbatches }, 4, microbatches, SAMPLES)
  local bytes = {}
  for rank = 0, 3 do bytes[rank] = held_bytes(plan, rank, microbatches) end
  tap.is(words(plan:held()), "4 3 2 1", ("1F1B, %d microbatches: pairs"):format(microbatches))
  tap.is(bytes[1] - bytes[2], SAMPLES * ROW * 3, ("1F1B, %d microbatches: a pair more, its bytes more"):format(microbatches))
  first = first or words(bytes)
  tap.is(words(bytes), first, ("1F1B, %d microbatches: not a byte more than with 4"):format(microbatches))
end
local before
for microbatches = 2, 5 do
  local plan = plan_of(schedules.gpipe { ranks = 3, microbatches = microbatches }, 3, microbatches, SAMPLES)
  local bytes = held_bytes(plan, 1, microbatches)
  tap.is(plan:held()[1], microbatches, ("gpipe holds all of %d"):format(microbatches))
  if before then tap.is(bytes - before, SAMPLES * ROW * 3, "and their bytes") end
  before = bytes
end

-- A stage whose backward pass needs nothing of its forward pass holds nothing.
local doubling = piper.model("doubling", function(m)
  local h = m:input("x", { "batch", 4 }, "f32")
  piper.annotate("PP", function() h = nn.linear(h, "l", { out = 4 }) end)
  piper.annotate("PP", function() h = h * 2 end)
  piper.annotate("PP", function() m:loss(nn.sum_squares(h)) end)
end)
local gpipe = piper.strategy():add(schedules.gpipe { ranks = 3, microbatches = 4 })
tap.is(piper.compile(doubling, gpipe, { batch = 8 }):held()[1], 0, "nothing to hold")

-- Several chunks of one stage and microbatch are one pair.
local layers = piper.model("layers", function(m)
  local h = m:input("x", { "batch", 4 }, "f32")
  for _ = 1, 3 do piper.annotate("LAYER", function() h = nn.gelu(nn.linear(h, "l", { out = 4 })) end) end
  m:loss(nn.sum_squares(h))
end)
local s = piper.strategy():split { num_microbatches = 3 }:order { filters = { { MB = 0 }, { MB = 1 }, { MB = 2 } } }
tap.is(piper.compile(layers, s, { batch = 6 }):held()[0], 1, "one microbatch after the other")
s = piper.strategy():split { num_microbatches = 3 }:order { filters = { { PASS = "F" }, { PASS = "B" } } }
tap.is(piper.compile(layers, s, { batch = 6 }):held()[0], 3, "all forward passes first")
tap.error_matches(function() piper.compile(layers, s, { batch = 6 }).held() end, "schedule_held.lua:%d+: held: this is a method")
tap.done()
