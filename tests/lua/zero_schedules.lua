-- Levels of ZeRO and both times of reduction with models that round, within the limits of design 5.8; the
-- models that do not are in tests/lib/matrix.lua, with every schedule.
local tap = require "tap"
local exact = require "exact"
local composed = require "composed"
local piper = require "piper"
local nn = piper.nn

-- Layers of their own in each stage, so that parameters come and go; a mixture of experts; AdamW, decay
-- and clipping.
local function text_model(experts)
  return piper.model("text", function(m)
    local tokens, targets = m:input("tokens", { "batch", 6 }, "i32"), m:input("targets", { "batch", 6 }, "i32")
    local h
    for stage = 0, 1 do
      piper.annotate("PP", function()
        if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 19, width = 12 }) end
        for l = 0, 2 do
          piper.annotate("LAYER", function()
            local name = ("layers.%d"):format(3 * stage + l)
            h = h + nn.attention(nn.rmsnorm(h, name .. ".norm1"), name .. ".attn", { heads = 2, head_width = 6, rope = 10000 })
            local x = nn.rmsnorm(h, name .. ".norm2")
            if experts then h = h + nn.moe(x, name .. ".mlp", { experts = 3, top_k = 2, width = 5, aux = 0.1 })
            else h = h + nn.swiglu(x, name .. ".mlp", { hidden = 17 }) end
          end)
        end
        if stage == 1 then m:loss(nn.cross_entropy(nn.linear(h, "embed", { out = 19, bias = false }), targets)) end
      end)
    end
  end, { init = { normal = 0.4 } })
end
for _, experts in ipairs { false, true } do
  local model = text_model(experts)
  for _, flags in ipairs(exact.zero) do
    for _, name in ipairs { "one_f_one_b", "zb_h1", "dualpipe" } do
      for _, dtype in ipairs { "f64", "f32" } do
        local strategy = composed.strategy { list = composed.list(name, 2, 3, 2), replicate = flags[2] }
        local plan = piper.compile(model, strategy, {
          batch = 12, optimizer = piper.adamw { lr = 0.01, weight_decay = 0.1 }, clip_norm = 0.5, verify = true })
        local fine, worst = pcall(plan.check_equivalence, plan, { dtype = dtype, steps = 2 })
        if not tap.ok(fine, ("%s%s: %s, %s"):format(name, experts and ", experts" or "", flags[1], dtype)) then tap.diag(worst) end
      end
    end
  end
end
tap.done()
