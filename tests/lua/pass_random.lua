-- Random passes of random primitives: each primitive does what it says or raises a clean error, and what comes out
-- trains to the weights of one device, bit for bit, or is refused with the name of the pass.
-- PASS_SEEDS=first:last runs other seeds than a few.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"

local first, last = (os.getenv "PASS_SEEDS" or "1:200"):match "^(%d+):(%d+)$"
local data = exact.data()

local state
local function random(n) -- 1 .. n
  state = (state * 6364136223846793005 + 1442695040888963407)
  return (state >> 33) % n + 1
end
local function any(list) return list[random(#list)] end

local references = {}
local function reference(kind, stages)
  local key = kind .. stages
  references[key] = references[key] or exact.trace(piper.compile(exact.model(kind, stages), piper.strategy(),
    { batch = 24, dtype = "f64", optimizer = piper.sgd { lr = 1 } }), data)
  return references[key]
end

local FLAGS = { {} }
for _, zero in ipairs(exact.zero) do FLAGS[#FLAGS + 1] = zero[2] end

local function random_strategy(stages, sharded)
  local schedule = any { "gpipe", "one_f_one_b", "zb_h1", "none" }
  local sizes = {}
  for s = 1, stages do sizes[s] = any { 1, 2, 2, 4 } end
  local microbatches = any { 1, 2, 3 }
  local flags = {}
  for k, v in pairs(any(FLAGS)) do flags[k] = v end
  flags.bucket_size = any { 25, 64 / (1 << 20) }
  for i = 1, stages do sizes[i] = sharded and (sizes[i] // 2 * 2) or sizes[i] end
  for i = 1, stages do sizes[i] = math.max(sizes[i], sharded and 2 or 1) end
  local s = exact.strategy(schedule == "none" and "gpipe" or schedule, stages, microbatches, nil, sizes, flags)
  if schedule == "none" then -- the same without orders
    local plain = piper.strategy()
    for _, d in ipairs(s.directives) do
      if d.op ~= "order" then plain.directives[#plain.directives + 1] = d end
    end
    s = plain
  end
  local at = 0
  for i = 1, sharded and stages or 0 do
    local groups = {}
    for g = 1, sizes[i] // 2 do groups[g] = { at + 2 * g - 2, at + 2 * g - 1 } end
    s:shard { filter = { PP = i - 1, EP = "*" }, devices = groups }
    at = at + sizes[i]
  end
  if random(4) == 1 then s:recompute { filter = { PP = random(stages) - 1 } } end
  return s, ("%s, %d microbatches, devices %s, %s"):format(schedule, microbatches, table.concat(sizes, ","),
    exact.flags_text(flags))
end

-- Two stages with experts: what is not exact is compared by check_equivalence.
local experts = piper.model("experts", function(m)
  local x, y = m:input("x", { "batch", 3, 4 }, "f32"), m:input("y", { "batch", 3, 4 }, "f32")
  local h = x
  for stage = 0, 1 do
    piper.annotate("PP", function()
      h = h + piper.nn.moe(piper.nn.linear(h, "mix" .. stage, { out = 4 }), "mlp" .. stage, { experts = 4, top_k = 2, width = 3 })
      if stage == 1 then m:loss(piper.nn.mse(h, y)) end
    end)
  end
end, { init = { normal = 0.5 } })

-- ---- random primitives ------------------------------------------------------------------------------

local counts = {} -- by primitive: done, refused

local PRIMITIVES = {}

function PRIMITIVES.before(dag, all)
  local a, b = any(all), any(all)
  for _ = 1, 4 do pcall(dag.before, dag, any(all), any(all)) end
  dag:before(a, b)
end

function PRIMITIVES.delay(dag) -- a collective behind something else
  local list = {}
  for _, kind in ipairs { "all_reduce", "reduce_scatter", "all_gather", "transfer", "all_to_all" } do
    table.move(dag:nodes({}, kind), 1, #dag:nodes({}, kind), #list + 1, list)
  end
  if #list > 1 then dag:before(any(list), any(list)) end
  if #list > 0 then dag:before(any(dag:nodes {}), any(list)) end
end

function PRIMITIVES.remove(dag, all)
  local edges = random(2) == 1 and dag:edges_in(any(all)) or dag:edges_out(any(all))
  if #edges > 0 then dag:remove(any(edges)) end
end

function PRIMITIVES.stream(_, all) any(all).stream = any { "dp_stream", "pp_stream", "mine", "default_stream" } end

function PRIMITIVES.tag(dag, all) dag:tag(any(all), any { "OWN", "PP", "MB" }, any { 0, 1, false }) end

function PRIMITIVES.position(dag, all)
  dag:position(any(all), { order = random(3), group = random(5), member = random(2) - 1 })
end

function PRIMITIVES.split_reduction(dag, all)
  local reductions = dag:nodes({}, any { "all_reduce", "reduce_scatter" })
  local r = #reductions > 0 and any(reductions) or any(all)
  local groups = {}
  for _, e in ipairs(dag:edges_in(r)) do
    if e.kind == "data" then
      local k = random(3)
      if not groups[k] then k = #groups + 1 end
      groups[k] = groups[k] or {}
      table.insert(groups[k], e.from)
    end
  end
  if random(8) == 1 then table.remove(groups) end
  dag:split_reduction(r, groups)
end

function PRIMITIVES.gather_again(dag, all)
  local gathers = dag:nodes({}, "all_gather")
  local g = #gathers > 0 and any(gathers) or any(all)
  local out = dag:edges_out(g)
  dag:gather_again(g, #out > 0 and any(out).to or any(all))
end

function PRIMITIVES.wrong(dag, all)
  local odd = { -1, 0, #all + 1, 1.5, 0 / 0, 1e300, "1", {}, true, math.mininteger }
  any { function() dag:before(any(odd), any(all)) end, function() dag:tag(any(all), any(odd), any(odd)) end,
    function() any(all).stream = any(odd) end, function() dag:split_reduction(any(all), any(odd)) end,
    function() dag:nodes({ PP = any(odd) }) end, function() dag:node(any(odd)) end,
    function() dag:position(any(all), { order = any(odd), group = any(odd) }) end } ()
end

local NAMES = {}
for name in pairs(PRIMITIVES) do
  NAMES[#NAMES + 1] = name
  counts[name] = { 0, 0 }
end
table.sort(NAMES)

local unclean, start
local function random_pass(dag)
  state = start -- the same each time that the plan is compiled
  for _ = 1, 12 + random(40) do
    local name = any(NAMES)
    local all = dag:nodes({}, "*")
    local fine, message = pcall(PRIMITIVES[name], dag, all)
    counts[name][fine and 1 or 2] = counts[name][fine and 1 or 2] + 1
    if not fine and not tostring(message):find "^%S+pass_random.lua:%d+: [%w_]+: " then unclean = message end
  end
end

-- ---- all of it --------------------------------------------------------------------------------------

local trained, refused = 0, 0
for seed = tonumber(first), tonumber(last) do
  state = seed * 7919
  local kind = any { "plain", "skip", "shared", "uneven", "tied", "frozen_first", "no_parameters", "experts" }
  local stages = kind == "experts" and 2 or random(3)
  local strategy, text = random_strategy(stages, kind == "experts")
  local after = any { "place", "shard", "replicate", "count", "order", "order", "zero", "zero" }
  local name = ("seed %d: after %s: %s, %d stages, %s"):format(seed, after, kind, stages, text)
  unclean, start = nil, state
  local made, plan
  do
    local _ <close> = piper.pass("random", random_pass, { after = after })
    made, plan = pcall(piper.compile, kind == "experts" and experts or exact.model(kind, stages), strategy,
      { batch = 24, dtype = "f64", optimizer = piper.sgd { lr = 1 }, verify = true })
  end
  if unclean then tap.is(unclean, "a clean error", name) end
  if made then
    trained = trained + 1
  end
  if made and kind == "experts" then
    local fine, equal = pcall(plan.check_equivalence, plan, { steps = 2 })
    if not tap.ok(fine, name) then tap.diag(equal) end
  elseif made then
    local fine, got = pcall(exact.trace, plan, data)
    if not tap.ok(fine and got == reference(kind, stages), name) then
      tap.diag(fine and exact.difference(got, reference(kind, stages)) or got)
    end
  else
    refused = refused + 1
    -- Or an order of the strategy contradicts one of the pass before it.
    local text_of = tostring(plan)
    local contradicts = after ~= "order" and after ~= "zero" and (text_of:find ": order: .* but has to wait for it: "
      or text_of:find ": order: .* on the way from one to the other: ")
    if not contradicts then tap.like(plan, 'pass_random.lua:%d+: pass "random" leaves a DAG that is not right: ', name) end
  end
end
tap.diag(("%d trained, %d refused"):format(trained, refused))
for _, name in ipairs(NAMES) do tap.diag(("%s: %d done, %d refused"):format(name, counts[name][1], counts[name][2])) end
tap.ok(trained > 2 * refused, "most of them train")
tap.done()
