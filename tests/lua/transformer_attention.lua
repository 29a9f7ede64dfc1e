-- Attention, as scripts build it: against the formula written down once more in Lua, and models with it
-- train to the weights of one device, whatever the strategy.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local T, N = 5, 6 -- positions, features

-- ---- the formula ----------------------------------------------------------------------------------

-- A parameter's initial values, by flat index; all of them small and different.
local function value(i, name)
  return math.sin(i * 1.7 + #name * 0.9) * 0.4 + (name:find "norm" and 1 or 0)
end

-- y[t][o] = w [o][i] x[t][i] + b[o]
local function linear(x, name, out, bias)
  local y = {}
  for t = 1, #x do
    y[t] = {}
    for o = 0, out - 1 do
      local sum = bias and value(o, name .. ".bias") or 0
      for i = 1, #x[t] do sum = sum + value(o * #x[t] + i - 1, name .. ".weight") * x[t][i] end
      y[t][o + 1] = sum
    end
  end
  return y
end

-- Numbers of one head at one position, normalised and turned.
local function head_of(row, head, position, options, norm)
  local width, h = options.head_width, {}
  for i = 1, width do h[i] = row[head * width + i] end
  if norm and options.qk_norm then
    local square = 0
    for i = 1, width do square = square + h[i] ^ 2 / width end
    for i = 1, width do h[i] = h[i] / math.sqrt(square + 1e-6) * value(i - 1, "a." .. norm .. ".weight") end
  end
  if norm and options.rope then
    for i = 1, width // 2 do
      local angle = position * options.rope ^ (-2 * (i - 1) / width)
      local a, b = h[i], h[i + width // 2]
      h[i] = a * math.cos(angle) - b * math.sin(angle)
      h[i + width // 2] = b * math.cos(angle) + a * math.sin(angle)
    end
  end
  return h
end

local function attention(x, options)
  local heads, width = options.heads, options.head_width
  local kv_heads = options.kv_heads or heads
  local q = linear(x, "a.q_proj", heads * width, options.bias)
  local k = linear(x, "a.k_proj", kv_heads * width, options.bias)
  local v = linear(x, "a.v_proj", kv_heads * width, options.bias)
  local y = {}
  for t = 1, #x do
    y[t] = {}
    for head = 0, heads - 1 do
      local group = head // (heads // kv_heads)
      local query, scores, sum = head_of(q[t], head, t - 1, options, "q_norm"), {}, 0
      for j = 1, options.causal == false and #x or t do
        local key, dot = head_of(k[j], group, j - 1, options, "k_norm"), 0
        for i = 1, width do dot = dot + query[i] * key[i] end
        scores[j] = math.exp(dot / math.sqrt(width))
        sum = sum + scores[j]
      end
      for i = 1, width do
        local mean = 0
        for j = 1, #scores do mean = mean + scores[j] / sum * v[j][group * width + i] end
        y[t][head * width + i] = mean
      end
    end
  end
  return linear(y, "a.o_proj", #x[1], options.bias)
end

-- The loss, a weighted sum of y, of the op and of the formula.
local function try(options, what)
  options.init = value
  local function weight(i) return math.cos(i * 0.37) end
  local model = piper.model("attention", function(m)
    local y = nn.attention(m:input("x", { "batch", T, N }), "a", options)
    m:loss(nn.sum(y * nn.param("weight", { T, N }, { init = weight })))
    if options.qk_norm then m:freeze "norm" end
  end, { init = value })
  local samples, want = {}, 0
  for s = 1, 2 do
    local x, flat = {}, {}
    for t = 1, T do
      x[t] = {}
      for i = 1, N do
        x[t][i] = math.sin(s * 31 + t * 7 + i * 3.3)
        flat[#flat + 1] = x[t][i]
      end
    end
    samples[s] = flat
    for t, row in ipairs(attention(x, options)) do
      for i = 1, N do want = want + row[i] * weight((t - 1) * N + i - 1) end
    end
  end
  local run <close> = piper.train(piper.compile(model, piper.strategy(), { batch = 2, dtype = "f64" }),
    { data = piper.data.table { x = samples } })
  local loss
  for _, m in run:steps(1) do loss = m.loss end
  tap.near(loss, want, 1e-12 * math.max(1, math.abs(want)), what)
end

try({ heads = 2, head_width = 3 }, "attention is the formula")
try({ heads = 4, kv_heads = 2, head_width = 2, bias = true }, "with grouped heads and biases")
try({ heads = 2, kv_heads = 1, head_width = 4, causal = false, rope = 10000 }, "with positions, not causal")
try({ heads = 3, head_width = 2, rope = 100, qk_norm = true }, "with norms of q and k")
try({ heads = 1, head_width = 1, rope = false }, "with one head of width 1")

-- ---- strategies -----------------------------------------------------------------------------------

local function block(h, name)
  h = h + nn.attention(nn.rmsnorm(h, name .. ".a"), name .. ".attn",
    { heads = 4, kv_heads = 2, head_width = 6, rope = 100, qk_norm = true, init = { normal = 0.4 } })
  h = h + nn.swiglu(nn.rmsnorm(h, name .. ".b"), name .. ".mlp", { hidden = 10, init = { normal = 0.3 } })
  return h + nn.attention(h, name .. ".all", { heads = 2, head_width = 5, causal = false, bias = true, init = { normal = 0.4 } })
end

local function model_of(stages)
  return piper.model("attention", function(m)
    local tokens, targets = m:input("tokens", { "batch", 9 }, "i32"), m:input("targets", { "batch", 9 }, "i32")
    local h
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        if s == 0 then h = nn.embedding(tokens, "embed", { vocab = 19, width = 8, init = { normal = 0.5 } }) end
        h = block(h, "layers." .. s)
        if s == stages - 1 then
          m:loss(nn.cross_entropy(nn.linear(nn.rmsnorm(h, "norm"), "head", { out = 19 }), targets))
        end
      end)
    end
  end)
end

local function equal(name, plan)
  for _, dtype in ipairs { "f64", "f32" } do
    local fine, worst = pcall(plan.check_equivalence, plan, { dtype = dtype })
    if not tap.ok(fine, name .. ", " .. dtype) then tap.diag(worst) end
  end
end

local adamw = piper.adamw { lr = 0.01 }
for _, stages in ipairs { 1, 2 } do
  local model = model_of(stages)
  for _, microbatches in ipairs { 1, 3 } do
    for devices = 1, 2 do
      equal(("%d stages, %d microbatches, %d devices"):format(stages, microbatches, devices),
        piper.compile(model, exact.strategy("one_f_one_b", stages, microbatches, devices),
          { batch = 12, optimizer = adamw, clip_norm = 0.5 }))
    end
  end
end

-- q, k and v of the first stage take gradients for weights alone; of the others, for what is upstream.
local halves = piper.strategy()
halves:split { filter = {}, dim_name = "MB", num_microbatches = 2 }
for stage = 0, 1 do
  halves:place { filter = { PP = stage }, devices = { stage } }
  local order = {}
  for i, pass in ipairs { "F", "F", "BI", "BI", "BW", "BW" } do
    order[i] = { PP = stage, MB = (i - 1) % 2, PASS = pass }
  end
  halves:order { filters = order }
end
equal("backward in halves", piper.compile(model_of(2), halves, { batch = 12, optimizer = adamw }))

-- Gradients that nobody wants: of the keys when their weights are frozen.
local frozen = piper.model("frozen", function(m)
  local x = m:input("x", { "batch", 7, 4 })
  m:freeze "[qk]_proj"
  m:loss(nn.sum_squares(nn.attention(x, "a", { heads = 2, head_width = 4, init = { normal = 0.5 } })))
end)
equal("values alone take gradients", piper.compile(frozen, piper.strategy(), { batch = 4, optimizer = adamw }))

tap.done()
