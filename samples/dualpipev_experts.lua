-- DualPipeV with experts: in the main part every rank runs forward of one microbatch together with backward of
-- another (DeepSeek-V3), so that the all_to_all around the experts of one hides behind the compute of the
-- other. Two pipeline ranks of two devices each; experts are spread over the two (shard), everything else is
-- replicated with optimizer state and gradients divided (ZeRO-2). Prints schedule, plan and what of the
-- communication is hidden, then trains a small model on the bytes of this file.
--   piper samples/dualpipev_experts.lua [FILE...]
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local ranks, microbatches = 2, 8
local context, width = 32, 32

-- Two stages a rank. nn.moe cuts a stage into three chunks (attention and router, experts, the rest), which is
-- what members of a pair interleave by.
local model = piper.model("experts", function(m)
  local tokens, targets = m:input("tokens", { "batch", context }, "i32"), m:input("targets", { "batch", context }, "i32")
  local h
  for stage = 0, 2 * ranks - 1 do
    piper.annotate("PP", function()
      local name = "layers." .. stage
      if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 256, width = width, init = { normal = 0.5 } }) end
      h = h + nn.attention(nn.rmsnorm(h, name .. ".norm1"), name .. ".attn", { heads = 2, head_width = width // 2 })
      h = h + nn.moe(nn.rmsnorm(h, name .. ".norm2"), name .. ".mlp", { experts = 4, top_k = 1, width = 64, capacity_factor = 2 })
      if stage == 2 * ranks - 1 then m:loss(nn.cross_entropy(nn.linear(nn.rmsnorm(h, "norm"), "head", { out = 256 }), targets)) end
    end)
  end
end)

local sets = { { 0, 1 }, { 2, 3 } } -- devices of each pipeline rank
local strategy = piper.strategy()
strategy:add(schedules.dualpipev { ranks = ranks, microbatches = microbatches, devices = sets })
for rank, devices in ipairs(sets) do
  local stages = { rank - 1, 2 * ranks - rank } -- of a V
  strategy:replicate { filter = { PP = stages }, devices = devices, shard_grads = true }
  strategy:shard { filter = { PP = stages, EP = "*" }, devices = devices }
end

local plan = piper.compile(model, strategy, { batch = 2 * microbatches, optimizer = piper.adamw { lr = 3e-3 } })
print(plan:actions())
print(plan)           -- "members one after another": a step without overlap
print(plan:overlap()) -- what is exposed, and why

for _, row in ipairs(plan:overlap()) do
  if row.kind == "all_to_all" then print(("all_to_all: %.0f%% hidden"):format(100 * row.hidden / row.seconds)) end
end

local equal = plan:check_equivalence { steps = 2 }
print(("the same training as on one device: gradients differ by at most %.1g"):format(equal.grad))

local run = piper.train(plan, { data = piper.data.text(#arg > 0 and arg or { arg[0] }, { context = context }), seed = 1 })
for step, m in run:steps(40) do
  if step % 20 == 0 then print(("step %3d  loss %.2f"):format(step, m.loss)) end
end
run:close()
