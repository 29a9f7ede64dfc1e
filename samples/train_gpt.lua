-- A transformer learns real text over four pipeline stages, each a CPU rank: rotary positions, causal
-- attention, swiglu, AdamW, cosine learning rate, 1F1B. This is what `./bootstrap demo` runs.
--   piper samples/train_gpt.lua [FILE...]     (default: the licence texts of every Debian system)
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local stages, microbatches, steps = 4, 8, 200
local batch, context, width = 32, 128, 128

-- One layer: attention and swiglu, each on a normalised input and added to the residual stream.
local function layer(h)
  h = h + nn.attention(nn.rmsnorm(h, "input_layernorm"), "self_attn", { heads = 4, head_width = width // 4, rope = 10000 })
  return h + nn.swiglu(nn.rmsnorm(h, "post_attention_layernorm"), "mlp", { hidden = 3 * width })
end

local model = piper.model("gpt", function(m)
  local tokens = m:input("tokens", { "batch", context }, "i32")
  local targets = m:input("targets", { "batch", context }, "i32")
  local h
  for stage = 0, stages - 1 do
    piper.annotate("PP", function() -- PP = 0, 1, 2, 3: one layer each
      if stage == 0 then h = nn.embedding(tokens, "embed_tokens", { vocab = 256, width = width }) end
      nn.scope("layers." .. stage, function() h = layer(h) end)
      if stage == stages - 1 then
        local logits = nn.linear(nn.rmsnorm(h, "norm"), "lm_head", { out = 256, bias = false })
        m:loss(nn.cross_entropy(logits, targets)) -- mean over the batch's tokens, in nats
      end
    end)
  end
end)

local strategy = piper.strategy()
strategy:add(schedules.one_f_one_b { ranks = stages, microbatches = microbatches })

local plan = piper.compile(model, strategy, {
  batch = batch, clip_norm = 1.0,
  optimizer = piper.adamw { lr = 3e-3, betas = { 0.9, 0.95 }, weight_decay = 0.1 },
})
print(plan)

local texts = {}
for _, path in ipairs(arg) do texts[#texts + 1] = path end
if #texts == 0 then
  for path in io.popen "find /usr/share/common-licenses -type f | sort":lines() do texts[#texts + 1] = path end
end
local run = piper.train(plan, {
  data = piper.data.text(texts, { context = context }), seed = 1,
  lr = piper.lr.cosine { peak = 3e-3, warmup = 20, total = steps, floor = 3e-4 },
})
for step, m in run:steps(steps) do
  if step % 20 == 0 then print(("step %3d  loss %.2f  %6.0f tokens/s"):format(step, m.loss, m.tokens_per_second)) end
end

local predicted, actual = plan:memory(), run:memory()
for rank = 0, stages - 1 do
  print(("rank %d: %10d bytes predicted, %10d allocated"):format(rank, predicted[rank].peak, actual[rank].peak))
end
run:close()
