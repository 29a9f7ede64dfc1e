-- What pipelining gains on two cores: a model of GPT-2's size cut into 9 and 3 layers (the head, tied to
-- the embedding, weighs about six), 1F1B over two ranks of one thread, against one rank of one thread
-- with the same microbatches. The two run in turn; the ratio is that of the medians.
--   build/piper bench/pipeline.lua [rounds]        (about 5 GiB of memory; 30 s a round)
local piper = require "piper"
local nn = piper.nn

local rounds = math.tointeger(tonumber(arg[1]) or 3)
local width, context, batch, vocab = 768, 64, 16, 50257

local function layer(h, name)
  h = h + nn.attention(nn.layernorm(h, name .. ".ln_1"), name .. ".attn", { heads = 12, head_width = 64, bias = true })
  local up = nn.gelu(nn.linear(nn.layernorm(h, name .. ".ln_2"), name .. ".mlp.c_fc", { out = 4 * width }))
  return h + nn.linear(up, name .. ".mlp.c_proj", { out = width })
end

local model = piper.model("gpt2", function(m)
  local tokens, targets = m:input("tokens", { "batch", context }, "i32"), m:input("targets", { "batch", context }, "i32")
  local h
  piper.annotate("PP", function()
    h = nn.embedding(tokens, "wte", { vocab = vocab, width = width })
    h = h + nn.param("wpe.weight", { context, width })
    for l = 0, 8 do h = layer(h, "h." .. l) end
  end)
  piper.annotate("PP", function()
    for l = 9, 11 do h = layer(h, "h." .. l) end
    m:loss(nn.cross_entropy(nn.linear(nn.layernorm(h, "ln_f"), "wte", { out = vocab, bias = false }), targets))
  end)
end)

local function open(ranks)
  local s = piper.strategy()
  if ranks == 1 then s:split { num_microbatches = batch } -- the order is the compiler's own
  else s:add(piper.schedules.one_f_one_b { ranks = ranks, microbatches = batch }) end
  local plan = piper.compile(model, s, { batch = batch, threads_per_rank = 1, optimizer = piper.adamw { lr = 1e-4 } })
  local run = piper.train(plan, { data = require "piper.core".data.random() })
  local next_step = run:steps(2 * rounds + 1)
  next_step() -- memory is touched for the first time
  return function()
    local _, m = next_step()
    return m.seconds
  end
end

local function median(t)
  table.sort(t)
  return t[(#t + 1) // 2]
end

local one, two, times = open(1), open(2), { {}, {} }
for _ = 1, rounds do
  table.insert(times[1], one())
  table.insert(times[2], two())
end
local a, b = median(times[1]), median(times[2])
print(("1 rank  %.2f s a step"):format(a))
print(("2 ranks %.2f s a step"):format(b))
print(("ratio   %.2f (1.6 asked, 2 possible)"):format(a / b))
