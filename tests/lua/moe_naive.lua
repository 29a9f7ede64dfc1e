-- nn.moe on one device: losses, dropped choices and every gradient against the definition (losses
-- exactly as far as rounding goes, gradients by central differences of it), in f64.
local tap = require "tap"
local naive = require "naive_moe"
local piper = require "piper"
local nn = piper.nn

local BATCH, STEP = 3, 1e-6

local function sum(list)
  local total = 0.0
  for _, v in ipairs(list) do total = total + v end
  return total
end

-- The largest entry of any gradient is around 1: central differences are good for 1e-9 here.
local function compare(name, c)
  local xs, ys = {}, {}
  for s = 1, BATCH do
    xs[s], ys[s] = naive.noise(c.tokens * c.width, s), naive.noise(c.tokens * c.width, 10 + s)
  end
  local model = naive.model(c)
  local plan = piper.compile(model, piper.strategy(), { batch = BATCH, dtype = "f64", verify = true })
  local run <close> = piper.train(plan, { data = piper.data.table { x = xs, y = ys }, seed = 5, lr = 0 })
  local w = {}
  for _, p in ipairs(model:params()) do w[p.name] = run:params(p.name) end
  local metrics
  for _, m in run:steps(2) do metrics = m end -- the second: nothing is left over from the first
  local losses, dropped, routes = naive.losses(c, w, xs, ys)
  for i, loss in ipairs(losses) do tap.near(metrics.losses[i], loss, 1e-13, name .. ": loss " .. i) end
  tap.is(#metrics.losses, #losses, name .. ": number of losses")
  tap.is(metrics.dropped, dropped, name .. ": dropped choices")
  local worst, where = 0, "nothing"
  for _, p in ipairs(model:params()) do
    local got = run:gradients(p.name)
    for i = 1, #got do
      local v = w[p.name][i]
      w[p.name][i] = v + STEP
      local more = sum(naive.losses(c, w, xs, ys, c.ties and routes))
      w[p.name][i] = v - STEP
      local less = sum(naive.losses(c, w, xs, ys, c.ties and routes))
      w[p.name][i] = v
      local off = math.abs(got[i] - (more - less) / (2 * STEP))
      if not (off <= worst) then worst, where = off, ("%s[%d]"):format(p.name, i) end
    end
  end
  if not tap.ok(worst < 2e-9, name .. ": gradients") then tap.diag(("%.3g in %s"):format(worst, where)) end
  return metrics, run
end

local function case(more)
  local c = { tokens = 6, width = 4, experts = 4, top_k = 2, hidden = 3 }
  for k, v in pairs(more) do c[k] = v end
  return c
end

for _, k in ipairs { 1, 2, 4 } do
  for _, factor in ipairs { false, 1.0, 0.5 } do
    for _, normalize in ipairs { true, false } do
      for _, aux in ipairs { 0, 0.3 } do
        compare(("top %d, capacity %s, %s, aux %g"):format(k, factor or "none", normalize and "normalised" or "not normalised", aux),
          case { top_k = k, capacity_factor = factor or nil, normalize = normalize, aux = aux })
      end
    end
  end
end
compare("one expert", case { experts = 1, top_k = 1, aux = 0.1 })
compare("more experts than choices: some are empty", case { tokens = 2, experts = 9, top_k = 2, aux = 0.1 })
compare("one token a sample", case { tokens = 1, experts = 3 })
compare("tokens on the batch's axis", case { flat = true, capacity_factor = 0.7, aux = 0.2 })
compare("width 1", case { width = 1, hidden = 1 })

-- Equal experts: everything goes to the lower ones, which take what they have room for.
local m = compare("equal experts", case { ties = true, capacity_factor = 1.0, aux = 0.2 })
tap.is(m.dropped, BATCH * 2 * (6 - 3), "equal experts: two of four take three of six tokens each")
compare("equal experts, room for all", case { ties = true, top_k = 3 })

-- An expert that gets no token has a gradient of zeros, not of what was there before.
do
  local c = case { ties = true, top_k = 1 }
  local xs, ys = { naive.noise(24, 1) }, { naive.noise(24, 2) }
  local plan = piper.compile(naive.model(c), piper.strategy(), { batch = 1 })
  local run <close> = piper.train(plan, { data = piper.data.table { x = xs, y = ys }, lr = 0 })
  for _ in run:steps(1) do end
  for i = 0, 3 do
    local most = 0
    for _, v in ipairs(run:gradients(("moe.experts.%d.up_proj.weight"):format(i))) do most = math.max(most, math.abs(v)) end
    tap.ok((most > 0) == (i == 0), ("only expert 0 has tokens: gradient of expert %d"):format(i))
  end
end

-- What is wrong is said at its line.
local function build(x, options)
  return function()
    piper.model("bad", function(t)
      local h = x == "param" and nn.param("p", { 3, 4 }) or t:input("x", x)
      nn.moe(h, "moe", options)
    end)
  end
end
local X = { "batch", 3, 4 }
local good = { experts = 4, top_k = 2, width = 3 }
local function with(more)
  local o = {}
  for k, v in pairs(good) do o[k] = v end
  for k, v in pairs(more) do o[k] = v end
  return o
end
tap.error_matches(build(X, with { top_k = 5 }), 'moe "moe": top_k is 5, but there are 4 experts')
tap.error_matches(build(X, with { capacity_factor = "all" }), 'moe "moe": capacity_factor is "all": it is a number above 0, or "none"')
tap.error_matches(build(X, with { capacity_factor = 0 }), "capacity_factor is 0")
tap.error_matches(build(X, with { capacity = 2 }), 'moe "moe": unknown field "capacity"')
tap.error_matches(build(X, with { experts = 5000, top_k = 1 }), "5000 experts")
tap.error_matches(build("param", good), 'moe "moe": input is %[3, 4%]: it has no batch')
tap.error_matches(build({ "batch" }, good), "it has no axis of features after the batch")
tap.error_matches(function()
  piper.model("bad", function(t)
    piper.annotate("EP", function() nn.moe(t:input("x", X), "moe", good) end)
  end)
end, '"EP" is inside "EP" already')
tap.done()
