-- What each level of ZeRO keeps on each device, to the byte, from the plan and from the run; and that
-- gathering parameters further ahead, or less often, costs what it says.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local DEVICES = 4
local BYTES = 4

-- The elements of n that device j keeps.
local function share(n, j) return n * (j + 1) // DEVICES - n * j // DEVICES end

-- One chunk, one bucket: its backward pass reads the parameters of "second".
local model = piper.model("memory", function(m)
  local x = m:input("x", { "batch", 4 }, "f32")
  m:loss(nn.sum_squares(nn.linear(nn.relu(nn.linear(x, "first", { out = 13 })), "second", { out = 7 })))
end)
local n = 4 * 13 + 13 + 13 * 7 + 7
local data = exact.data()

local function plan_of(flags, microbatches)
  local s, set = piper.strategy(), { 0, 1, 2, 3 }
  s:split { num_microbatches = microbatches }
  s:place { filter = {}, devices = set }
  local spec = { filter = {}, devices = set }
  for k, v in pairs(flags) do spec[k] = v end
  s:replicate(spec)
  return piper.compile(model, s, { batch = 24, optimizer = piper.adamw { lr = 1 }, verify = true })
end

-- At the peak, in a backward pass: what is kept and what is whole there, in elements.
local LEVELS = {
  { "no level", {}, params = function() return n end, grads = function() return n end, state = function() return n end },
  { "shard_optimizer", { shard_optimizer = true }, params = function() return n end, grads = function() return n end,
    state = function(j) return share(n, j) end },
  { "shard_grads", { shard_grads = true }, params = function() return n end,
    grads = function(j) return share(n, j) + n end, state = function(j) return share(n, j) end },
  { "shard_params", { shard_params = true }, params = function(j) return share(n, j) + n end,
    grads = function(j) return share(n, j) + n end, state = function(j) return share(n, j) end },
  { "no level by microbatch", { reduce = "microbatch" }, params = function() return n end,
    grads = function() return n + n end, state = function() return n end },
  { "shard_optimizer by microbatch", { shard_optimizer = true, reduce = "microbatch" }, params = function() return n end,
    grads = function(j) return share(n, j) + n end, state = function(j) return share(n, j) end },
  { "shard_grads by microbatch", { shard_grads = true, reduce = "microbatch" }, params = function() return n end,
    grads = function(j) return share(n, j) + n end, state = function(j) return share(n, j) end },
  { "shard_params by microbatch", { shard_params = true, reduce = "microbatch" },
    params = function(j) return share(n, j) + n end, grads = function(j) return share(n, j) + n end,
    state = function(j) return share(n, j) end },
}
for _, level in ipairs(LEVELS) do
  for _, microbatches in ipairs { 1, 3 } do
    local name = ("%s, %d microbatches"):format(level[1], microbatches)
    local plan = plan_of(level[2], microbatches)
    local run <close> = piper.train(plan, { data = data })
    for _ in run:steps(1) do end
    local planned, measured = plan:memory(), run:memory()
    local wrong
    for j = 0, DEVICES - 1 do
      local want = { params = BYTES * level.params(j), grads = BYTES * level.grads(j), optimizer = 2 * BYTES * level.state(j) }
      for category, bytes in pairs(want) do
        if planned[j][category] ~= bytes then
          wrong = ("device %d: %s %d bytes, not %d"):format(j, category, planned[j][category], bytes)
        end
      end
      for category, bytes in pairs(planned[j]) do
        if measured[j][category] ~= bytes then
          wrong = ("device %d: %s is %d bytes when it runs, %d in the plan"):format(j, category, measured[j][category], bytes)
        end
      end
    end
    if not tap.ok(not wrong, name) then tap.diag(wrong) end
  end
end

-- Four layers in a stage: 'prefetch' buckets more are whole at a time; 'keep' trades memory for gathers.
local WIDTH = 64
local layers = piper.model("layers", function(m)
  local h = m:input("x", { "batch", WIDTH }, "f32")
  for l = 0, 3 do
    piper.annotate("LAYER", function()
      h = nn.linear(h, "layer" .. l, { out = WIDTH, bias = false })
      if l == 3 then m:loss(nn.sum_squares(h)) end
    end)
  end
end)
local bucket = BYTES * WIDTH * WIDTH
local function layers_plan(flags)
  local s, set = piper.strategy(), { 0, 1, 2, 3 }
  s:split { num_microbatches = 2 }
  s:place { filter = {}, devices = set }
  local spec = { filter = {}, devices = set, shard_params = true }
  for k, v in pairs(flags) do spec[k] = v end
  s:replicate(spec)
  return piper.compile(layers, s, { batch = 8, verify = true })
end
local function gathers(plan)
  local count = 0
  for line in plan:dump "zero":gmatch "[^\n]+" do
    if line:find "^%d+ all_gather" then count = count + 1 end
  end
  return count
end
local last_count, last_peak = math.huge, 0
for prefetch = 0, 2 do
  local plan = layers_plan { prefetch = prefetch }
  local m = plan:memory()[0]
  tap.is(m.params, bucket + bucket * (prefetch + 1), ("prefetch = %d: as many buckets more are whole"):format(prefetch))
  tap.ok(m.peak > last_peak and gathers(plan) <= last_count, ("%d gathers"):format(gathers(plan)))
  last_peak, last_count = m.peak, gathers(plan)
end
local none = layers_plan { prefetch = 0 }
for buckets = 1, 3 do
  local plan = layers_plan { prefetch = 0, keep = buckets * bucket / (1 << 20) }
  tap.ok(plan:memory()[0].peak <= none:memory()[0].peak + buckets * bucket, ("keep: at most %d buckets above the peak"):format(buckets))
  tap.ok(gathers(plan) < gathers(none), ("and %d gathers instead of %d"):format(gathers(plan), gathers(none)))
end
tap.is(gathers(layers_plan { prefetch = 0, keep = 1 }), 4, "enough to keep all: one gather a bucket")
tap.done()
