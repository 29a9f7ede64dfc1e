-- A mixture of experts trains to the weights of one device: losses, every gradient, every parameter
-- (design 5.8), whatever the split of the batch and the placement of the layers.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local TOKENS, WIDTH = 4, 6

local function model_of(stages, options)
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
  end, { init = { normal = 0.5 } })
end

local function options_of(more)
  local o = { experts = 4, top_k = 2, width = 5 }
  for k, v in pairs(more) do o[k] = v end
  return o
end

local OPTIMIZER = piper.adamw { lr = 0.01, weight_decay = 0.1 }
local function equal(name, model, strategy, batch, options)
  local all = { batch = batch, optimizer = OPTIMIZER, verify = true }
  for k, v in pairs(options or {}) do all[k] = v end
  local fine, worst = pcall(function() return piper.compile(model, strategy, all):check_equivalence() end)
  if not tap.ok(fine, name) then tap.diag(worst) end
end

for _, o in ipairs { {}, { top_k = 1, aux = 0.1 }, { capacity_factor = 1.0, aux = 0.1 }, { top_k = 1, capacity_factor = 1.0, normalize = false } } do
  local text = ("top %d, capacity %s, aux %g"):format(o.top_k or 2, o.capacity_factor or "none", o.aux or 0)
  for stages = 1, 2 do
    local model = model_of(stages, options_of(o))
    for _, microbatches in ipairs { 1, 2, 3 } do
      for devices = 1, 2 do
        for _, schedule in ipairs { "gpipe", "one_f_one_b" } do
          equal(("%s: %d stages, %s, %d microbatches, %d devices"):format(text, stages, schedule, microbatches, devices),
            model, exact.strategy(schedule, stages, microbatches, devices), 12, { clip_norm = 0.5 })
        end
      end
    end
  end
end

-- Run again before the backward pass: the same choices, and dropped tokens counted once.
local model = model_of(2, options_of { capacity_factor = 0.5, aux = 0.1 })
local function dropped(strategy)
  local data = require "piper.core".data.random()
  local run <close> = piper.train(piper.compile(model, strategy, { batch = 12, dtype = "f64" }), { data = data, seed = 1 })
  local n = 0
  for _, m in run:steps(2) do n = n + m.dropped end
  return n
end
local again = exact.strategy("one_f_one_b", 2, 3, 2)
again:recompute { filter = { PP = { 0, 1 } } }
equal("recompute", model, again, 12)
tap.ok(dropped(piper.strategy()) > 0, "some choices are dropped")
tap.is(dropped(again), dropped(piper.strategy()), "as many whatever the strategy")
local experts_again = exact.strategy("gpipe", 2, 2, 2)
experts_again:recompute { filter = { EP = "*" } }
equal("recompute of experts only", model, experts_again, 12)
tap.done()
