-- A transformer trains to the weights of one device within the limits of design 5.8: rotary attention,
-- norms, swiglu, dropout, a tied head, AdamW, clipping, and targets of which an uneven share is ignored
-- in each microbatch and replica. EQUAL_SHORT=1 runs a covering part (for runs under random delays).
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local short = os.getenv "EQUAL_SHORT" == "1"
local CONTEXT, VOCAB, WIDTH = 7, 19, 8

local function model_of(stages)
  return piper.model("gpt", function(m)
    local tokens = m:input("tokens", { "batch", CONTEXT }, "i32")
    local targets = m:input("targets", { "batch", CONTEXT }, "i32")
    local h
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        if stage == 0 then
          h = nn.dropout(nn.embedding(tokens, "embed", { vocab = VOCAB, width = WIDTH, init = { normal = 0.5 } }), 0.1)
        end
        nn.scope("layers." .. stage, function()
          local a = nn.attention(nn.rmsnorm(h, "input_norm"), "self_attn",
            { heads = 4, kv_heads = 2, head_width = 4, rope = 10000, qk_norm = true, init = { normal = 0.3 } })
          h = h + nn.dropout(a, 0.2)
          h = h + nn.dropout(nn.swiglu(nn.layernorm(h, "post_norm"), "mlp", { hidden = 12, init = { normal = 0.3 } }), 0.2)
        end)
        if stage == stages - 1 then
          m:loss(nn.cross_entropy(nn.linear(nn.rmsnorm(h, "norm"), "embed", { out = VOCAB, bias = false }), targets))
        end
      end)
    end
  end)
end

-- Of sample i the last (5 i mod 8) targets are ignored: 0 to all 7.
local function data_of(n)
  local tokens, targets = {}, {}
  for i = 1, n do
    tokens[i], targets[i] = {}, {}
    for j = 1, CONTEXT do
      tokens[i][j] = (i * 13 + j * j * 7 + i * j) % VOCAB
      targets[i][j] = j > CONTEXT - (i * 5) % 8 and -100 or (i * 3 + j * 5) % VOCAB
    end
  end
  return piper.data.table { tokens = tokens, targets = targets }
end
local data = data_of(96)

local adamw = piper.adamw { lr = 0.01, betas = { 0.9, 0.95 }, weight_decay = 0.1 }
local function compile(model, strategy, batch)
  return piper.compile(model, strategy, { batch = batch, optimizer = adamw, clip_norm = 0.3 })
end

for _, stages in ipairs(short and { 4 } or { 1, 2, 4 }) do
  local model = model_of(stages)
  for _, schedule in ipairs { "gpipe", "one_f_one_b" } do
    for _, microbatches in ipairs(short and { 3 } or { 1, 2, 3, 8 }) do
      for devices = 1, 2 do
        local batch = microbatches == 8 and devices == 2 and 48 or 24
        local plan = compile(model, exact.strategy(schedule, stages, microbatches, devices), batch)
        local name = ("%d stages, %s, %d microbatches, %d devices"):format(stages, schedule, microbatches, devices)
        for _, dtype in ipairs { "f64", "f32" } do
          local fine, result = pcall(plan.check_equivalence, plan, { dtype = dtype, data = data })
          if not tap.ok(fine, name .. ", " .. dtype) then tap.diag(result) end
        end
      end
    end
  end
end

-- The same plan gives the same bits: twice, and whatever the delays and queues of this process are.
local plan = compile(model_of(4), exact.strategy("one_f_one_b", 4, 3, 2), 24)
local function bits()
  local run <close> = piper.train(plan, { data = data, seed = 11 })
  local out = {}
  for _, m in run:steps(4) do out[#out + 1] = ("%a %a"):format(m.loss, m.grad_norm) end
  for _, p in ipairs(plan.model:params()) do
    for _, v in ipairs(run:params(p.name)) do out[#out + 1] = ("%a"):format(v) end
  end
  return table.concat(out, " ")
end
local once = bits()
tap.is(bits(), once, "two runs of a plan: the same bits")
local path = os.getenv "EQUAL_BITS" -- the bits of other processes have to be these
if path then
  local f = io.open(path)
  if f then
    tap.is(once, f:read "a", "the bits of the run without delays")
    f:close()
  else
    f = assert(io.open(path, "w"))
    f:write(once)
    f:close()
  end
end
tap.done()
