-- Targets that a loss ignores: it is the mean over the targets present in the whole batch, however they
-- are spread over microbatches and replicas (the count is known before the first forward pass of the
-- loss). An uneven share is ignored everywhere here.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local short = os.getenv "EQUAL_SHORT" == "1"

local function first_step(plan, data)
  local run <close> = piper.train(plan, { data = data })
  local metrics
  for _, m in run:steps(1) do metrics = m end
  return metrics, run:gradients "scale"
end

-- Losses of the tokens are known: log(1 + e^z) with z = log(e^loss - 1).
local function logit(loss) return math.log(math.exp(loss) - 1) end
local known = piper.model("known", function(m)
  local x, y = m:input("x", { "batch", 8, 2 }), m:input("y", { "batch", 8 }, "i32")
  m:loss(nn.cross_entropy(x * nn.param("scale", { 1 }, { init = 1 }), y))
end)

local function rows(spec) -- { { present, loss }, ... } of each sample
  local x, y = {}, {}
  for i, s in ipairs(spec) do
    x[i], y[i] = {}, {}
    for j = 1, 8 do
      x[i][j] = { 0, logit(s[2]) }
      y[i][j] = j <= s[1] and 0 or -100
    end
  end
  return piper.data.table { x = x, y = y }
end

local function split(n, devices)
  local s = piper.strategy()
  s:split { num_microbatches = n }
  if devices then
    s:place { filter = {}, devices = devices }
    s:replicate { filter = {}, devices = devices }
  end
  return s
end

local uneven = rows { { 1, 4 }, { 7, 1 } }
for name, strategy in pairs {
  ["one device"] = piper.strategy(), ["two microbatches"] = split(2), ["two replicas"] = split(1, { 0, 1 }),
} do
  local plan = piper.compile(known, strategy, { batch = 2, dtype = "f64" })
  plan:verify()
  local m = first_step(plan, uneven)
  tap.near(m.loss, 1.375, 1e-12, name .. ": 1 token of loss 4 and 7 of loss 1 are 1.375 in the mean, not 2.5")
end

-- Nothing to learn from.
for name, strategy in pairs { ["one device"] = piper.strategy(), ["2 microbatches, 2 replicas"] = split(2, { 0, 1 }) } do
  local plan = piper.compile(known, strategy, { batch = 4, optimizer = piper.sgd { lr = 1 } })
  local m, grad = first_step(plan, rows { { 0, 1 }, { 0, 2 }, { 0, 3 }, { 0, 4 } })
  tap.ok(m.loss == 0 and m.grad_norm == 0 and grad[1] == 0, name .. ": no target at all: loss 0, gradient 0")
  m = first_step(plan, rows { { 0, 1 }, { 3, 2 }, { 0, 3 }, { 0, 4 } })
  tap.near(m.loss, 2, 1e-6, name .. ": all but one sample are ignored")
end

-- Samples of which an uneven share of targets is ignored: all, none, some.
local BATCH, CONTEXT, VOCAB = 24, 6, 11
local function noise(i) return (i * 7919 + i * i * 104729) % 1000003 end
local function samples(ignore)
  local tokens, targets = {}, {}
  for i = 1, 3 * BATCH do
    tokens[i], targets[i] = {}, {}
    local share = (i * 5) % 7 -- of 6: none to all
    for j = 1, CONTEXT do
      tokens[i][j] = noise(i * 31 + j) % VOCAB
      targets[i][j] = noise(i * 17 + j) % 6 < share and ignore or noise(i + 100 * j) % VOCAB
    end
  end
  return piper.data.table { tokens = tokens, targets = targets }
end

local function hidden(h, s) return h + nn.relu(nn.linear(h, "hidden." .. s, { out = 16, init = { normal = 0.3 } })) end

-- 'loss' adds the losses to the model, in its last stage.
local function text_model(stages, tied, loss)
  return piper.model("text", function(m)
    local tokens, targets = m:input("tokens", { "batch", CONTEXT }, "i32"), m:input("targets", { "batch", CONTEXT }, "i32")
    local early = loss == "early" and targets:reshape { { "batch", CONTEXT } } -- outside every stage
    local h
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        if s == 0 then h = nn.embedding(tokens, "embed", { vocab = VOCAB, width = 16, init = { normal = 0.5 } }) end
        h = hidden(h, s)
        if s < stages - 1 then return end
        local logits = nn.linear(h, tied and "embed" or "head", { out = VOCAB, bias = not tied })
        if loss == "early" then
          m:loss(nn.cross_entropy(logits:reshape { { "batch", CONTEXT }, VOCAB }, early))
        elseif loss == "several" then
          m:loss(nn.cross_entropy(logits, targets, { ignore_index = 3 }) * 0.5)
          m:loss(nn.cross_entropy(logits, targets, { ignore_index = 5 }))
          m:loss(nn.mean(h * h) * 0.01)
        elseif loss == "part" then -- the last positions only, and half of the classes' sum
          m:loss(nn.cross_entropy(logits:slice(1, 2, CONTEXT), targets:slice(1, 2, CONTEXT)))
        else
          m:loss(nn.cross_entropy(logits, targets))
        end
      end)
    end
  end)
end

local function equal(name, model, strategy, data, optimizer, dtype)
  local plan = piper.compile(model, strategy, { batch = BATCH, optimizer = optimizer or piper.adamw { lr = 0.01 }, clip_norm = 0.5, verify = true })
  local fine, result = pcall(plan.check_equivalence, plan, { data = data, dtype = dtype })
  if not tap.ok(fine, name) then tap.diag(result) end
  return plan
end

local ignored = samples(-100)
for stages, tied in pairs(short and { [2] = true } or { [1] = false, [2] = true, [4] = false }) do
  local model = text_model(stages, tied)
  for _, schedule in ipairs { "gpipe", "one_f_one_b" } do
    for _, microbatches in ipairs { 1, 3, 4 } do
      for devices = 1, 2 do
        equal(("%d stages, %s, %d microbatches, %d devices"):format(stages, schedule, microbatches, devices), model,
          exact.strategy(schedule, stages, microbatches, devices), ignored)
      end
    end
  end
end
local stages = exact.strategy("one_f_one_b", 4, 3, 2)
equal("f32", text_model(4, true), stages, ignored, piper.sgd { lr = 0.1, momentum = 0.9 }, "f32")
equal("stages on devices of different number", text_model(4), exact.strategy("one_f_one_b", 4, 3, nil, { 1, 2, 4, 2 }), ignored)
equal("a class is what is ignored, another one by the second loss", text_model(4, false, "several"), stages, samples(3))
equal("a part of the targets", text_model(4, false, "part"), stages, ignored)
equal("targets under another shape", text_model(4, false, "early"), piper.strategy(), ignored)
local s = exact.strategy("one_f_one_b", 4, 3, 1)
s:place { filter = { PP = false }, devices = { 0 } }
equal("targets that come from another rank", text_model(4, false, "early"), s, ignored)

-- Microbatches of the loss on different devices: their counts are joined all the same.
s = piper.strategy()
s:split { num_microbatches = 2 }
s:place { filter = { MB = 0 }, devices = { 0 } }
s:place { filter = { MB = 1 }, devices = { 1 } }
equal("microbatches on devices of their own", text_model(2, true), s, ignored)

-- The nodes: one COUNT for each forward pass of the loss, one reduction, before everything else.
local function dump_of(model, strategy)
  return piper.compile(model, strategy, { batch = BATCH }):dump "order"
end
local function nodes(dump, kind)
  local n = 0
  for line in dump:gmatch "[^\n]+" do
    if line:find("^%d+ " .. kind .. " ") then n = n + 1 end
  end
  return n
end
local dump = dump_of(text_model(4, false), stages)
tap.is(nodes(dump, "count"), 3, "a COUNT for each microbatch")
tap.like(dump, "all_reduce tensor=counts%(%d+%) devs=6%-7 stream=dp_stream", "summed over the devices of the loss")
tap.like(tostring(piper.compile(text_model(4, false), stages, { batch = BATCH })), "count 3", "print(plan) lists them")
-- An input that an embedding reads as well holds ids only: nothing can be ignored, nothing is counted.
local same = piper.model("same", function(m)
  local x = m:input("x", { "batch", 4 }, "i32")
  m:loss(nn.cross_entropy(nn.embedding(x, "e", { vocab = 5, width = 5 }), x))
end)
tap.is(nodes(dump_of(same, piper.strategy()), "count"), 0, "no COUNT where no target can be ignored")
tap.done()
