-- A mixture of experts trains to the weights of one device: losses, every gradient, every parameter
-- (design 5.8), whatever the split of the batch, the placement of the layers and the spread of the
-- experts. EQUAL_SHORT=1 runs a covering part (for runs under random delays).
local tap = require "tap"
local exact = require "exact"
local composed = require "composed"
local piper = require "piper"
local nn = piper.nn

local short = os.getenv "EQUAL_SHORT" == "1"
local TOKENS, WIDTH, BATCH = 4, 6, 24

local function options_of(more)
  local o = { experts = 4, top_k = 2, width = 5 }
  for k, v in pairs(more or {}) do o[k] = v end
  return o
end

-- Layers with experts in 'stages' stages; 'also' sees the model function's m.
local function model_of(stages, options, also)
  return piper.model("moe", function(m)
    local tokens, targets = m:input("tokens", { "batch", TOKENS }, "i32"), m:input("targets", { "batch", TOKENS }, "i32")
    local h
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        if s == 0 then h = nn.embedding(tokens, "embed", { vocab = 11, width = WIDTH, init = { normal = 0.7 } }) end
        h = h + nn.moe(nn.rmsnorm(h, ("layers.%d.norm"):format(s)), ("layers.%d.mlp"):format(s), options)
        if s == stages - 1 then m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 11, bias = false }), targets)) end
      end)
    end
    if also then also(m) end
  end, { init = { normal = 0.5 } })
end

-- The schedule's stages, each on 'devices' devices of its own rank: replicated ('flags' say more), and
-- its experts spread over groups of 'parts' (0: no shard directive).
local function strategy_of(schedule, ranks, microbatches, devices, parts, flags)
  return composed.strategy {
    list = composed.list(schedule, ranks, microbatches, devices), replicate = devices > 1 and (flags or {}) or nil,
    group = parts > 0 and parts or nil,
  }
end

local OPTIMIZER = piper.adamw { lr = 0.01, weight_decay = 0.1 }
local function plan_of(model, strategy, options)
  local all = { batch = BATCH, optimizer = OPTIMIZER, verify = true }
  for k, v in pairs(options or {}) do all[k] = v end
  return piper.compile(model, strategy, all)
end

local function equal(name, model, strategy, options)
  local fine, worst = pcall(function()
    local plan = plan_of(model, strategy, options)
    plan:verify()
    plan:check_equivalence()
  end)
  if not tap.ok(fine, name) then tap.diag(worst) end
end

-- ---- devices, groups of experts, stages, microbatches ---------------------------------------------

-- Devices a stage, and devices a group of experts (0: no shard directive).
local LAYOUTS = { { 1, 0 }, { 1, 1 }, { 2, 0 }, { 2, 1 }, { 2, 2 }, { 4, 0 }, { 4, 1 }, { 4, 2 }, { 4, 4 } }
local CASES = {
  { top_k = 2 }, { top_k = 1, aux = 0.1 }, { top_k = 2, capacity_factor = 1.0, aux = 0.1 },
  { top_k = 1, capacity_factor = 1.0, normalize = false },
}
local n = 0
for _, o in ipairs(CASES) do
  local text = ("top %d, capacity %s, aux %g"):format(o.top_k, o.capacity_factor or "none", o.aux or 0)
  for stages = 1, 2 do
    local model = model_of(stages, options_of(o))
    for _, microbatches in ipairs { 1, 2, 3 } do
      for _, layout in ipairs(LAYOUTS) do
        n = n + 1
        local schedule = n % 2 == 0 and "gpipe" or "one_f_one_b"
        if not short or n % 7 == 0 then
          equal(("%s: %d stages, %s, %d microbatches, %d devices, groups of %d"):format(text, stages, schedule,
            microbatches, layout[1], layout[2]), model,
            strategy_of(schedule, stages, microbatches, layout[1], layout[2]),
            { clip_norm = n % 3 == 0 and 0.5 or nil })
        end
      end
    end
  end
end

-- ---- ZeRO over the devices that hold the same expert ------------------------------------------------

for i, zero in ipairs(exact.zero) do
  equal(("%s: 4 devices, groups of 2"):format(zero[1]), model_of(2, options_of { aux = 0.1 }),
    strategy_of("one_f_one_b", 2, 3, 4, 2, zero[2]), { clip_norm = i % 2 == 0 and 0.3 or nil })
end

-- ---- other shapes of strategies -------------------------------------------------------------------

local s = strategy_of("one_f_one_b", 2, 3, 2, 2)
for _, d in ipairs(s.directives) do
  if d.op == "shard" then d.stream = "dp_stream" end
end
equal("experts and reductions in one queue", model_of(2, options_of {}), s)

s = piper.strategy()
s:split { filter = { EP = "*" }, num_microbatches = 3 }
s:place { filter = {}, devices = { 0, 1 } }
s:replicate { filter = {}, devices = { 0, 1 } }
s:shard { filter = { EP = "*" }, devices = { 0, 1 } }
equal("only the experts are split", model_of(2, options_of {}), s)

s = piper.strategy()
s:split { filter = { EP = false }, num_microbatches = 3 }
s:place { filter = { EP = "*" }, devices = { 3, 2 } }
s:place { filter = { EP = false }, devices = { 0 } }
s:shard { filter = { EP = "*" }, devices = { 3, 2 } }
equal("all but the experts is split, which are on devices of their own", model_of(2, options_of {}), s)

s = piper.strategy()
s:split { num_microbatches = 2 }
s:place { filter = { PP = 0 }, devices = { 0, 1, 2, 3 } }
s:place { filter = { PP = 1 }, devices = { 5, 4 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1, 2, 3 }, bucket_size = 1e-4 }
s:replicate { filter = { PP = 1 }, devices = { 5, 4 } }
s:shard { filter = { EP = "*" }, devices = { { 5, 4 }, { 0, 1 }, { 2, 3 } } }
equal("one directive for stages on sets of different size", model_of(2, options_of {}), s)

s = piper.strategy()
s:place { filter = { PP = 0 }, devices = { 0, 1, 2, 3 } }
s:place { filter = { PP = 1 }, devices = { 2, 3 } }
s:replicate { filter = { PP = 0, EP = false }, devices = { 0, 1, 2, 3 } }
s:replicate { filter = { PP = 1, EP = false }, devices = { 2, 3 } }
s:shard { filter = { PP = 0, EP = "*" }, devices = { { 0, 1 }, { 2, 3 } } }
s:shard { filter = { PP = 1, EP = "*" }, devices = { 2, 3 } }
equal("groups that no replicate directive matches", model_of(2, options_of {}), s)

-- The same experts in two layers.
local tied = piper.model("tied", function(m)
  local x, y = m:input("x", { "batch", TOKENS, WIDTH }), m:input("y", { "batch", TOKENS, WIDTH })
  local h
  for stage = 0, 1 do
    piper.annotate("PP", function()
      if stage == 0 then h = nn.linear(x, "in", { out = WIDTH }) end
      h = h + nn.moe(h, "both", options_of {})
      if stage == 1 then m:loss(nn.mse(h, y)) end
    end)
  end
end, { init = { normal = 0.5 } })
equal("experts that two stages share", tied, strategy_of("one_f_one_b", 2, 3, 2, 2))
equal("experts that two stages share, one of them spread", tied, (function()
  local two = strategy_of("one_f_one_b", 2, 3, 2, 0)
  return two:shard { filter = { PP = 1, EP = "*" }, devices = { 2, 3 } }
end)())

for _, pattern in ipairs { "experts%.[01]%.", "%.experts%.", "%.gate%.", "experts%.%d%.up_proj" } do
  equal(("frozen: %s"):format(pattern), model_of(2, options_of { aux = 0.1 }, function(m) m:freeze(pattern) end),
    strategy_of("zb_h1", 2, 4, 2, 2), { batch = 16 })
end

local again = strategy_of("one_f_one_b", 2, 3, 2, 2)
again:recompute { filter = { PP = { 0, 1 } } }
equal("recompute", model_of(2, options_of { capacity_factor = 0.5, aux = 0.1 }), again)
local experts_again = strategy_of("gpipe", 2, 2, 4, 2)
experts_again:recompute { filter = { EP = "*" } }
equal("recompute of experts only", model_of(2, options_of { capacity_factor = 0.5 }), experts_again)

-- One queue for two members of a group that overlap: forward of one microbatch, backward of another.
s = strategy_of("dualpipev", 2, 4, 2, 2)
equal("f32: dualpipev", model_of(4, options_of {}), s, { batch = 16, optimizer = piper.sgd { lr = 0.1 } })

-- ---- gradients do not depend on the layout ----------------------------------------------------------

local function gradients(model, strategy, pattern)
  local data = require "piper.core".data.random()
  local run <close> = piper.train(plan_of(model, strategy, { dtype = "f64" }), { data = data, seed = 4 })
  local out, dropped = {}, 0
  for _, m in run:steps(1) do dropped = dropped + m.dropped end
  for _, p in ipairs(model:params()) do
    if p.name:find(pattern) then
      for i, v in ipairs(run:gradients(p.name)) do out[#out + 1] = { p.name, i, v } end
    end
  end
  return out, dropped
end

local function same_gradients(name, got, want)
  local largest, off = 0, 0
  for i, w in ipairs(want) do
    largest = math.max(largest, math.abs(w[3]))
    off = math.max(off, math.abs(got[i][3] - w[3]))
  end
  tap.ok(largest > 1e-6 and off <= 1e-12 * largest, ("%s: off by %.2g of %.2g"):format(name, off, largest))
end

-- The router learns from the balance loss alone: the same gradient in every layout.
local balance = piper.model("balance", function(m)
  local tokens = m:input("tokens", { "batch", TOKENS }, "i32")
  local h
  for stage = 0, 3 do
    piper.annotate("PP", function()
      if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 11, width = WIDTH, init = { normal = 0.7 } }) end
      h = h + nn.moe(h, "layers." .. stage, options_of { aux = 1, capacity_factor = 0.75 })
      if stage == 3 then m:loss(nn.sum_squares(h) * 0) end
    end)
  end
end, { init = { normal = 0.5 } })
local want, want_dropped = gradients(balance, piper.strategy(), "%.gate%.weight$")
tap.ok(want_dropped > 0, "some choices are dropped")
for _, x in ipairs {
  { "gpipe", 4 }, { "one_f_one_b", 4 }, { "interleaved_one_f_one_b", 2 }, { "zbv", 2 }, { "dualpipev", 2 },
} do
  for devices = 1, 2 do
    local got, dropped = gradients(balance, strategy_of(x[1], x[2], 4, devices, devices), "%.gate%.weight$")
    local name = ("balance loss, %s, %d devices"):format(x[1], devices)
    same_gradients(name, got, want)
    tap.is(dropped, want_dropped, name .. ": dropped choices")
  end
end

-- Experts get the same gradients spread or not; also those that no token chose.
for _, x in ipairs { { "some tokens for all", { normal = 0.5 } }, { "all tokens for two experts", function(i, name)
  return name:find "mlp.gate" and 0 or math.sin(7 * i + #name)
end } } do
  local model = model_of(1, options_of { init = x[2] })
  want = gradients(model, piper.strategy(), "%.experts%.")
  for _, parts in ipairs { 1, 2, 4 } do
    for _, zero in ipairs { false, "shard_optimizer", "shard_grads" } do
      local got = gradients(model, strategy_of("gpipe", 1, 3, 4, parts, zero and { [zero] = true }),
        "%.experts%.")
      same_gradients(("%s: groups of %d, %s"):format(x[1], parts, zero or "replicated"), got, want)
    end
  end
end

-- ---- the paper's own strategies ---------------------------------------------------------------------

s = piper.strategy()
s:place { filter = { PP = 0 }, devices = { 0, 2 }, stream = "pp_stream" }
s:place { filter = { PP = 1 }, devices = { 1, 3 }, stream = "pp_stream" }
s:replicate { filter = { PP = 0 }, devices = { 0, 2 }, gather_stream = "dp_stream", reduce_stream = "dp_stream", shard_grads = true }
s:replicate { filter = { PP = 1 }, devices = { 1, 3 }, gather_stream = "dp_stream", reduce_stream = "dp_stream", shard_grads = true }
s:shard { filter = { PP = 0, EP = "*" }, devices = { 0, 2 }, stream = "dp_stream" }
s:shard { filter = { PP = 1, EP = "*" }, devices = { 1, 3 }, stream = "dp_stream" }
local file = os.tmpname()
s:save(file)
local loaded = piper.strategy.load(file)
os.remove(file)
loaded:add(piper.schedules.one_f_one_b { ranks = 2, microbatches = 3, devices = false })
equal("pp 2, dp 2, ep 2 with ZeRO-2 from JSON", model_of(2, options_of {}), loaded)
tap.done()
