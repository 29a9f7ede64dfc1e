-- What a step does to the parameters, computed again here from the gradients that the run reports: sgd
-- with momentum, adamw, clipping by the global norm, decay that spares one-dimensional parameters, rates
-- that change; on one device and over stages and replicas.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

-- Two stages: weights and biases, norms, a tied table, a frozen layer; two losses.
local model = piper.model("m", function(m)
  local x, y = m:input("x", { "batch", 4 }, "i32"), m:input("y", { "batch", 4 }, "i32")
  local h
  piper.annotate("PP", function()
    h = nn.embedding(x, "table", { vocab = 7, width = 6, init = { normal = 0.5 } })
    h = h + nn.linear(nn.rmsnorm(h, "norm"), "first", { out = 6, init = { normal = 0.4 } })
  end)
  piper.annotate("PP", function()
    h = h + nn.linear(h, "still", { out = 6, init = { normal = 0.4 } })
    h = nn.layernorm(h, "last")
    m:loss(nn.cross_entropy(nn.linear(h, "table", { out = 7, bias = false }), y))
    m:loss(nn.mean(h * h) * 0.1)
  end)
  m:freeze "^still"
end)

local function rows(salt)
  local out = {}
  for i = 1, 36 do
    out[i] = {}
    for j = 1, 4 do out[i][j] = (i * 5 + j * j * salt + (i * j) // 3) % 7 end
  end
  return out
end
local data = piper.data.table { x = rows(1), y = rows(3) }

-- The updates, element by element. 's' is the state of one parameter, zero at first.
local UPDATE = {}

function UPDATE.sgd(o, s, _, lr, w, g, decay)
  for i = 1, #w do
    local u = g[i] + decay * w[i]
    s[i] = o.momentum * (s[i] or 0) + u
    w[i] = w[i] - lr * s[i]
  end
end

function UPDATE.adamw(o, s, step, lr, w, g, decay)
  s.m, s.v = s.m or {}, s.v or {}
  for i = 1, #w do
    s.m[i] = o.beta1 * (s.m[i] or 0) + (1 - o.beta1) * g[i]
    s.v[i] = o.beta2 * (s.v[i] or 0) + (1 - o.beta2) * g[i] * g[i]
    local m, v = s.m[i] / (1 - o.beta1 ^ step), s.v[i] / (1 - o.beta2 ^ step)
    w[i] = w[i] - lr * (m / (math.sqrt(v) + o.eps) + decay * w[i])
  end
end

local function values(t)
  local out = {}
  for i, v in ipairs(t) do out[i] = v end
  return out
end

-- Largest difference of any element of any parameter from what the formulas give, over 'steps' steps; and
-- how often clipping had something to do.
local function farthest(plan, steps, lr)
  local options, names, state = plan.options, {}, {}
  local optimizer = options.optimizer
  local run <close> = piper.train(plan, { data = data, seed = 5, lr = lr })
  local trained, shape, want = {}, {}, {}
  for _, p in ipairs(plan.model:params()) do
    names[#names + 1] = p.name
    trained[p.name], state[p.name] = p.trained, {}
    want[p.name] = values(run:params(p.name))
    shape[p.name] = p.shape
  end
  local worst, clipped = { param = 0, norm = 0, loss = 0, lr = 0 }, 0
  for step, m in run:steps(steps) do
    local sum = 0
    for _, name in ipairs(names) do
      if trained[name] then
        for _, g in ipairs(run:gradients(name)) do sum = sum + g * g end
      end
    end
    local norm = math.sqrt(sum)
    local scale = options.clip_norm and math.min(1, options.clip_norm / norm) or 1
    if scale < 1 then clipped = clipped + 1 end
    local rate = lr and lr(step) or optimizer.lr
    worst.norm = math.max(worst.norm, math.abs(m.grad_norm - norm) / norm)
    worst.lr = math.max(worst.lr, math.abs(m.lr - rate))
    worst.loss = math.max(worst.loss, math.abs(m.loss - m.losses[1] - m.losses[2]))
    for _, name in ipairs(names) do
      local w, got = want[name], run:params(name)
      if trained[name] then
        local g = values(run:gradients(name))
        for i = 1, #g do g[i] = g[i] * scale end
        UPDATE[optimizer.kind](optimizer, state[name], step, rate, w, g, #shape[name] >= 2 and optimizer.weight_decay or 0)
      end
      for i = 1, #w do worst.param = math.max(worst.param, math.abs(w[i] - got[i])) end
    end
  end
  return worst, clipped
end

local OPTIMIZERS = {
  { "sgd", piper.sgd { lr = 0.2 } },
  { "sgd with momentum and decay", piper.sgd { lr = 0.1, momentum = 0.9, weight_decay = 0.05 } },
  { "adamw", piper.adamw { lr = 0.02 } },
  { "adamw with all its numbers", piper.adamw { lr = 0.01, betas = { 0.8, 0.95 }, eps = 1e-3, weight_decay = 0.3 } },
}
local STRATEGIES = {
  { "one device", piper.strategy() },
  { "2 stages on 2 devices each, 3 microbatches", exact.strategy("one_f_one_b", 2, 3, 2) },
}
local STEPS = 6
for _, o in ipairs(OPTIMIZERS) do
  for _, s in ipairs(STRATEGIES) do
    for _, clip in ipairs { false, 0.6 } do
      local plan = piper.compile(model, s[2], { batch = 12, dtype = "f64", optimizer = o[2], clip_norm = clip or nil })
      local worst, clipped = farthest(plan, STEPS)
      local name = ("%s, %s%s"):format(o[1], s[1], clip and ", clipped" or "")
      tap.near(worst.param, 0, 1e-13, name .. ": parameters")
      tap.near(worst.norm, 0, 1e-13, name .. ": the norm is that of all trained parameters, each once")
      if clip then tap.ok(clipped > 0, ("%s: %d of %d steps"):format(name, clipped, STEPS)) end
    end
  end
end
local plan = piper.compile(model, STRATEGIES[2][2], { batch = 12, dtype = "f64", optimizer = OPTIMIZERS[3][2], clip_norm = 1e3 })
local worst, clipped = farthest(plan, STEPS, piper.lr.cosine { peak = 0.05, warmup = 2, total = 5, floor = 0.01 })
tap.near(worst.param, 0, 1e-13, "a rate that changes")
tap.is(worst.lr, 0, "is the one of the step")
tap.near(worst.loss, 0, 1e-15, "loss is the sum of the losses")
tap.is(clipped, 0, "a norm below the limit is left as it is")
plan = piper.compile(model, STRATEGIES[2][2], { batch = 12, optimizer = OPTIMIZERS[2][2], clip_norm = 0.6 })
worst = farthest(plan, STEPS)
tap.near(worst.param, 0, 1e-5, "f32")
tap.done()
