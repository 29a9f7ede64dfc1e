-- run:evaluate: the losses of other data with the parameters of the moment, by the forward passes of the
-- same strategy; training goes on as if nothing had been.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local short = os.getenv "EQUAL_SHORT" == "1"
local BATCH, CONTEXT, VOCAB = 24, 6, 17

-- A model with what behaves differently here: dropout, values kept for backward, ignored targets, several
-- losses, a tied table, a frozen layer.
local function model_of(stages, dropout)
  return piper.model("m", function(m)
    local tokens, targets = m:input("tokens", { "batch", CONTEXT }, "i32"), m:input("targets", { "batch", CONTEXT }, "i32")
    local h
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        if s == 0 then h = nn.embedding(tokens, "table", { vocab = VOCAB, width = 8, init = { normal = 0.5 } }) end
        local x = nn.rmsnorm(h, "norm." .. s)
        if s == 1 then x = nn.attention(x, "attention", { heads = 2, head_width = 4, init = { normal = 0.4 } }) end
        h = h + nn.dropout(nn.gelu(nn.linear(x, "hidden." .. s, { out = 8, init = { normal = 0.4 } })), dropout)
        if s < stages - 1 then return end
        m:loss(nn.cross_entropy(nn.linear(h, "table", { out = VOCAB, bias = false }), targets))
        m:loss(nn.mean(h * h) * 0.1)
        m:loss(nn.cross_entropy(nn.linear(h, "head", { out = VOCAB }), targets, { ignore_index = 3 }) * 0.5)
      end)
    end
    m:freeze "^norm%.0"
  end)
end

local function samples(n, salt)
  local tokens, targets = {}, {}
  for i = 1, n do
    tokens[i], targets[i] = {}, {}
    for j = 1, CONTEXT do
      tokens[i][j] = (i * 31 + j * j * salt + i * j) % VOCAB
      targets[i][j] = (i + j * salt) % (2 + i % 4) == 0 and 3 or (i * 7 + j * 5 + salt) % VOCAB
    end
  end
  return piper.data.table { tokens = tokens, targets = targets }
end
local train, validation = samples(3 * BATCH, 1), samples(4 * BATCH, 2)
local adamw = piper.adamw { lr = 0.02 }

local function compile(model, strategy, options)
  local o = { batch = BATCH, dtype = "f64", optimizer = adamw, clip_norm = 0.5, verify = true }
  for k, v in pairs(options or {}) do o[k] = v end
  return piper.compile(model, strategy, o)
end

local function bits(t)
  local out = {}
  for i, v in ipairs(t) do out[i] = ("%a"):format(v) end
  return table.concat(out, " ")
end

-- Three steps and two more; between them, where 'between' is given, that. Everything that a run can be
-- asked for, as text, and what 'between' returned.
local function history(plan, between)
  local run <close> = piper.train(plan, { data = train, seed = 2 })
  local out, got = {}, nil
  for part = 1, 2 do
    for _, m in run:steps(part == 1 and 3 or 2) do out[#out + 1] = bits(m.losses) .. bits { m.grad_norm } end
    if part == 1 and between then got = between(run) end
    for _, p in ipairs(plan.model:params()) do
      out[#out + 1] = p.name .. bits(run:params(p.name)) .. bits(run:gradients(p.name))
    end
  end
  return table.concat(out, "\n"), got
end

-- The same parameters on one device.
local function reference(run, model, data, batches)
  local one <close> = piper.train(compile(model, piper.strategy()), { data = data, seed = 2 })
  for _, p in ipairs(model:params()) do one:set_params(p.name, run:params(p.name)) end
  return one:evaluate { data = data, batches = batches }
end

local function same_losses(a, b, limit)
  local worst = math.abs(a.loss - b.loss)
  for l, x in ipairs(a.losses) do worst = math.max(worst, math.abs(x - b.losses[l])) end
  return worst <= limit and a.tokens == b.tokens and a.batches == b.batches, worst
end

local function try(name, model, strategy, options)
  local plan = compile(model, strategy, options)
  local plain = history(plan)
  local first, memory
  local disturbed, got = history(plan, function(run)
    memory = run:memory()
    first = run:evaluate { data = validation }
    local again, want = run:evaluate { data = validation }, reference(run, model, validation)
    local fine, worst = same_losses(first, want, options and options.dtype == "f32" and 1e-5 or 1e-12)
    if not fine then tap.diag(("%s: off by %g"):format(name, worst)) end
    for rank, m in pairs(run:memory()) do
      for what, bytes in pairs(m) do fine = fine and memory[rank][what] == bytes end
    end
    return fine and bits(first.losses) == bits(again.losses) and first.batches == 4
  end)
  tap.ok(got, name .. ": the loss of one device, the same again, no more memory")
  if not tap.ok(disturbed == plain, name .. ": training has not noticed") then
    local a, b = disturbed:gmatch "[^\n]+", plain:gmatch "[^\n]+"
    repeat
      local x, y = a(), b()
      if x ~= y then tap.diag(x:sub(1, 200) .. "\n instead of " .. y:sub(1, 200)) end
    until x ~= y or not x
  end
end

-- ---- strategies -------------------------------------------------------------------------------

local function strategy(fill)
  local s = piper.strategy()
  fill(s)
  return s
end
local four = model_of(4, 0.3)
try("4 stages, 1F1B, 3 microbatches, 2 devices each", four, exact.strategy("one_f_one_b", 4, 3, 2))
if not short then
  try("one device", model_of(1, 0.3), piper.strategy())
  try("one device, 4 microbatches", model_of(2, 0.3), strategy(function(s) s:split { num_microbatches = 4 } end))
  try("4 stages, gpipe", four, exact.strategy("gpipe", 4, 4, 1))
  try("f32", four, exact.strategy("one_f_one_b", 4, 4, 1), { dtype = "f32" })
  try("stages on device sets of different size", four, exact.strategy("one_f_one_b", 4, 3, nil, { 1, 2, 4, 2 }))
  try("backward in halves", four, strategy(function(s) s:add(piper.schedules.zb_h1 { ranks = 4, microbatches = 8 }) end))
  try("two stages a rank", four, strategy(function(s)
    s:add(piper.schedules.interleaved_one_f_one_b { ranks = 2, microbatches = 4, stages_per_rank = 2 })
  end))
  try("overlapped forward and backward, V-shaped", four, strategy(function(s)
    s:add(piper.schedules.dualpipev { ranks = 2, microbatches = 8 })
  end), { batch = BATCH })
  try("recompute", four, strategy(function(s)
    s:add(piper.schedules.one_f_one_b { ranks = 4, microbatches = 4 })
    s:recompute { filter = { PP = { 1, 2 } } }
  end))
  for _, flag in ipairs { "shard_optimizer", "shard_grads", "shard_params" } do
    for _, reduce in ipairs { "step", "microbatch" } do
      try(("%s, reduced by the %s"):format(flag, reduce), four, strategy(function(s)
        s:split { num_microbatches = 2 }
        s:place { filter = {}, devices = { 0, 1, 2 } }
        s:replicate { filter = {}, devices = { 0, 1, 2 }, [flag] = true, reduce = reduce, bucket_size = 1 / 4096 }
      end))
    end
  end
  try("stages with divided parameters, two of them on a set", four, (function()
    local s = piper.strategy()
    s:add(piper.schedules.interleaved_one_f_one_b { ranks = 2, microbatches = 4, stages_per_rank = 2, devices = { { 0, 1 }, { 2, 3 } } })
    for r = 0, 1 do s:replicate { filter = { PP = { r, r + 2 } }, devices = { 2 * r, 2 * r + 1 }, shard_params = true, prefetch = 1 } end
    return s
  end)(), { batch = 24 })
  try("forward and backward placed by two directives", four, strategy(function(s)
    for p = 0, 3 do
      s:place { filter = { PP = p, PASS = "F" }, devices = { p } }
      s:place { filter = { PP = p, PASS = "B" }, devices = { p } }
    end
  end))
  try("orders of both passes in one group", four, strategy(function(s)
    s:split { num_microbatches = 2 }
    s:order { filters = { { MB = 0, PASS = "F" }, { { MB = 1, PASS = "F" }, { MB = 0, PASS = "B" } }, { MB = 1, PASS = "B" } } }
  end))
  try("no optimizer state, no clipping", four, exact.strategy("one_f_one_b", 4, 3, 1), { optimizer = piper.sgd { lr = 0.1 } })
end

-- ---- what it is the loss of -------------------------------------------------------------------

-- Without dropout the loss of a step is what evaluate gives for its samples before it.
local plan = compile(model_of(4, 0), exact.strategy("one_f_one_b", 4, 3, 2))
do
  local run <close> = piper.train(plan, { data = train })
  for _ in run:steps(3) do end -- the next step is of the first samples again
  local before = run:evaluate { data = train, batches = 1 }
  for _, m in run:steps(1) do
    tap.near(before.loss, m.loss, 1e-12, "the loss that the next step reports")
    tap.near(before.losses[3], m.losses[3], 1e-12, "each term of it")
  end
  local after = run:evaluate { data = train, batches = 1 }
  tap.ok(after.loss < before.loss - 1e-4, "parameters are those of the moment")
  run:set_params("head.bias", (function()
    local out = {}
    for i = 1, VOCAB do out[i] = i == 1 and 30 or 0 end
    return out
  end)())
  tap.ok(run:evaluate { data = train, batches = 1 }.losses[3] > after.losses[3] + 1, "also where set_params has set them")
end

-- Dropout is off.
do
  local heavy, none = model_of(2, 0.9), model_of(2, 0)
  local a <close> = piper.train(compile(heavy, exact.strategy("gpipe", 2, 2, 1)), { data = train, seed = 4 })
  local b <close> = piper.train(compile(none, piper.strategy()), { data = train, seed = 4 })
  local x, y = a:evaluate { data = validation }, b:evaluate { data = validation }
  tap.near(x.loss, y.loss, 1e-12, "dropout is off")
end

-- A mean over targets is that of all batches' targets: 1 of loss 4 and 7 of loss 1.
local function logit(loss) return math.log(math.exp(loss) - 1) end
local known = piper.model("known", function(m)
  local x, y = m:input("x", { "batch", 8, 2 }), m:input("y", { "batch", 8 }, "i32")
  local p = nn.param("scale", { 1 }, { init = 1 })
  m:loss(nn.cross_entropy(x * p, y) * 2)
  m:loss(nn.mean(x * p))
end)
local x, y = {}, {}
for i, s in ipairs { { 1, 4 }, { 7, 1 } } do
  x[i], y[i] = {}, {}
  for j = 1, 8 do
    x[i][j] = { 0, logit(s[2]) }
    y[i][j] = j <= s[1] and 0 or -100
  end
end
do
  local run <close> = piper.train(piper.compile(known, piper.strategy(), { batch = 1, dtype = "f64" }), { data = piper.data.table { x = x, y = y } })
  local e = run:evaluate { data = piper.data.table { x = x, y = y } }
  tap.near(e.losses[1], 2 * 1.375, 1e-12, "a mean over targets is that of all batches together")
  tap.near(e.losses[2], (logit(4) + logit(1)) / 4, 1e-12, "other losses are means over the batches")
  tap.near(e.loss, e.losses[1] + e.losses[2], 1e-15, "their sum")
  tap.is(e.tokens, 8, "targets that are present are counted")
  tap.is(e.batches, 2, "all of the data")
  for j = 1, 8 do y[1][j], y[2][j] = -100, -100 end
  e = run:evaluate { data = piper.data.table { x = x, y = y }, batches = 3 }
  tap.ok(e.losses[1] == 0 and e.tokens == 0 and e.batches == 3, "no target at all: loss 0")
end

-- A first stage that runs far ahead of the second, once no backward pass holds it up, needs more than a step.
do
  local wide = piper.model("wide", function(m)
    local h = m:input("x", { "batch", 64 })
    for s = 0, 1 do
      piper.annotate("PP", function()
        for l = 0, s * 8 do h = nn.linear(h, ("layer%d.%d"):format(s, l), { out = 64, init = { normal = 0.1 } }) end
        if s == 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
  local rows64 = {}
  for i = 1, 1024 do
    rows64[i] = {}
    for j = 1, 64 do rows64[i][j] = math.sin(i * j) end
  end
  local data = piper.data.table { x = rows64 }
  local options = { batch = 1024, dtype = "f64", optimizer = piper.sgd { lr = 0 } }
  local p = piper.compile(wide, exact.strategy("one_f_one_b", 2, 64, 1), options)
  local run <close> = piper.train(p, { data = data })
  local e, loss, memory = run:evaluate { data = data }, nil, run:memory()
  for _, m in run:steps(1) do loss = m.loss end
  tap.near(e.loss / loss, 1, 1e-12, "an evaluation that needs more memory than a step")
  local m, forward = memory[0], rawget(run, "forward"):memory()[0]
  tap.ok(forward.peak > m.peak - m.params - m.grads - m.optimizer, "which has its own for as long as it lasts")
  tap.is(m.peak, p:memory()[0].peak, "and the run's stays what it was")
end

do -- a rank that keeps nothing, since its stage has no parameters
  local data = piper.data.table { x = { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } } }
  local half = piper.model("half", function(m)
    local h = m:input("x", { "batch", 4 })
    piper.annotate("PP", function() h = nn.linear(h, "a", { out = 4, bias = false, init = 0.25 }) end)
    piper.annotate("PP", function() m:loss(nn.mean(nn.relu(h))) end)
  end)
  local s = piper.strategy()
  for stage = 0, 1 do s:place { filter = { PP = stage }, devices = { stage } } end
  local p = piper.compile(half, s, { batch = 2, optimizer = piper.sgd { lr = 0 } })
  local run <close> = piper.train(p, { data = data })
  tap.is(run:evaluate { data = data }.loss, 4.5, "a rank without parameters")
  for _, m in run:steps(1) do tap.is(m.loss, 4.5, "and training goes on beside it") end
end

-- ---- what can be wrong ------------------------------------------------------------------------

local run = piper.train(plan, { data = train })
local function fails(pattern, spec)
  tap.error_matches(function() run:evaluate(spec) end, "^%S*evaluate.lua:%d+: " .. pattern, pattern)
end
fails('evaluate: field "data" is missing; piper.data.text', {})
fails("evaluate: data is 3;", { data = 3 })
fails('evaluate: field "batches" is 0', { data = train, batches = 0 })
fails('evaluate: unknown field "batch" %(fields: batches, data%)', { data = train, batch = 3 })
fails('evaluate: the model\'s input "targets" is not in the data', { data = piper.data.table { tokens = { { 1, 2, 3, 4, 5, 6 } } } })
fails('evaluate: the model\'s input "tokens" takes 6 values a sample, the data %(table%) has 2',
  { data = piper.data.table { tokens = { { 1, 2 } }, targets = { { 1, 2 } } } })
fails("data: tokens of sample 0 is 17; it runs from 0 to 16",
  { data = piper.data.table { tokens = { { 1, 2, 3, 4, 5, VOCAB } }, targets = { { 1, 2, 3, 4, 5, 6 } } } })
local good, before = run:params "head.bias", run:evaluate { data = validation, batches = 1 }
local broken = {}
for i = 1, VOCAB do broken[i] = 0 / 0 end
run:set_params("head.bias", broken)
fails("rank [67], evaluation batch 1, 3F%d .*: loss is nan", { data = validation })
run:set_params("head.bias", good)
tap.is(run:evaluate { data = validation, batches = 1 }.loss, before.loss, "after a failure it can be tried again")
for _, m in run:steps(1) do tap.ok(m.loss == m.loss, "and training goes on") end
run:close()
fails("run: it is closed", { data = train })
tap.done()
