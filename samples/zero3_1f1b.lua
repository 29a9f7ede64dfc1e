-- One forward, one backward (1F1B) with ZeRO-3: two stages of two devices each, of which every device keeps half of
-- the parameters, gradients and optimizer state of its stage. Each pass gathers the parameters it reads, layer by layer,
-- and drops them again; gradients are reduced after each backward pass. Prints what that saves and what it
-- communicates beside plain data parallelism, then trains a small model on the bytes of this file.
--   piper samples/zero3_1f1b.lua [FILE...]
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local ranks, microbatches = 2, 4
local context, width = 32, 64

local model = piper.model("bytes", function(m)
  local tokens, targets = m:input("tokens", { "batch", context }, "i32"), m:input("targets", { "batch", context }, "i32")
  local h
  for stage = 0, ranks - 1 do
    piper.annotate("PP", function()
      -- A scope each, so that each is gathered on its own.
      local function layer(fn) piper.annotate("LAYER", fn) end
      if stage == 0 then
        layer(function() h = nn.embedding(tokens, "embed", { vocab = 256, width = width, init = { normal = 0.5 } }) end)
      end
      for l = 0, 2 do
        layer(function()
          local name = ("layers.%d"):format(3 * stage + l)
          h = h + nn.swiglu(nn.rmsnorm(h, name .. ".norm"), name .. ".mlp", { hidden = 4 * width })
        end)
      end
      if stage == ranks - 1 then
        layer(function() m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 256 }), targets)) end)
      end
    end)
  end
end)

-- 'flags' say what replicate divides: nothing, shard_optimizer (ZeRO-1), shard_grads (ZeRO-2), shard_params (ZeRO-3).
local function plan_of(flags)
  local s = piper.strategy():add(schedules.one_f_one_b { ranks = ranks, microbatches = microbatches, devices = { { 0, 1 }, { 2, 3 } } })
  for stage = 0, ranks - 1 do
    local spec = { filter = { PP = stage }, devices = { 2 * stage, 2 * stage + 1 }, reduce_stream = "dp_stream", gather_stream = "ag_stream" }
    for k, v in pairs(flags) do spec[k] = v end
    s:replicate(spec)
  end
  return piper.compile(model, s, { batch = 16, optimizer = piper.adamw { lr = 3e-3 } })
end

local function show(name, plan)
  local m, bytes, calls = plan:memory()[0], 0, 0
  for _, c in ipairs(plan:communication()) do
    if c.bucket then calls, bytes = calls + c.calls, bytes + c.bytes end
  end
  print(("%-24s rank 0 holds %6.1f KiB of model state; %3d gathers and reductions a step, %7.1f KiB"):format(name,
    (m.params + m.grads + m.optimizer) / 1024, calls, bytes / 1024))
end

-- Where gradients are reduced once a step (reduce = "step", the default) all of them are held until then at any level.
-- ZeRO-2 holds its share of them besides, so at the peak it needs more than ZeRO-1; and ZeRO-3 saves
-- no more than ZeRO-2 here: of so few layers, those gathered at once and the share are as much as all parameters. (An
-- all_reduce moves as much as a reduce_scatter and an all_gather, which count as two: ZeRO-1 costs what plain costs.)
-- reduce = "microbatch" makes whole gradients short-lived: that is what saves. prefetch is how many uses ahead parameters arrive: 0 holds least, but then
-- every gather is waited for.
local zero3 = { shard_params = true, reduce = "microbatch" }
show("plain", plan_of {})
show("ZeRO-1", plan_of { shard_optimizer = true })
show("ZeRO-2, reduce by step", plan_of { shard_grads = true })
show("ZeRO-2", plan_of { shard_grads = true, reduce = "microbatch" })
show("ZeRO-3, reduce by step", plan_of { shard_params = true })
show("ZeRO-3", plan_of(zero3))
show("ZeRO-3, prefetch 0", plan_of { shard_params = true, reduce = "microbatch", prefetch = 0 })

local plan = plan_of(zero3)
print(plan:overlap()) -- how much of the gathers hides behind compute
local equal = plan:check_equivalence { steps = 2 }
print(("the same training as on one device: gradients differ by at most %.1g"):format(equal.grad))

local run = piper.train(plan, { data = piper.data.text(#arg > 0 and arg or { arg[0] }, { context = context }), seed = 1 })
for step, m in run:steps(60) do
  if step % 20 == 0 then print(("step %3d  loss %.2f"):format(step, m.loss)) end
end
run:close()
