-- Model state of each rank to the byte, as design section 6 has it, for every level of ZeRO, both times of
-- reduction, one to four devices, both types, every optimizer, and sizes that do not divide: in the plan, and
-- as the run allocates it. The formulas are written here once more, from the words of the documentation:
--
--   each device keeps n elements of the parameters, the gradients and (0, 1 or 2 times) the optimizer state;
--   of the state from level 1, of the gradients from level 2 and of the parameters at level 3 only its share;
--   where gradients are reduced after each backward pass they are kept apart from what that pass computes,
--   and of level 1 only the share is kept;
--   at the peak, in a backward pass, what it reads and what it computes is whole beside the shares.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local OPTIMIZERS = {
  { "sgd", piper.sgd { lr = 0.1 }, 0 },
  { "momentum", piper.sgd { lr = 0.1, momentum = 0.9 }, 1 },
  { "adamw", piper.adamw { lr = 0.1 }, 2 },
}
local FLAGS = { [0] = {}, { shard_optimizer = true }, { shard_grads = true }, { shard_params = true } }

-- Elements of n that the j-th of d keeps: from n*j/d to n*(j+1)/d, rounded down.
local function share(n, j, d) return n * (j + 1) // d - n * j // d end

-- What the j-th of d devices has at the peak, of a bucket of n elements.
local function expected(n, j, d, level, reduce, slots)
  if d == 1 then level, reduce = 0, "step" end -- there is nothing to divide, and nothing to reduce
  local mine = share(n, j, d)
  local grads = level >= 2 and mine + n or n
  if reduce == "microbatch" then grads = (level >= 1 and mine or n) + n end
  return { params = level == 3 and mine + n or n, grads = grads, optimizer = slots * (level >= 1 and mine or n) }
end

local function strategy(set, spec, microbatches)
  local s = piper.strategy()
  s:split { num_microbatches = microbatches }
  s:place { filter = {}, devices = set }
  local all = { filter = {}, devices = set }
  for k, v in pairs(spec) do all[k] = v end
  return s:replicate(all)
end

-- nil, or what differs: between the plan and 'want' (elements, by rank), and between the run and the plan.
local function difference(plan, data, want, bytes)
  local run <close> = piper.train(plan, { data = data })
  for _ in run:steps(1) do end
  local planned, measured = plan:memory(), run:memory()
  for rank, elements in pairs(want) do
    for _, category in ipairs { "params", "grads", "optimizer" } do
      if planned[rank][category] ~= bytes * elements[category] then
        return ("rank %d: %s %d bytes, not %d"):format(rank, category, planned[rank][category], bytes * elements[category])
      end
    end
  end
  for rank, m in pairs(planned) do
    for category, b in pairs(m) do
      if measured[rank][category] ~= b then
        return ("rank %d: %s %d bytes in the run, %d in the plan"):format(rank, category, measured[rank][category], b)
      end
    end
  end
end

local function with(flags, reduce)
  local spec = { reduce = reduce }
  for k, v in pairs(flags) do spec[k] = v end
  return spec
end

-- One chunk, one bucket. Each row: widths of two layers with bias.
local samples = {}
for i = 1, 12 do samples[i] = { i, 1 } end
local data = piper.data.table { x = samples }
for _, widths in ipairs { { 13, 7 }, { 1, 1 } } do
  local model = piper.model("state", function(m)
    local x = m:input("x", { "batch", 2 }, "f32")
    m:loss(nn.sum_squares(nn.linear(nn.relu(nn.linear(x, "first", { out = widths[1] })), "second", { out = widths[2] })))
  end)
  local n = 2 * widths[1] + widths[1] + widths[1] * widths[2] + widths[2] -- 124, or 5
  for level = 0, 3 do
    for _, reduce in ipairs { "step", "microbatch" } do
      for d = 1, 4 do
        local wrong, cases = nil, 0
        for _, dtype in ipairs { "f32", "f64" } do
          for _, optimizer in ipairs(OPTIMIZERS) do
            for _, microbatches in ipairs { 1, 3 } do
              local set, want = {}, {}
              for j = 0, d - 1 do
                set[j + 1], want[j] = j, expected(n, j, d, level, reduce, optimizer[3])
              end
              local plan = piper.compile(model, strategy(set, with(FLAGS[level], reduce), microbatches),
                { batch = 36, dtype = dtype, optimizer = optimizer[2] })
              local found = difference(plan, data, want, dtype == "f32" and 4 or 8)
              wrong = wrong or found and ("%s, %s, %d microbatches: %s"):format(dtype, optimizer[1], microbatches, found)
              cases = cases + 1
            end
          end
        end
        if not tap.ok(not wrong, ("%d elements, level %d by %s, %d devices: %d cases"):format(n, level, reduce, d, cases)) then
          tap.diag(wrong)
        end
      end
    end
  end
end

-- Every case of level and reduction, with f32 and adamw: 'want(level, reduce)' gives elements by rank.
local function each_level(name, compile, input, want)
  for level = 0, 3 do
    for _, reduce in ipairs { "step", "microbatch" } do
      local wrong = difference(compile(with(FLAGS[level], reduce)), input, want(level, reduce), 4)
      if not tap.ok(not wrong, ("%s, level %d by %s"):format(name, level, reduce)) then tap.diag(wrong) end
    end
  end
end
local adamw = { batch = 24, optimizer = OPTIMIZERS[3][2] }

-- A bucket for each parameter: each is divided by itself. One microbatch, or those of the pass before may still
-- wait for their reduction while the next one runs.
local layers = piper.model("layers", function(m)
  local x = m:input("x", { "batch", 2 }, "f32")
  m:loss(nn.sum_squares(nn.linear(nn.relu(nn.linear(x, "first", { out = 13 })), "second", { out = 7 })))
end)
each_level("four buckets", function(spec)
  spec.bucket_size = 1 / (1 << 20)
  return piper.compile(layers, strategy({ 0, 1, 2 }, spec, 1), adamw)
end, data, function(level, reduce)
  local want = {}
  for j = 0, 2 do
    local sum = { params = 0, grads = 0, optimizer = 0 }
    for _, n in ipairs { 2 * 13, 13, 13 * 7, 7 } do
      for category, elements in pairs(expected(n, j, 3, level, reduce, 2)) do sum[category] = sum[category] + elements end
      if level == 3 and n ~= 13 * 7 then sum.params = sum.params - n end -- the backward pass reads the second weight only
    end
    want[j] = sum
  end
  return want
end)

-- Experts: each device has those of its part, 1 of 2, and shares them with the one device of the other group
-- that has them, too. At the peak, in a backward pass of the experts, theirs are whole; the router's are not
-- gathered then, but its gradients of the microbatch before wait for the end of the step.
local EXPERTS, TOKENS, WIDTH = 6, 16, 5
local experts = piper.model("experts", function(m)
  local x = m:input("x", { "batch", TOKENS, 3 }, "f32")
  m:loss(nn.sum_squares(nn.moe(x, "mlp", { experts = EXPERTS, top_k = 2, width = WIDTH })))
end)
local rows = {}
for i = 1, 24 do
  rows[i] = {}
  for k = 1, TOKENS * 3 do rows[i][k] = (i * 7 + k * 5) % 11 - 5 end
end
each_level("experts over two devices, twice", function(spec)
  spec.prefetch = 0
  return piper.compile(experts, strategy({ 0, 1, 2, 3 }, spec, 2):shard { filter = { EP = "*" }, devices = { { 0, 1 }, { 2, 3 } } },
    adamw)
end, piper.data.table { x = rows }, function(level, reduce)
  local gate, part, want = EXPERTS * 3, EXPERTS // 2 * 3 * WIDTH * 3, {}
  for rank = 0, 3 do
    local router, expert = share(gate, rank, 4), share(part, rank // 2, 2) -- of part rank % 2
    local all, mine = gate + part, router + expert
    want[rank] = { params = all, grads = all, optimizer = 2 * (level >= 1 and mine or all) }
    if level == 3 then want[rank].params = mine + part end
    if reduce == "microbatch" then want[rank].grads = (level >= 1 and mine or all) + part
    elseif level >= 2 then want[rank].grads = mine + all end
  end
  return want
end)

-- One parameter on two stages of two devices. By step all four divide it. By microbatch, and where parameters
-- are divided, the two of a stage do, and the two devices with the same share divide the update of that.
local VOCAB = 102
local tied = piper.model("tied", function(m)
  local x, h = m:input("x", { "batch", 1 }, "i32"), nil
  piper.annotate("PP", function() h = nn.embedding(x, "embed", { vocab = VOCAB, width = 3 }) end)
  piper.annotate("PP", function() m:loss(nn.sum_squares(nn.linear(h, "embed", { out = VOCAB, bias = false }))) end)
end)
local ids = {}
for i = 1, 24 do ids[i] = { i * 4 % VOCAB } end
for level = 0, 3 do
  for _, reduce in ipairs { "step", "microbatch" } do
    local s = piper.strategy():split { num_microbatches = 2 }
    for stage = 0, 1 do
      local spec = with(FLAGS[level], reduce)
      spec.filter, spec.devices = { PP = stage }, { 2 * stage, 2 * stage + 1 }
      s:place { filter = spec.filter, devices = spec.devices }
      s:replicate(spec)
    end
    local plan = piper.compile(tied, s, { batch = 4, optimizer = OPTIMIZERS[3][2] })
    local n, within = VOCAB * 3, level == 3 or reduce == "microbatch"
    local wrong = difference(plan, piper.data.table { x = ids }, {}, 4)
    for rank = 0, 3 do
      local stage, j, m = rank // 2, rank % 2, plan:memory()[rank]
      local mine = within and share(n, j, 2) or share(n, rank, 4)
      local updated = within and share(share(n, j, 2), stage, 2) or mine
      local want = { params = n, grads = n, optimizer = 2 * (level >= 1 and updated or n) }
      if level == 3 then want.params = mine + n end
      if reduce == "microbatch" then want.grads = (level >= 1 and mine or n) + n elseif level >= 2 then want.grads = mine + n end
      local got = { params = m.params // 4, grads = m.grads // 4, optimizer = m.optimizer // 4 }
      if level == 3 and stage == 0 then
        -- The gradient of an embedding reads no parameters: at the peak, one of the two is whole.
        want = { state = 2 * mine + n, optimizer = want.optimizer }
        got = { state = got.params + got.grads, optimizer = got.optimizer }
      end
      for category, elements in pairs(want) do
        if got[category] ~= elements then wrong = ("rank %d: %s %d elements, not %d"):format(rank, category, got[category], elements) end
      end
    end
    if not tap.ok(not wrong, ("tied over two stages, level %d by %s"):format(level, reduce)) then tap.diag(wrong) end
  end
end
tap.done()
