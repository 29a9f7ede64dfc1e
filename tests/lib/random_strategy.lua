-- random_strategy - strategies that no axis of the matrix has, from a seed that names them: device sets of different
-- size, numbered in any order; flags, buckets and queues stage by stage; layers in stages; parameters and
-- experts that stages share; parts that are frozen or recomputed. Compared with one device as in matrix.lua.
local tap = require "tap"
local exact = require "exact"
local composed = require "composed"
local piper = require "piper"
local nn = piper.nn

local M = {}

local function R(lo, hi) return math.random(lo, hi) end
local function pick(list) return list[R(1, #list)] end
local function one_in(n) return R(1, n) == 1 end

local FLAGS = { {} }
for _, zero in ipairs(exact.zero) do FLAGS[#FLAGS + 1] = zero[2] end

-- Ranks, microbatches and device sets; each set is of groups of 'group' devices.
local function layout(group, most_ranks, most_groups)
  local l = { name = pick(composed.names), ranks = R(1, most_ranks), microbatches = R(1, 5), sets = {}, common = 1 }
  if l.name:find "automatic_" and R(1, 3) > 1 then l.name = "zbv" end -- searches take their time
  if l.name == "dualpipe" then l.ranks = 2 end
  l.stages = l.ranks * composed.schedules[l.name].stages
  local numbers, sizes, uneven, groups = {}, {}, one_in(3), R(1, most_groups)
  for r = 1, l.ranks do
    sizes[r] = group * (uneven and R(1, most_groups) or groups)
    for _ = 1, sizes[r] do numbers[#numbers + 1] = #numbers end
  end
  if one_in(2) then
    for i = #numbers, 2, -1 do
      local j = R(1, i)
      numbers[i], numbers[j] = numbers[j], numbers[i]
    end
  end
  local next_number = 1
  for r, size in ipairs(sizes) do
    l.sets[r] = table.move(numbers, next_number, next_number + size - 1, 1, {})
    next_number = next_number + size
    local a, b = l.common, size -- the least common multiple of all sizes
    while b ~= 0 do a, b = b, a % b end
    l.common = l.common // a * size
  end
  l.batch = l.microbatches * l.common
  l.text = ("%s, %d microbatches, sets of %s"):format(l.name, l.microbatches, table.concat(sizes, " and "))
  return l
end

-- The schedule, each stage replicated as flags_of(stage) says and its experts over groups.
local function strategy_of(l, flags_of, group)
  local s = piper.strategy():add(composed.list_on(l.name, l.microbatches, l.sets))
  local sets = composed.stage_sets(s.directives)
  for stage = 0, l.stages - 1 do
    local all, groups = {}, {}
    for _, set in ipairs(sets[stage]) do
      table.move(set, 1, #set, #all + 1, all)
      if group then table.move(composed.groups(set, group), 1, #set // group, #groups + 1, groups) end
    end
    local flags = flags_of(stage)
    flags.filter, flags.devices = { PP = stage }, all
    s:replicate(flags)
    if group then s:shard { filter = { PP = stage, EP = "*" }, devices = groups, stream = l.shard_stream } end
  end
  local again = R(1, 4)
  if again == 1 then s:recompute { filter = {} }
  elseif again == 2 then s:recompute { filter = { PP = R(0, l.stages - 1) } }
  elseif again == 3 and l.microbatches > 1 then s:recompute { filter = { MB = R(0, l.microbatches - 1) } }
  elseif group then s:recompute { filter = { EP = pick { "*", false } } } end
  return s
end

local function flags_from(...)
  local flags = {
    bucket_size = pick { 8 / (1 << 20), 100 / (1 << 20), 25 }, prefetch = R(0, 3), keep = one_in(3) and 64 / (1 << 20) or nil,
  }
  for _, more in ipairs { ... } do
    for k, v in pairs(more) do flags[k] = v end
  end
  return flags
end

-- ---- whole numbers --------------------------------------------------------------------------------

local function whole(salt)
  return function(i) return (i * 7 + salt * 5 + (i // 3) * salt) % 3 - 1 end
end
local in_common = whole(3)

-- Stages of one or two layers; some read what an earlier one made; two may have a layer in common.
local function whole_model(stages)
  local tied, shared, layers, from = one_in(3), one_in(4) and stages > 1, {}, {}
  for stage = 0, stages - 1 do
    layers[stage] = stages <= 4 and R(1, 2) or 1
    from[stage] = stage > 1 and one_in(3) and R(0, stage - 1) or nil
  end
  local frozen = one_in(4) and not shared and ("^layer%d%%."):format(R(0, stages - 1))
  return piper.model("whole", function(m)
    local h = tied and m:input("tokens", { "batch", 3 }, "i32") or m:input("x", { "batch", 4 })
    local made = {}
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        if stage == 0 and tied then h = nn.embedding(h, "embed", { vocab = 5, width = 4, init = whole(9) }) end
        if from[stage] then h = h + made[from[stage]] end
        for layer = 1, layers[stage] do
          piper.annotate("LAYER", function()
            local again = shared and stage >= stages - 2 and layer == 1
            h = nn.relu(nn.linear(h, again and "shared" or ("layer%d.%d"):format(stage, layer),
              { out = 4, init = again and in_common or whole(stage * 3 + layer) }))
          end)
        end
        made[stage] = h
        if stage == stages - 1 then
          m:loss(nn.sum_squares(tied and nn.linear(h, "embed", { out = 5, bias = false }) or h))
        end
      end)
    end
    if frozen then m:freeze(frozen) end
  end), tied or shared
end

local exact_data = exact.data()

local function compare_whole()
  local l = layout(1, 4, 3)
  local model, one_for_all = whole_model(l.stages)
  local common, own = pick(FLAGS), one_in(3) and not one_for_all
  local s = strategy_of(l, function()
    return flags_from(own and pick(FLAGS) or common, {
      reduce_stream = one_in(3) and pick { "dp_stream", "pp_stream", "reductions", "ag_stream" } or nil,
      gather_stream = one_in(3) and pick { "dp_stream", "pp_stream", "gathers", "ag_stream" } or nil })
  end)
  local options = {
    batch = l.batch, dtype = "f64", optimizer = piper.sgd { lr = 1, momentum = 0.5 }, verify = true,
    order_rule = pick { "critical_path", "downstream" },
  }
  local plan = piper.compile(model, s, options)
  local want = exact.trace(piper.compile(model, piper.strategy(), options), exact_data)
  local got, memory = exact.trace(plan, exact_data)
  if got ~= want then error(l.text .. ": " .. exact.difference(got, want), 0) end
  for rank, bytes in pairs(plan:memory()) do
    if memory[rank].peak ~= bytes.peak then error(("%s: rank %d: memory"):format(l.text, rank), 0) end
  end
end

-- ---- experts --------------------------------------------------------------------------------------

local function expert_model(stages, experts, tokens)
  local options = {
    experts = experts, top_k = R(1, experts), width = R(1, 4), capacity_factor = pick { "none", 0.5, 1.0, 1.5 },
    aux = pick { 0, 0.1 }, normalize = one_in(2),
  }
  local shared, frozen, dropped, layers = one_in(4), one_in(3) and pick { "experts%.0", "gate%.", "up_proj", "^embed" },
    one_in(2), R(1, 2)
  return piper.model("random_experts", function(m)
    local h, y = m:input("tokens", { "batch", tokens }, "i32"), m:input("targets", { "batch", tokens }, "i32")
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        if stage == 0 then h = nn.embedding(h, "embed", { vocab = 7, width = 4, init = { normal = 0.7 } }) end
        for layer = 1, layers do
          piper.annotate("LAYER", function()
            local name = ("layer%d.%d"):format(stage, layer)
            local x = nn.rmsnorm(h, name .. ".norm")
            h = h + nn.moe(dropped and nn.dropout(x, 0.2) or x, shared and "mlp" or name .. ".mlp", options)
          end)
        end
        if stage == stages - 1 then m:loss(nn.cross_entropy(nn.linear(h, "embed", { out = 7, bias = false }), y)) end
      end)
    end
    if frozen then m:freeze(frozen) end
  end, { init = { normal = 0.5 } })
end

local function compare_experts()
  local experts, group = pick { 1, 2, 3, 4, 6 }, pick { 1, 2, 2, 3, 4 }
  while experts % group ~= 0 do group = group - 1 end
  local l = layout(group, 3, 2)
  l.shard_stream = pick { "ep_stream", "dp_stream", "pp_stream" }
  local model, flags = expert_model(l.stages, experts, R(1, 4)), pick(FLAGS)
  local bucket = pick { 8 / (1 << 20), 100 / (1 << 20), 25 }
  local s = strategy_of(l, function() return flags_from(flags, { bucket_size = bucket, prefetch = 1, keep = 0 }) end, group)
  local plan = piper.compile(model, s, {
    batch = l.batch, optimizer = piper.sgd { lr = 0.01, momentum = 0.5 }, clip_norm = pick { 0.5, 0.1 }, verify = true,
    order_rule = pick { "critical_path", "downstream" },
  })
  local fine, why = pcall(plan.check_equivalence, plan, { steps = 2 })
  if not fine then error(l.text .. ": " .. tostring(why), 0) end
end

---Compares the strategies of 'count' seeds from 'first' on.
function M.run(first, count)
  for _, kind in ipairs { { "whole numbers", compare_whole }, { "experts", compare_experts } } do
    local failed = 0
    for seed = first, first + count - 1 do
      math.randomseed(seed)
      local fine, why = pcall(kind[2])
      if not fine then
        failed = failed + 1
        if failed <= 20 then
          tap.ok(false, ("%s, seed %d"):format(kind[1], seed))
          tap.diag(why)
        end
      end
    end
    tap.is(failed, 0, ("%s: random strategies of seeds %d to %d are equal to one device"):format(kind[1], first, first + count - 1))
  end
  tap.done()
end

return M
