-- What users of such systems report as silently wrong numbers, where no other test looks at it: how gradients are
-- scaled, whose contributions are in them, what the norm counts, and what must not depend on layout.
local tap = require "tap"
local exact = require "exact"
local composed = require "composed"
local piper = require "piper"
local nn = piper.nn

local NAMES = {}
for _, name in ipairs(composed.names) do
  if not name:find "automatic" then NAMES[#NAMES + 1] = name end
end

local function compile(model, strategy, options)
  local all = { batch = 24, dtype = "f64", optimizer = piper.sgd { lr = 0.1 }, verify = true }
  for k, v in pairs(options or {}) do all[k] = v end
  return piper.compile(model, strategy, all)
end

local function names_of(model)
  local names = {}
  for _, p in ipairs(model:params()) do names[#names + 1] = p.name end
  table.sort(names)
  return names
end

-- Every value of what 'read' gives for each parameter, as one string.
local function bits(model, read)
  local out = {}
  for _, name in ipairs(names_of(model)) do
    out[#out + 1] = name
    for _, v in ipairs(read(name)) do out[#out + 1] = ("%a"):format(v) end
  end
  return table.concat(out, " ")
end

-- One stage on each of 'ranks' sets of 'devices', replicated as 'flags' say.
local function piped(name, ranks, microbatches, devices, flags)
  return composed.strategy { list = composed.list(name, ranks, microbatches, devices), replicate = flags }
end

-- ---- how gradients are scaled ---------------------------------------------------------------------

-- A mean of w * x: its gradient is the mean of x, which no reference run has to say.
local function mean_model(stages)
  return piper.model("mean", function(m)
    local h = m:input("x", { "batch", 1 })
    for stage = 1, stages do
      piper.annotate("PP", function()
        h = h * nn.param("w" .. stage, { 1 }, { init = 1 })
        if stage == stages then m:loss(nn.mean(h)) end
      end)
    end
  end)
end
local x, sum = {}, 0
for i = 1, 48 do
  x[i] = i * i % 31
  sum = sum + x[i]
end
local numbers = piper.data.table { x = x }

local function mean_gradients(name, stages, strategy)
  local run <close> = piper.train(compile(mean_model(stages), strategy, { batch = 48 }), { data = numbers })
  for _, m in run:steps(2) do
    tap.near(m.loss, sum / 48, 1e-12, name .. ": the loss is the mean over the batch")
    for stage = 1, stages do
      tap.near(run:gradients("w" .. stage)[1], sum / 48, 1e-12, name .. ": so is its gradient, before the optimizer")
    end
    for stage = 1, stages do -- what the step changed
      run:set_params("w" .. stage, { 1 })
    end
  end
end
mean_gradients("one device", 1, piper.strategy())
for _, ranks in ipairs { 1, 2, 4 } do
  for devices = 1, 2 do
    mean_gradients(("%d stages, %d replicas"):format(ranks, devices), ranks,
      piped("one_f_one_b", ranks, 4, devices, devices > 1 and { shard_optimizer = true } or nil))
  end
end
local s = piper.strategy()
s:split { dim_name = "ACCUMULATE", num_microbatches = 3 }
s:split { dim_name = "MB", num_microbatches = 4 }
mean_gradients("3 parts of 4 microbatches each", 2, s)

-- ---- all contributions are there ------------------------------------------------------------------

-- Microbatch k touches row k of a table alone, of which every replica sees another column.
local MICROBATCHES = 4
local rows = piper.model("rows", function(m)
  local ids = m:input("ids", { "batch", 1 }, "i32")
  m:loss(nn.sum(nn.embedding(ids, "table", { vocab = 2 * MICROBATCHES, width = 3, init = 1 })))
end)
local ids = {}
for i = 1, 2 * MICROBATCHES do ids[i] = { i - 1 } end
for _, flags in ipairs { { "whole", {} }, table.unpack(exact.zero) } do
  local strategy = piper.strategy():split { num_microbatches = MICROBATCHES }
  strategy:place { filter = {}, devices = { 0, 1 } }
  local spec = { filter = {}, devices = { 0, 1 } }
  for k, v in pairs(flags[2]) do spec[k] = v end
  strategy:replicate(spec)
  local run <close> = piper.train(compile(rows, strategy, { batch = 2 * MICROBATCHES }), { data = piper.data.table { ids = ids } })
  local fine = true
  for step in run:steps(2) do
    for i, v in ipairs(run:params "table.weight") do fine = fine and math.abs(v - 1 + step / 10) < 1e-12 and run:gradients "table.weight"[i] == 1 end
  end
  tap.ok(fine, flags[1] .. ": every microbatch of every replica has moved its row, in each step")
end

-- 64 microbatches in f32, the first with a gradient that is large beside the others.
local many = {}
for i = 1, 64 do many[i] = i == 1 and 256 or 1 end
local run = piper.train(compile(mean_model(1), piper.strategy():split { num_microbatches = 64 }, { batch = 64, dtype = "f32" }),
  { data = piper.data.table { x = many } })
for _ in run:steps(1) do end
tap.is(run:gradients "w1"[1] * 64, 319.0, "256 and 63 times 1 are 319")
run:close()
tap.error_matches(function() compile(rows, piper.strategy(), { dtype = "bf16" }) end,
  'field_reports.lua:%d+: compile: field "dtype" is "bf16", not one of "f32", "f64"', "no sum runs in a type that was not asked for")

-- ---- a transformer-like model that rounds ---------------------------------------------------------

local function mlp(stages, dropout)
  return piper.model("mlp", function(m)
    local h = m:input("x", { "batch", 6 })
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        h = h + nn.swiglu(nn.rmsnorm(h, "norm" .. stage), "mlp" .. stage, { hidden = 7 })
        if dropout then h = nn.dropout(h, 0.3) end
        if stage == stages - 1 then m:loss(nn.mean(h * h)) end
      end)
    end
  end, { init = { normal = 0.5 } })
end
local noise = {}
for i = 1, 48 do
  noise[i] = {}
  for j = 1, 6 do noise[i][j] = math.sin(i * 1.7 + j * j * 0.9) end
end
local data = piper.data.table { x = noise }

-- What three steps leave.
local function steps(plan, seed)
  local job <close> = piper.train(plan, { data = data, seed = seed or 3 })
  local losses, text = {}, {}
  for _, m in job:steps(3) do
    losses[#losses + 1] = m.loss
    text[#text + 1] = bits(plan.model, function(name) return job:gradients(name) end)
    job:check_replicas()
  end
  text[#text + 1] = bits(plan.model, function(name) return job:params(name) end)
  return table.concat(text, "\n"), losses
end

-- Sizes of buckets, queues and prefetching change no bit.
local four = mlp(2)
local ELEMENT, MIB = 4, 1 / (1 << 20)
for _, flags in ipairs { {}, { shard_grads = true }, { shard_params = true }, { shard_params = true, reduce = "microbatch" } } do
  local want
  local fine, n = true, 0
  for _, size in ipairs { 64, ELEMENT * MIB, 31 * ELEMENT * MIB, 7 * 6 * ELEMENT * MIB } do
    for _, queues in ipairs { {}, { reduce_stream = "pp_stream", gather_stream = "pp_stream" } } do
      for prefetch = 0, 2, 2 do
        local all = { bucket_size = size, prefetch = prefetch }
        for _, more in ipairs { flags, queues } do
          for k, v in pairs(more) do all[k] = v end
        end
        local got = steps(compile(four, piped("one_f_one_b", 2, 3, 2, all), { dtype = "f32", optimizer = piper.adamw { lr = 0.01 } }))
        want = want or got
        fine, n = fine and got == want, n + 1
      end
    end
  end
  tap.ok(fine, ("%s: %d sizes of buckets, queues and prefetches give the same bits"):format(exact.flags_text(flags), n))
end

-- Dropout draws the same for every layout and when it is computed again.
local want_losses = select(2, steps(compile(mlp(4, true), piper.strategy())))
for _, ranks in ipairs { 2, 4 } do
  for _, microbatches in ipairs { 1, 3 } do
    local name = ("dropout, %d ranks, %d microbatches"):format(ranks, microbatches)
    local schedule = ranks == 2 and "zbv" or "zb_h1"
    local function traced(again)
      return steps(compile(mlp(4, true), composed.strategy {
        list = composed.list(schedule, ranks, microbatches, 2), replicate = {}, recompute = again }))
    end
    local kept, losses = traced()
    for i, loss in ipairs(losses) do tap.near(loss, want_losses[i], 1e-12, name .. ": the loss is that of one device") end
    tap.ok(traced {} == kept, name .. ": the same bits with layers computed again")
  end
end
local other = select(2, steps(compile(mlp(4, true), piper.strategy()), 4))
tap.ok(math.abs(other[1] - want_losses[1]) > 1e-6, "and another mask for another seed")

-- Initial values are of the seed and the name alone.
local function initial(strategy, seed)
  local job <close> = piper.train(compile(mlp(4), strategy, { batch = 48 }), { data = data, seed = seed })
  return bits(mlp(4), function(name) return job:params(name) end), job:params "mlp0.up_proj.weight", job:params "mlp1.up_proj.weight"
end
local want, first, second = initial(piper.strategy(), 7)
for _, layout in ipairs {
  { "one_f_one_b", 4, 3, 1 }, { "gpipe", 4, 2, 2, { shard_params = true } }, { "zbv", 2, 3, 2, { shard_optimizer = true } },
  { "dualpipe", 4, 4, 1, { shard_grads = true } }, { "looped_bfs", 2, 1, 4, { shard_params = true, bucket_size = ELEMENT * MIB } },
} do
  tap.ok(initial(piped(table.unpack(layout)), 7) == want, ("%s, %d ranks: initial values are those of one device"):format(
    layout[1], layout[2]))
end
tap.ok(initial(piper.strategy(), 8) ~= want, "other initial values for another seed")
local same = 0
for i, v in ipairs(first) do same = same + (v == second[i] and 1 or 0) end
tap.is(same, 0, "layers of one shape begin with different values")

-- ---- one parameter, one norm ----------------------------------------------------------------------

-- Both ends of a tied parameter on one rank, and on the ranks farthest apart.
local function tied(stages)
  return piper.model("tied", function(m)
    local h = m:input("tokens", { "batch", 3 }, "i32")
    local y = m:input("targets", { "batch", 3 }, "i32")
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        if stage == 0 then h = nn.embedding(h, "embed", { vocab = 7, width = 5 }) end
        h = h + nn.gelu(nn.linear(h, "layer" .. stage, { out = 5 }))
        if stage == stages - 1 then m:loss(nn.cross_entropy(nn.linear(h, "embed", { out = 7, bias = false }), y)) end
      end)
    end
  end, { init = { normal = 0.5 } })
end
local function round_trip(devices) -- stages 0 and 3 on one rank
  local trip = piper.strategy():split { num_microbatches = 3 }
  local ends, middle = { 0 }, { 1 }
  if devices == 2 then ends, middle = { 0, 1 }, { 2, 3 } end
  for _, half in ipairs { { { 0, 3 }, ends }, { { 1, 2 }, middle } } do
    trip:place { filter = { PP = half[1] }, devices = half[2] }
    trip:replicate { filter = { PP = half[1] }, devices = half[2], shard_optimizer = devices == 2 or nil }
  end
  return trip
end
for _, case in ipairs {
  { "apart", piped("one_f_one_b", 4, 3, 1) }, { "apart, two replicas", piped("zb_h1", 4, 3, 2, { shard_grads = true }) },
  { "on one rank", round_trip(1) }, { "on one rank, two replicas", round_trip(2) },
} do
  local plan = compile(tied(4), case[2], { optimizer = piper.adamw { lr = 0.01 } })
  local fine, why = pcall(plan.check_equivalence, plan, { steps = 5 }) -- also that all copies have the same bits
  if not tap.ok(fine, "tied ends " .. case[1] .. ": one parameter after 5 steps") then tap.diag(why) end
end

-- The norm is over each parameter once, and clipping to half of it halves the update.
local experts = piper.model("experts", function(m)
  local h = m:input("x", { "batch", 6 })
  for stage = 0, 1 do
    piper.annotate("PP", function()
      if stage == 0 then h = h:reshape { "batch", 2, 3 } end
      h = h + nn.moe(nn.linear(h, "l" .. stage, { out = 3 }), "moe" .. stage, { experts = 2, top_k = 2, width = 4 })
      if stage == 1 then m:loss(nn.sum_squares(h)) end
    end)
  end
end, { init = { normal = 0.5 } })
local function norm_of(strategy, clip)
  local plan = compile(experts, strategy, { clip_norm = clip })
  local job <close> = piper.train(plan, { data = data, seed = 2 })
  local before, moved, squares, norm = {}, {}, 0, nil
  for _, name in ipairs(names_of(experts)) do before[name] = job:params(name) end
  for _, m in job:steps(1) do norm = m.grad_norm end
  for _, name in ipairs(names_of(experts)) do
    local now = job:params(name)
    for i, g in ipairs(job:gradients(name)) do
      squares = squares + g * g
      moved[#moved + 1] = before[name][i] - now[i]
    end
  end
  return norm, math.sqrt(squares), moved
end
local norm, by_hand, moved = norm_of(piper.strategy())
tap.near(norm, by_hand, 1e-12 * norm, "the norm is that of all gradients")
local LAYOUTS = { { "pipeline", "one_f_one_b", 2, 1 }, { "two directions", "dualpipe", 2, 1, {} } }
for _, flags in ipairs { { "replicas", {} }, table.unpack(exact.zero) } do
  LAYOUTS[#LAYOUTS + 1] = { flags[1], "looped_bfs", 1, 2, flags[2] }
  LAYOUTS[#LAYOUTS + 1] = { flags[1] .. ", pipeline, experts spread", "zb_h1", 2, 4, flags[2], 2 }
  LAYOUTS[#LAYOUTS + 1] = { flags[1] .. ", two directions, experts spread", "dualpipe", 2, 2, flags[2], 2 }
end
for _, l in ipairs(LAYOUTS) do
  local function strategy()
    return composed.strategy { list = composed.list(l[2], l[3], 3, l[4]), replicate = l[5], group = l[6] }
  end
  if l[3] > 1 or l[4] > 1 then
    local got, hand = norm_of(strategy())
    tap.ok(math.abs(got - norm) <= 1e-12 * norm and math.abs(hand - norm) <= 1e-12 * norm, l[1] .. ": the same norm")
    local _, _, half = norm_of(strategy(), norm / 2)
    local off = 0
    for i, v in ipairs(half) do off = math.max(off, math.abs(v - moved[i] / 2)) end
    tap.ok(off <= 1e-12 * norm, ("%s: clipped to half the norm, half the update"):format(l[1]))
  end
end

-- ---- edges between any stages ---------------------------------------------------------------------

for _, name in ipairs(NAMES) do
  local stages = 4 * composed.schedules[name].stages
  local model = exact.model("nested", stages)
  local options = { batch = 24, optimizer = piper.sgd { lr = 1 } }
  local got, ref = exact.trace(compile(model, piped(name, 4, 3, 1), options), exact.data()),
    exact.trace(compile(model, piper.strategy(), options), exact.data())
  if not tap.ok(got == ref, name .. ": values that go to stages far away, nested") then tap.diag(exact.difference(got, ref)) end
end

-- What is frozen is neither sent to nor reduced.
local function frozen(pattern)
  return piper.model("frozen", function(m)
    local h = m:input("x", { "batch", 6 })
    for stage = 0, 2 do
      piper.annotate("PP", function()
        h = nn.relu(nn.linear(h, "layer" .. stage, { out = 6, bias = false }))
        if stage == 2 then m:loss(nn.sum_squares(nn.linear(h, "layer0", { out = 6, bias = false }))) end
      end)
    end
    m:freeze(pattern)
  end, { init = { normal = 0.5 } })
end
for _, flags in ipairs { { "whole", {} }, table.unpack(exact.zero) } do
  local plan = compile(frozen "^layer0%.", piped("one_f_one_b", 3, 4, 2, flags[2]), { batch = 24 })
  local backward, reduced, other_reduced = 0, 0, 0
  for _, row in ipairs(plan:communication()) do
    if row.kind == "transfer" and row.what == "gradients" then
      for i = 2, #row.devices do backward = backward + (row.devices[i] <= 1 and 1 or 0) end
    elseif row.kind:find "reduce" and row.bucket then
      if row.bucket:find "layer0" then reduced = reduced + 1 else other_reduced = other_reduced + 1 end
    end
  end
  tap.is(backward, 0, flags[1] .. ": no gradient goes to a stage in which nothing learns")
  tap.ok(reduced == 0 and other_reduced == 2, flags[1] .. ": what is frozen, at both of its ends, is not reduced")
  local fine, why = pcall(plan.check_equivalence, plan, { data = data })
  if not tap.ok(fine, flags[1] .. ": the others learn as on one device") then tap.diag(why) end
end
tap.done()
