-- DualPipe: two pipelines through the same ranks, one from each end. The first half of the
-- microbatches runs stage s on rank s, the second half on rank 3 - s, so every rank has forward work
-- of one direction to overlap with backward work of the other; both copies of a stage are one
-- parameter. Prints schedule and placement, then trains a small model on the bytes of this file.
--   piper samples/dualpipe.lua [FILE...]
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local ranks, microbatches = 4, 8
local context, width = 32, 32

local model = piper.model("bytes", function(m)
  local tokens = m:input("tokens", { "batch", context }, "i32")
  local targets = m:input("targets", { "batch", context }, "i32")
  local h
  for stage = 0, ranks - 1 do
    piper.annotate("PP", function()
      if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 256, width = width, init = { normal = 0.5 } }) end
      h = h + nn.relu(nn.linear(h, "hidden." .. stage, { out = width, init = { normal = 0.1 } }))
      if stage == ranks - 1 then m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 256 }), targets)) end
    end)
  end
end)

local strategy = piper.strategy():add(schedules.dualpipe { ranks = ranks, microbatches = microbatches })
for _, d in ipairs(strategy.directives) do
  if d.op == "place" then
    print(("stage %d of microbatches %s on rank %d"):format(d.filter.PP, table.concat(d.filter.MB, " "), d.devices[1]))
  end
end

local plan = piper.compile(model, strategy, { batch = 16, optimizer = piper.adamw { lr = 3e-3 } })
print(plan:actions()) -- (0F3+3B5): forward of stage 0 overlaps with backward of stage 3
-- "members one after another" would take about as long as predicted: members here have no communication inside that the
-- other one could hide. dualpipev_experts.lua has some, and shows the gain.
print(plan)           -- the copies' gradients are added up over ranks 0 and 3, and 1 and 2

-- An overlapped pair takes less time than its halves where communication hides behind compute.
for _, pair in ipairs { 3, 2.5, 2 } do
  local m = schedules.metrics(strategy, { pair_cost = pair })
  print(("if a pair takes %.1f instead of 3, a step takes %g (1F1B: 33)"):format(pair, m.makespan))
end

local equal = plan:check_equivalence { steps = 2 }
print(("the same training as on one device: gradients differ by at most %.1g"):format(equal.grad))

local files = #arg > 0 and arg or { arg[0] }
local run = piper.train(plan, { data = piper.data.text(files, { context = context }), seed = 1 })
for step, m in run:steps(60) do
  if step % 20 == 0 then print(("step %3d  loss %.2f"):format(step, m.loss)) end
end
run:close()
