-- ZBV: zero-bubble pipelining on a V. Stage 7 sits with stage 0, 6 with 1, and so on, and backward
-- passes run in two halves, of which the second fills what would be idle time. Prints the schedule
-- beside 1F1B, then trains a small model with it on the bytes of this file.
--   piper samples/zbv.lua [FILE...]
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local ranks, microbatches = 4, 8
local stages, context, width = 2 * ranks, 32, 32

-- Eight stages: the byte's embedding, hidden layers, and in the last one the loss.
local model = piper.model("bytes", function(m)
  local tokens = m:input("tokens", { "batch", context }, "i32")
  local targets = m:input("targets", { "batch", context }, "i32")
  local h
  for stage = 0, stages - 1 do
    piper.annotate("PP", function()
      if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 256, width = width, init = { normal = 0.5 } }) end
      h = h + nn.relu(nn.linear(h, "hidden." .. stage, { out = width, init = { normal = 0.1 } }))
      if stage == stages - 1 then m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 256 }), targets)) end
    end)
  end
end)

-- What it is worth: one unit of time for the forward pass of an eighth of the model.
local zbv = schedules.zbv { ranks = ranks, microbatches = microbatches }
local plain = schedules.one_f_one_b { ranks = ranks, microbatches = microbatches }
local function show(name, list, unit)
  local m = schedules.metrics(list, { F = unit, I = unit, W = unit })
  print(("%-6s step %2.0f, idle %4.1f%% of the time, rank 0 holds %.0f eighths of the model's activations"):format(name,
    m.makespan, 100 * m.bubble, m.peak[0] * unit))
end
show("1F1B", plain, 2)
show("ZBV", zbv, 1)

local strategy = piper.strategy():add(zbv)
local plan = piper.compile(model, strategy, { batch = 16, optimizer = piper.adamw { lr = 3e-3 } })
print(plan:actions())
local equal = plan:check_equivalence { steps = 2 }
print(("the same training as on one device: gradients differ by at most %.1g"):format(equal.grad))

local files = #arg > 0 and arg or { arg[0] }
local run = piper.train(plan, { data = piper.data.text(files, { context = context }), seed = 1 })
for step, m in run:steps(60) do
  if step % 20 == 0 then print(("step %3d  loss %.2f"):format(step, m.loss)) end
end
run:close()
