-- Every schedule with every level of ZeRO and both times of reduction: no bit differs from one device,
-- also where layers are run again before their backward pass. And models that round, within the limits
-- of design 5.8.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local data = exact.data()
local CHUNKS = { interleaved_one_f_one_b = 2, looped_bfs = 2, interleaved_zero_bubble = 2, zbv = 2, dualpipev = 2 }
local NAMES = { "gpipe", "one_f_one_b", "interleaved_one_f_one_b", "looped_bfs", "zb_h1", "zb_h2",
  "interleaved_zero_bubble", "zbv", "dualpipe", "dualpipev" }

-- The schedule on two ranks, or pairs of 'devices' each, and its stages replicated with these flags.
local function strategy_of(name, microbatches, devices, flags)
  local sets = {}
  for r = 1, 2 do
    sets[r] = {}
    for j = 1, devices do sets[r][j] = (r - 1) * devices + j - 1 end
  end
  local list = schedules[name] { ranks = 2, microbatches = microbatches, devices = sets }
  local s, on = piper.strategy():add(list), {}
  for _, d in ipairs(list) do -- all devices of each stage: several sets in a bidirectional schedule
    if d.op == "place" then
      for _, stage in ipairs(type(d.filter.PP) == "table" and d.filter.PP or { d.filter.PP }) do
        on[stage] = on[stage] or {}
        for _, rank in ipairs(d.devices) do on[stage][rank] = true end
      end
    end
  end
  for stage = 0, #on do
    local all = {}
    for rank = 0, 2 * devices - 1 do
      if on[stage][rank] then all[#all + 1] = rank end
    end
    if #all > 1 then
      local spec = { filter = { PP = stage }, devices = all }
      for k, v in pairs(flags) do spec[k] = v end
      s:replicate(spec)
    end
  end
  return s
end

local function traced(model, strategy, batch)
  local plan = piper.compile(model, strategy, { batch = batch, dtype = "f64", optimizer = piper.sgd { lr = 1 }, verify = true })
  return exact.trace(plan, data)
end

for _, kind in ipairs { "tied", "skip", "uneven" } do
  for _, name in ipairs(NAMES) do
    local stages = 2 * (CHUNKS[name] or 1)
    local model = exact.model(kind, stages)
    for _, microbatches in ipairs { 3, 4 } do
      local batch = 8 * microbatches
      local want = traced(model, piper.strategy(), batch)
      for _, flags in ipairs(exact.zero) do
        for devices = 1, 2 do
          local s = strategy_of(name, microbatches, devices, flags[2])
          local again = (microbatches + devices) % 2 == 0
          if again then s:recompute { filter = {} } end
          local got = traced(model, s, batch)
          if not tap.ok(got == want, ("%s, %s: %s, %d microbatches, %d devices%s"):format(kind, name, flags[1],
            microbatches, devices, again and ", recomputed" or "")) then
            tap.diag(exact.difference(got, want))
          end
        end
      end
    end
  end
end

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
        local plan = piper.compile(model, strategy_of(name, 3, 2, flags[2]), {
          batch = 12, optimizer = piper.adamw { lr = 0.01, weight_decay = 0.1 }, clip_norm = 0.5, verify = true })
        local fine, worst = pcall(plan.check_equivalence, plan, { dtype = dtype, steps = 2 })
        if not tap.ok(fine, ("%s%s: %s, %s"):format(name, experts and ", experts" or "", flags[1], dtype)) then tap.diag(worst) end
      end
    end
  end
end
tap.done()
