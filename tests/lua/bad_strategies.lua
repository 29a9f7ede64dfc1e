-- Strategies that cannot be: a script as a user would write it, and the whole message. Each says what
-- was found, where (a directive's line; rank and column of a schedule) and what would be right.
-- (Further: bad_input.lua, moe_errors.lua, schedule_check.lua, strategy_json.lua, strategy_csv.lua.)
local tap = require "tap"
local piper = require "piper"

-- What the scripts share, in a chunk of its own, so that its lines are "model.lua:1" and so on.
local shared = assert(load([[
local env = ...
local piper = env.piper
local nn, schedules = piper.nn, piper.schedules
function env.chain(stages) -- 0: not annotated
  return piper.model("chain", function(m)
    local h = m:input("x", { "batch", 4 }, "f32")
    if stages == 0 then return m:loss(nn.sum_squares(nn.linear(h, "layer", { out = 4 }))) end
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        h = nn.linear(h, "layer" .. s, { out = 4 })
        if s == stages - 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
end
function env.experts()
  return piper.model("experts", function(m)
    local h = m:input("x", { "batch", 3, 4 }, "f32")
    for stage = 0, 1 do
      piper.annotate("PP", function()
        h = h + nn.moe(nn.rmsnorm(h, "norm" .. stage), "moe" .. stage, { experts = 6, top_k = 2, width = 8 })
        if stage == 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
end
local function place(s, stages, rank) for p = 0, stages - 1 do s:place { filter = { PP = p }, devices = { rank(p) } } end end
function env.single(s) place(s, 2, function(p) return p end) end
function env.looped(s) place(s, 4, function(p) return p % 2 end) end
function env.vee(s) place(s, 4, function(p) return math.min(p, 3 - p) end) end
function env.wide(s) s:place { filter = { PP = 0 }, devices = { 0, 1 } }:place { filter = { PP = 1 }, devices = { 2 } } end
function env.four(s) s:place { filter = {}, devices = { 0, 1, 2, 3 } }:replicate { filter = { EP = false }, devices = { 0, 1, 2, 3 } } end
function env.act(stage, pass, mb) return { PP = stage, PASS = pass, MB = mb } end
function env.change(s, name, edit) -- a schedule for two ranks, its orders edited
  local list, orders = schedules[name] { ranks = 2, microbatches = 4 }, {}
  for _, d in ipairs(list) do
    if d.op == "order" then orders[#orders + 1] = d.filters end
  end
  edit(orders)
  s:add(list)
end
]], "=model.lua"))
local env = setmetatable({ piper = piper, nn = piper.nn, schedules = piper.schedules }, { __index = _G })
shared(env)

-- The script runs as train.lua, with a strategy s, and is compiled for 24 samples; 'of': the stages of
-- the model, or "experts".
local models = {}
local function message_of(script, of)
  of = of or 2
  models[of] = models[of] or (of == "experts" and env.experts() or env.chain(of))
  env.model, env.s = models[of], piper.strategy()
  local fine, why = pcall(assert(load(script, "=train.lua", "t", env)))
  if fine then fine, why = pcall(piper.compile, env.model, env.s, { batch = 24 }) end
  return fine and "no error" or why
end

local CASES = {
  -- Schedules and placements that do not fit.
  { "looped(s) s:add(schedules.zbv { ranks = 2, microbatches = 4, devices = false })",
    "train.lua:1: order: rank 0, column 4: 3F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 3 on device 0 too", of = 4 },
  { "looped(s) s:add(schedules.dualpipev { ranks = 2, microbatches = 4, devices = false })",
    "train.lua:1: order: rank 0, column 4: 3F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 3 on device 0 too", of = 4 },
  { "vee(s) s:add(schedules.interleaved_one_f_one_b { ranks = 2, microbatches = 4, devices = false })",
    "train.lua:1: order: rank 0, column 3: 2F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 2 on device 0 too", of = 4 },
  { "vee(s) s:add(schedules.interleaved_zero_bubble { ranks = 2, microbatches = 4, devices = false })",
    "train.lua:1: order: rank 0, column 3: 2F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 2 on device 0 too", of = 4 },
  { "vee(s) s:add(schedules.looped_bfs { ranks = 2, microbatches = 4, devices = false })",
    "train.lua:1: order: rank 0, column 5: 2F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 2 on device 0 too", of = 4 },
  { [[looped(s) s:add(schedules.automatic { ranks = 2, microbatches = 4, placement = "v", devices = false })]],
    "train.lua:1: order: rank 0, column 4: 3F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 3 on device 0 too", of = 4 },
  { "single(s) s:add(schedules.dualpipe { ranks = 2, microbatches = 4, devices = false })",
    "train.lua:1: order: rank 0, column 2: 1F2 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for "
      .. "one device set, so place PP = 1, MB = 2 on device 0 too" },
  { [[s:add(schedules.zbv { ranks = 2, microbatches = 4, devices = false })
s:place { filter = { PP = 0 }, devices = { 0 } }]],
    "train.lua:2: place: 1F0 is on no device: no place directive matches F of the chunk { PP = 1 } (model.lua:10); where there is "
      .. "a place directive, each node needs one", of = 4 },
  { [[s:place { filter = { PP = { 0, 1 } }, devices = { 0 } } s:place { filter = { PP = 2 }, devices = { 1 } }
s:place { filter = { PP = 3, MB = 0 }, devices = { 0 } } s:place { filter = { PP = 3, MB = 1 }, devices = { 1 } }
s:add(schedules.zbv { ranks = 2, microbatches = 2, devices = false })]],
    "train.lua:3: order: rank 0, column 6: 3F1 is on device 1 (train.lua:2), 0F0 on device 0 (train.lua:1): one order is for one "
      .. "device set, so place PP = 3 on device 0 too", of = 4 },
  -- Stages.
  { "s:add(schedules.one_f_one_b { ranks = 4, microbatches = 4 })",
    "train.lua:1: schedule: it is for 4 stages (PP = 0 to 3), but the model has 2 stages (PP = 0 to 1): make it for 2 (ranks "
      .. "times stages per rank), or annotate 4 stages" },
  { "s:add(schedules.one_f_one_b { ranks = 2, microbatches = 4 })",
    "train.lua:1: schedule: it is for 2 stages (PP = 0 to 1), but the model has 4 stages (PP = 0 to 3): make it for 4 (ranks "
      .. "times stages per rank)", of = 4 },
  { [[single(s)
s:add(schedules.gpipe { ranks = 2, microbatches = 4, devices = false })]],
    "train.lua:2: schedule: it is for 2 stages (PP = 0 to 1), but the model has 4 stages (PP = 0 to 3): make it for 4 (ranks "
      .. "times stages per rank)", of = 4 },
  { "s:add(schedules.gpipe { ranks = 1, microbatches = 4 })",
    "train.lua:1: schedule: it is for 1 stage (PP = 0), but the model has 2 stages (PP = 0 to 1): make it for 2 (ranks times "
      .. "stages per rank)" },
  { "s:add(schedules.zbv { ranks = 2, microbatches = 4 })",
    "train.lua:1: schedule: it is for 4 stages (PP = 0 to 3), but the model has 2 stages (PP = 0 to 1): make it for 2 (ranks "
      .. "times stages per rank), or annotate 4 stages" },
  { "s:add(schedules.zbv { ranks = 2, microbatches = 4 })",
    "train.lua:1: schedule: it is for 4 stages (PP = 0 to 3), but the model has 6 stages (PP = 0 to 5): make it for 6 (ranks "
      .. "times stages per rank)", of = 6 },
  { "s:add(schedules.dualpipe { ranks = 4, microbatches = 8 })",
    "train.lua:1: schedule: it is for 4 stages (PP = 0 to 3), but the model has 2 stages (PP = 0 to 1): make it for 2 (ranks "
      .. "times stages per rank), or annotate 4 stages" },
  { "s:add(schedules.gpipe { ranks = 2, microbatches = 4 })",
    'train.lua:1: schedule: it is for 2 stages (PP = 0 to 1), but the model has none: make each stage with piper.annotate("PP", '
      .. '...)', of = 0 },
  { [[local list = schedules.zbv { ranks = 2, microbatches = 4 }
table.remove(list)
s:add(list)]],
    "train.lua:3: schedule: it places stage 1, but has no order that names it: each stage is in the order of its rank", of = 4 },
  { "s:place { filter = { PP = 0 }, devices = { 1 } }",
    [[train.lua:1: place: filter { PP = 0 } matches nothing; there is no tag "PP", nothing is annotated or split]], of = 0 },
  { "s:place { filter = { PP = 0 }, devices = { 1 } }",
    "train.lua:1: place: 1F0 is on no device: no place directive matches F of the chunk { PP = 1 } (model.lua:10); where there is "
      .. "a place directive, each node needs one" },
  { [[s:order { filters = { { PP = 0, PASS = "F" }, { PP = 9, PASS = "F" } } }]],
    [[train.lua:1: order: group 2: filter { PASS = "F", PP = 9 } matches nothing; PP runs from 0 to 1]] },
  { "s:add(schedules.gpipe { ranks = 2, microbatches = 5 })",
    "train.lua:1: split: the 24 samples of compile's batch = 24 do not divide into 5 microbatches, but into 4 or 6" },
  { "s:add(schedules.gpipe { ranks = 2, microbatches = 48 })",
    "train.lua:1: split: the 24 samples of compile's batch = 24 do not divide into 48 microbatches, but into at most 24" },
  -- What is no strategy, or no list.
  { [[piper.compile(model, { { op = "split", num_microbatches = 2 } }, { batch = 24 })]],
    "train.lua:1: compile: argument 2 is a plain table of directives, not a strategy: piper.strategy():add(list) makes one" },
  { "piper.compile(model, schedules.gpipe { ranks = 2, microbatches = 2 }, { batch = 24 })",
    "train.lua:1: compile: argument 2 is a plain table of directives, not a strategy: piper.strategy():add(list) makes one" },
  { [[piper.compile(model, { op = "split", num_microbatches = 2 }, { batch = 24 })]],
    "train.lua:1: compile: argument 2 is a plain table of directives, not a strategy: piper.strategy():add(list) makes one" },
  { "piper.compile(model, {}, { batch = 24 })",
    "train.lua:1: compile: argument 2 is {}, not a strategy of piper.strategy()" },
  { "piper.compile(model)",
    "train.lua:1: compile: argument 2 is nil, not a strategy of piper.strategy()" },
  { "s:add(piper.strategy())",
    "train.lua:1: add: argument 1 is a strategy, not a list of directives: strategy:copy() makes another one to add to" },
  { [[s:add { op = "split", num_microbatches = 2 }]],
    [[train.lua:1: add: argument 1 is a single directive, not a list of them: add { { op = "split", ... } }]] },
  { "s:add(schedules.gpipe)",
    "train.lua:1: add: argument 1 is a function, not the list of directives that calling it returns: schedules.gpipe { ranks = 2, "
      .. "microbatches = 4 }" },
  { "s:add()",
    "train.lua:1: add: argument 1 is missing: it is a list" },
  { "s:add { s:copy() }",
    "train.lua:1: add: element 1 is strategy: 0 directives, not a directive" },
  { [[s:add { { op = "spilt", num_microbatches = 2 } }]],
    'train.lua:1: add: op of directive 1 is "spilt", not one of "order", "place", "recompute", "replicate", "shard", "split" (did '
      .. 'you mean "split"?)' },
  { "s:add { { num_microbatches = 2 } }",
    [[train.lua:1: add: op of directive 1 is missing: it is one of "order", "place", "recompute", "replicate", "shard", "split"]] },
  -- Fields of schedules.
  { "schedules.gpipe { ranks = 2, microbatch = 2 }",
    [[train.lua:1: gpipe: unknown field "microbatch" (did you mean "microbatches"?)]] },
  { "schedules.zbv { rank = 2, microbatches = 2 }",
    [[train.lua:1: zbv: unknown field "rank" (did you mean "ranks"?)]] },
  { "schedules.dualpipe { ranks = 2, microbatches = 2, stages_per_rank = 2 }",
    [[train.lua:1: dualpipe: field "stages_per_rank" is 2: its placement, "bidirectional", has 1 on each rank]] },
  { "schedules.zb_h1 { ranks = 2 }",
    [[train.lua:1: zb_h1: field "microbatches" is missing: it is a whole number of at least 1]] },
  { "schedules.gpipe { ranks = 0, microbatches = 2 }",
    [[train.lua:1: gpipe: field "ranks" is 0, not a whole number of at least 1]] },
  { "schedules.gpipe { ranks = -1, microbatches = 2 }",
    [[train.lua:1: gpipe: field "ranks" is -1, not a whole number of at least 1]] },
  { "schedules.gpipe { ranks = 1e9, microbatches = 2 }",
    "train.lua:1: gpipe: 1000000000 ranks x 1 stages x 2 microbatches are too many: the product is at most 4194304" },
  { "schedules.gpipe { ranks = 0/0, microbatches = 2 }",
    [[train.lua:1: gpipe: field "ranks" is nan, not a whole number of at least 1]] },
  { "schedules.gpipe { ranks = math.huge, microbatches = 2 }",
    [[train.lua:1: gpipe: field "ranks" is inf, not a whole number of at least 1]] },
  { "schedules.gpipe { ranks = 2.5, microbatches = 2 }",
    [[train.lua:1: gpipe: field "ranks" is 2.5, not a whole number of at least 1]] },
  { [[schedules.gpipe { ranks = "2", microbatches = 2 }]],
    [[train.lua:1: gpipe: field "ranks" is "2", not a whole number of at least 1]] },
  { "schedules.zbv { ranks = 2, microbatches = 0 }",
    [[train.lua:1: zbv: field "microbatches" is 0, not a whole number of at least 1]] },
  { "schedules.automatic { ranks = 0/0, microbatches = 2 }",
    [[train.lua:1: automatic: field "ranks" is nan, not a whole number of at least 1]] },
  { "schedules.dualpipe { ranks = 3, microbatches = 6 }",
    'train.lua:1: dualpipe: field "ranks" is 3: its two directions meet between two ranks, so the number is even; the smallest '
      .. 'above is 4' },
  { "schedules.gpipe(2, 4)",
    "train.lua:1: gpipe: expects a table of options, not 2" },
  { "schedules.gpipe()",
    "train.lua:1: gpipe: expects a table of options, not nil" },
  { "schedules.gpipe { ranks = 2, microbatches = 2, devices = { 0, 1 } }",
    "train.lua:1: gpipe: the device set of rank 0 is 0: it is a list such as { 0 }" },
  { "schedules.gpipe { ranks = 2, microbatches = 2, devices = { { 0 } } }",
    "train.lua:1: gpipe: devices lists 1 device sets for 2 ranks" },
  { "schedules.gpipe { ranks = 2, microbatches = 2, devices = true }",
    [[train.lua:1: gpipe: field "devices" is true, not a list]] },
  -- Replicas and experts.
  { "wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 2 } }",
    "train.lua:1: replicate: the chunk { PP = 0 } (model.lua:10) is placed on devices 0-1, but replicated over devices 0,2: give "
      .. "both directives the same devices" },
  { "s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }",
    "train.lua:1: replicate: the chunk { PP = 0 } (model.lua:10) is placed on device 0, but replicated over devices 0-1: give "
      .. "both directives the same devices" },
  { "wide(s) s:replicate { filter = {}, devices = { 0, 1 } }",
    "train.lua:1: replicate: the chunk { PP = 1 } (model.lua:10) is placed on device 2, but replicated over devices 0-1: give "
      .. "both directives the same devices" },
  { "wide(s)",
    'model.lua:31: place: the chunk { PP = 0 } (model.lua:10) trains "layer0.weight" on devices 0-1, but nothing keeps it the '
      .. 'same there: add a replicate directive that matches this chunk, with these devices' },
  { "wide(s) s:shard { filter = { PP = 0 }, devices = { 0, 1 } }",
    'train.lua:1: shard: the chunk { PP = 0 } (model.lua:10) has no experts: those of nn.moe are in a scope EP of their own, '
      .. 'which { EP = "*" } matches' },
  { [[wide(s) s:shard { filter = { EP = "*" }, devices = { 0, 1 } }]],
    [[train.lua:1: shard: filter { EP = "*" } matches nothing; there is no tag "EP" (did you mean "PP"?); the only tag is PP]] },
  { "four(s) s:shard { filter = {}, devices = { 0, 1 } }",
    'train.lua:1: shard: the chunk { PP = 0 } (model.lua:21) has no experts: those of nn.moe are in a scope EP of their own, '
      .. 'which { EP = "*" } matches', of = "experts" },
  { [[four(s) s:shard { filter = { EP = "*" }, devices = { 0, 1, 2, 3 } }]],
    "train.lua:1: shard: the 6 experts of the chunk { PP = 0, EP = 0 } (model.lua:21) do not divide over 4 devices", of = "experts" },
  -- Two directives that cannot both hold.
  { [[wide(s)
s:place { filter = { PP = 1 }, devices = { 7 } }]],
    "train.lua:2: place: 1F0 is placed on device 7 here and on device 2 at model.lua:31" },
  { [[s:place { filter = {}, devices = { 0, 1 } }
s:place { filter = { PP = 1 }, devices = { 1, 0 } }]],
    "train.lua:2: place: 1F0 is placed on devices 1,0 here and on devices 0-1 at train.lua:1" },
  { [[s:place { filter = {}, devices = { 0 }, stream = "a" }
s:place { filter = { PP = 1 }, devices = { 0 }, stream = "b" }]],
    [[train.lua:2: place: transfers from 1F0 are on stream "b" here and on "a" at train.lua:1]] },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, shard_grads = true }]],
    "train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) has shard_grads here and no shard_ flag at train.lua:1" },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, bucket_size = 1.5 }]],
    "train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) has buckets of 1.50 MiB here and of 25 MiB at train.lua:1" },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, keep = 0.25 }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }]],
    "train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) has keep = 0 here and 256 KiB at train.lua:1" },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, reduce = "microbatch" }]],
    [[train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) has reduce = "microbatch" here and "step" at train.lua:1]] },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, reduce_stream = "x" }]],
    [[train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) is reduced on "x" here and on "dp_stream" at train.lua:1]] },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, gather_stream = "x" }]],
    [[train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) is gathered on "x" here and on "ag_stream" at train.lua:1]] },
  { [[wide(s) s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 }, prefetch = 3 }]],
    "train.lua:2: replicate: the chunk { PP = 0 } (model.lua:10) has prefetch = 3 here and 1 at train.lua:1" },
  { [[wide(s) s:replicate { filter = { PP = 0, PASS = "F" }, devices = { 0, 1 } }]],
    "train.lua:1: replicate: the filter matches only a part of the chunk { PP = 0 } (model.lua:10) and not its 0B0: leave PASS "
      .. "and microbatches out" },
  { [[four(s) s:shard { filter = { EP = "*" }, devices = { { 0, 1 }, { 2, 3 } } }
s:shard { filter = { EP = 1 }, devices = { { 0 }, { 1 }, { 2 }, { 3 } } }]],
    "train.lua:2: shard: the chunk { PP = 1, EP = 1 } (model.lua:21) is spread over 1 device here and over 2 at train.lua:1", of = "experts" },
  { [[four(s) s:shard { filter = { EP = "*" }, devices = { { 0, 1 }, { 2, 3 } } }
s:shard { filter = { EP = 1 }, devices = { { 0, 1 }, { 2, 3 } }, stream = "q" }]],
    [[train.lua:2: shard: the chunk { PP = 1, EP = 1 } (model.lua:21) exchanges tokens on "q" here and on "ep_stream" at train.lua:1]], of = "experts" },
  { [[four(s) s:shard { filter = { EP = "*" }, devices = { { 0, 1 }, { 2, 3 } } }
s:replicate { filter = { EP = "*" }, devices = { 0, 1 } }]],
    "train.lua:2: replicate: the chunk { PP = 0, EP = 0 } (model.lua:21) is placed on devices 0-3, but replicated over devices "
      .. "0-1: give both directives the same devices", of = "experts" },
  { [[four(s) s:shard { filter = { EP = "*" }, devices = { { 4, 5 }, { 6, 7 } } }]],
    "train.lua:1: shard: the chunk { PP = 0, EP = 0 } (model.lua:21) is placed on devices 0-3, but its experts are spread over "
      .. "devices 4-7", of = "experts" },
  { [[s:split { num_microbatches = 2 }
s:split { num_microbatches = 3 }]],
    [[train.lua:2: split: dim_name "MB" was given to the split at train.lua:1; choose another]] },
  { [[s:split { num_microbatches = 4 }
s:add(schedules.gpipe { ranks = 2, microbatches = 4 })]],
    [[train.lua:2: split: dim_name "MB" was given to the split at train.lua:1; choose another]] },
  { [[s:add(schedules.gpipe { ranks = 2, microbatches = 4 })
s:add(schedules.zb_h1 { ranks = 2, microbatches = 4 })]],
    [[train.lua:2: split: dim_name "MB" was given to the split at train.lua:1; choose another]] },
  { [[s:split { dim_name = "PP", num_microbatches = 2 }]],
    [[train.lua:1: split: dim_name "PP" is the tag of a scope of the model; choose another]] },
  { [[s:split { num_microbatches = 2 }
s:order { filters = { act(0, "F", 0), act(0, "F", 1) } }
s:order { filters = { act(0, "F", 1), act(0, "B", 0) } }]],
    "train.lua:3: order: group 1: 0F1 again (first in group 2 of the order at train.lua:2): an action runs once" },
  { [[s:split { num_microbatches = 2 }
s:order { filters = { act(0, "F", 0), act(0, "F", 0) } }]],
    "train.lua:2: order: group 2: 0F0 again (first in group 1): an action runs once" },
  { [[s:split { num_microbatches = 2 }
s:order { filters = { act(0, "F", 0), { act(0, "F", 1), act(0, "F", 1) } } }]],
    "train.lua:2: order: group 2: 0F1 twice in one group" },
  { [[s:split { num_microbatches = 2 }
s:order { filters = { act(0, "F", 0), { PP = 0, PASS = "F" } } }]],
    [[train.lua:2: order: group 2: filter { PASS = "F", PP = 0 } matches 0F0 again (first in group 1): an action runs once]] },
  { [[s:split { num_microbatches = 2 } single(s)
s:order { filters = { act(0, "B", 0), act(0, "F", 1) } }
s:order { filters = { act(1, "F", 1), act(1, "F", 0) } }]],
    "train.lua:2: order: 0B0 is ordered before 0F1, but has to wait for it: 0F1 -> transfer layer0 0F1 0>1 -> 1F1 -> (order, "
      .. "train.lua:3) 1F0 -> 1B0 -> transfer grad layer0 1B0 1>0 -> 0B0 -> (order, train.lua:2) 0F1" },
  { [[s:order { filters = { { PP = 0, PASS = "R" }, { PP = 0, PASS = "B" } } }]],
    'train.lua:1: order: group 1: filter { PASS = "R", PP = 0 } matches nothing; 2 nodes have PP = 0, but none of them PASS = "R" '
      .. '(a recompute directive that matches the chunk makes it)' },
  { [[s:recompute { filter = { PP = 1 } }
s:order { filters = { { PP = 0, PASS = "R" }, { PP = 0, PASS = "B" } } }]],
    'train.lua:2: order: group 1: filter { PASS = "R", PP = 0 } matches nothing; 2 nodes have PP = 0, but none of them PASS = "R" '
      .. '(a recompute directive that matches the chunk makes it)' },
  { [[s:recompute { filter = { PP = 0 } }
s:order { filters = { { PP = 0, PASS = "B" }, { PP = 0, PASS = "R" } } }]],
    "train.lua:2: order: group 1: 0B0 is ordered before 0R0 (group 2), but has to wait for it: 0R0 -> 0B0 -> (order, train.lua:2) 0R0" },
  { [[s:recompute { filter = { PP = 0 } }
s:order { filters = { { PP = 0, PASS = "R" }, { PP = 0, PASS = "F" } } }]],
    "train.lua:2: order: group 1: 0R0 is ordered before 0F0 (group 2), but has to wait for it: 0F0 -> 0R0 -> (order, train.lua:2) 0F0" },
  { [[s:recompute { filter = { PP = 0, PASS = "F" } }]],
    "train.lua:1: recompute: a chunk is recomputed as a whole: leave PASS out of the filter" },
  -- Filters.
  { [[s:place { filter = { ["P\n"] = 0 }, devices = { 0 } }]],
    [[train.lua:1: place: "P?" is not a tag: it is a word such as PP]] },
  -- Halves of backward passes.
  { [[s:order { filters = { { PP = 0, PASS = "F" }, { PP = 0, PASS = "BI" } } }]],
    "train.lua:1: order: group 2: BI without BW: 0B0 is named as BI, so the same order has to name it as BW too, anywhere after" },
  { [[s:order { filters = { { PP = 0, PASS = "F" }, { PP = 0, PASS = "BW" } } }]],
    "train.lua:1: order: group 2: BW without BI: 0B0 is named as BW, so the same order has to name it as BI too, anywhere before" },
  { [[s:order { filters = { { PP = 0, PASS = "F" }, { PP = 0, PASS = "BW" }, { PP = 0, PASS = "BI" } } }]],
    "train.lua:1: order: group 2: 0W0 is ordered before 0I0 (group 3), but has to wait for it: 0I0 -> 0W0 -> (order, train.lua:1) 0I0" },
  { [[s:order { filters = { { PP = 0, PASS = "F" }, { PP = 0, PASS = "BI" } } }
s:order { filters = { { PP = 1, PASS = "B" }, { PP = 0, PASS = "BW" } } }]],
    "train.lua:1: order: group 2: BI without BW: 0B0 is named as BI, so the same order has to name it as BW too, anywhere after" },
  { [[s:order { filters = { { PP = 0, PASS = "B" }, { PP = 0, PASS = "BI" }, { PP = 0, PASS = "BW" } } }]],
    "train.lua:1: order: group 1: 0B0 is named as B here, and as BI and BW in the order at train.lua:1 (group 2): its backward "
      .. "pass is either one or split" },
  { [[s:order { filters = { { PP = 0, PASS = "BI" }, { PP = 0, PASS = "BW" } } }
s:order { filters = { { PP = 1, PASS = "B" }, { PP = 0, PASS = "B" } } }]],
    "train.lua:2: order: group 2: 0B0 is named as B here, and as BI and BW in the order at train.lua:1 (group 1): its backward "
      .. "pass is either one or split" },
  { [[s:place { filter = { PP = 0, PASS = "BI" }, devices = { 0 } }]],
    'train.lua:1: place: filter { PASS = "BI", PP = 0 } matches nothing; 2 nodes have PP = 0, but none of them PASS = "BI" (an '
      .. 'order that names BI and BW makes them)' },
  { [[s:place { filter = { PASS = "F" }, devices = { 0 } }
s:place { filter = { PASS = "B" }, devices = { 1 } }]],
    "train.lua:2: place: 0F0 is on device 0 (train.lua:1), 0B0 on device 1 (train.lua:2): all passes of a chunk and microbatch "
      .. "have to be on the same devices" },
  { [[change(s, "zb_h1", function(o) o[1][6], o[1][7] = o[1][7], o[1][6] end)]],
    "model.lua:40: order: rank 0, column 6: 0W1 is ordered before 0I1 (column 7), but has to wait for it: 0I1 -> 0W1 -> (order, "
      .. "model.lua:40) 0I1" },
  { [[change(s, "zb_h1", function(o) table.remove(o[1], 7) end)]],
    "model.lua:40: order: rank 0, column 6: BI without BW: 0B1 is named as BI, so the same order has to name it as BW too, "
      .. "anywhere after" },
  { [[change(s, "zb_h1", function(o) o[1][7].PASS = "B" end)]],
    "model.lua:40: order: rank 0, column 7: 0B1 is named as B here, and as BI in the order at model.lua:40 (rank 0, column 6): "
      .. "its backward pass is either one or split" },
  -- Groups.
  { [[single(s)
s:order { filters = { { PP = 0, PASS = "F" }, { { PP = 0, PASS = "B" }, { PP = 1, PASS = "F" } } } }]],
    "train.lua:2: order: group 2: 1F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for one device "
      .. "set, so place PP = 1 on device 0 too" },
  { [[single(s)
s:order { filters = { { PASS = "F" }, { PP = 1, PASS = "B" } } }]],
    "train.lua:2: order: group 1: 1F0 is on device 1 (model.lua:27), 0F0 on device 0 (model.lua:27): one order is for one device "
      .. "set, so place PP = 1 on device 0 too" },
  { [[change(s, "one_f_one_b", function(o) o[2][2] = { o[2][2], o[1][1] } end)]],
    "model.lua:40: order: rank 1, column 2: 0F0 again (first on rank 0, in column 1): an action runs once" },
  -- Cells of schedules.
  { [[change(s, "one_f_one_b", function(o) o[1][3] = act(0, "F", 0) end)]],
    "model.lua:40: order: rank 0, column 3: 0F0 again (first in column 1): an action runs once" },
  { [[change(s, "one_f_one_b", function(o) table.remove(o[1], 3) end)]],
    "model.lua:40: order: rank 0: 0B0 is missing: a schedule names each action of its stages once" },
  { [[change(s, "one_f_one_b", function(o) o[1][3].MB = 9 end)]],
    [[model.lua:40: order: rank 0, column 3: filter { MB = 9, PASS = "B", PP = 0 } matches nothing; MB runs from 0 to 3]] },
  { [[change(s, "one_f_one_b", function(o) o[1][3].PP = 9 end)]],
    [[model.lua:40: order: rank 0, column 3: filter { MB = 0, PASS = "B", PP = 9 } matches nothing; PP runs from 0 to 1]] },
  { [[change(s, "one_f_one_b", function(o) o[1][3].PASS = "G" end)]],
    'model.lua:40: order: rank 0, column 3: PASS in the filter { MB = 0, PASS = "G", PP = 0 } is "G", not one of "F", "B", "BI", '
      .. '"BW", "R" (did you mean "F"?)' },
  { [[change(s, "one_f_one_b", function(o) o[1][3].MB = nil end)]],
    "model.lua:40: order: rank 0, column 5: 0B1 again (first in column 3): an action runs once" },
  { [[change(s, "one_f_one_b", function(o) o[1][3] = 3 end)]],
    "model.lua:40: order: rank 0, column 3 is 3: a filter or a list of filters was expected" },
  { [[change(s, "one_f_one_b", function(o) o[2][3], o[2][4] = o[2][4], o[2][3] end)]],
    "model.lua:40: order: rank 1, column 3: 1B1 is ordered before 1F1 (column 4), but has to wait for it: 1F1 -> 1B1 -> (order, "
      .. "model.lua:40) 1F1" },
}
for _, case in ipairs(CASES) do
  tap.is(message_of(case[1], case.of), case[2], (case[2]:gsub("^%S+ ", ""):sub(1, 60)))
end

-- No directive at all: everything is on device 0.
tap.is(message_of("", 4), "no error", "a model with stages may have an empty strategy")
tap.is(#piper.compile(env.chain(4), piper.strategy(), { batch = 24 }):memory(), 0, "and has one rank")
tap.done()
