-- First run: a small language model learns real text over four pipeline stages, each a CPU rank.
--   piper samples/first.lua [FILE...]     (default: the licence texts of every Debian system)
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local stages, microbatches = 4, 8
local batch, context, width = 64, 64, 128

-- The model: the embedding of a byte, hidden layers, and from them the next byte. Every call of
-- piper.annotate("PP", ...) makes the next pipeline stage: PP = 0, 1, 2, 3.
local model = piper.model("first", function(m)
  local tokens = m:input("tokens", { "batch", context }, "i32")
  local targets = m:input("targets", { "batch", context }, "i32")
  local h
  piper.annotate("PP", function() h = nn.embedding(tokens, "embed", { vocab = 256, width = width }) end)
  for layer = 1, stages - 2 do
    piper.annotate("PP", function() h = h + nn.relu(nn.linear(h, "hidden." .. layer, { out = width })) end)
  end
  piper.annotate("PP", function() m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 256 }), targets)) end)
end)

-- The strategy: stage s on rank s, eight microbatches, one forward and one backward in turn.
local strategy = piper.strategy()
strategy:add(schedules.one_f_one_b { ranks = stages, microbatches = microbatches })

local plan = piper.compile(model, strategy, { batch = batch, optimizer = piper.adamw { lr = 3e-3 } })
print(plan)
print(plan:actions())

local texts = #arg > 0 and arg or {}
if #arg == 0 then
  for name in io.popen "find /usr/share/common-licenses -type f | sort":lines() do texts[#texts + 1] = name end
end
local run = piper.train(plan, { data = piper.data.text(texts, { context = context }), seed = 1 })
for step, m in run:steps(300) do
  if step % 25 == 0 then
    print(("step %3d  loss %.2f  %6.0f tokens/s"):format(step, m.loss, m.tokens_per_second))
  end
end

local predicted, actual = plan:memory(), run:memory()
for rank = 0, stages - 1 do
  print(("rank %d: %9d bytes predicted, %9d allocated"):format(rank, predicted[rank].peak, actual[rank].peak))
end
run:close()
