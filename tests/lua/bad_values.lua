-- Values that no function expects: tables in themselves, lists with holes, numbers without end, things
-- that only look like a model; and calls at a wrong time. Each is one message at the script's line.
local tap = require "tap"
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local function fails(pattern, fn)
  tap.error_matches(fn, "^%S*bad_values.lua:%d+: " .. pattern, pattern:sub(1, 70))
end

local model = piper.model("m", function(m)
  local h = m:input("x", { "batch", 2 })
  for s = 0, 1 do
    piper.annotate("PP", function() h = nn.linear(h, "layer" .. s, { out = 2 }) end)
  end
  m:loss(nn.mean(h))
end)
local function strategy() return piper.strategy() end
local function compiled(options) return piper.compile(model, strategy(), options or { batch = 2 }) end
local data = piper.data.table { x = { { 1, 2 }, { 3, 4 } } }

-- Tables whose metatable is hidden or hostile.
for _, hidden in ipairs { 7, "locked", false, true } do
  local odd = setmetatable({}, { __metatable = hidden })
  fails("linear: argument 2 %(name%) is {}, not a string", function()
    piper.model("m", function(m) nn.linear(m:input("x", { "batch", 2 }), odd, { out = 1 }) end)
  end)
  fails("compile: argument 1 is {}, not a model", function() piper.compile(odd, strategy(), { batch = 1 }) end)
end
fails("compile: argument 1 is { graph = 3 }, not a model", function() piper.compile({ graph = 3 }, strategy(), { batch = 1 }) end)
fails("train: data is file .*; piper.data.text", function() piper.train(compiled(), { data = io.stdout }) end)
fails("check_equivalence: data is 3; piper.data.text", function() compiled():check_equivalence { data = 3 } end)
fails("check_equivalence: data is {}; piper.data.text", function() compiled():check_equivalence { data = {} } end)

-- Long and unprintable strings, as the core shows them.
local long = ("n"):rep(100000)
for _, wrong in ipairs { long, "\27[31m\0\n" } do
  local _, message = pcall(piper.model, "m", function(m) m:input("x", { "batch", wrong }) end)
  tap.ok(#message < 250 and not message:find "%c", "an axis that is a long or unprintable string")
  _, message = pcall(piper.model, "m", function(m) nn.linear(m:input("x", { "batch", 2 }), "a", { out = 1, init = function() return wrong end }) end)
  tap.ok(#message < 250 and not message:find "%c", "an initial value that is a long or unprintable string")
end

-- Numbers without end.
fails('sgd: field "lr" is inf, not a number of at least 0', function() piper.sgd { lr = math.huge } end)
fails('adamw: field "weight_decay" is inf', function() piper.adamw { lr = 1, weight_decay = math.huge } end)
fails('compile: field "clip_norm" is inf', function() compiled { batch = 2, clip_norm = math.huge } end)
fails("lr.constant: argument 1 is inf", function() piper.lr.constant(math.huge) end)
fails("train: the learning rate of step 1 is inf, not a number of at least 0", function()
  local run <close> = piper.train(compiled(), { data = data, lr = function() return math.huge end })
  for _ in run:steps(1) do end
end)

-- An optimizer that was changed by hand is checked again; a plan keeps the one it was made with.
local optimizer = piper.sgd { lr = 0.5 }
local plan = compiled { batch = 2, optimizer = optimizer }
optimizer.lr = -1
fails('sgd: field "lr" is %-1', function() compiled { batch = 2, optimizer = optimizer } end)
fails('compile: field "optimizer" is {.*piper.sgd{...} or', function() compiled { batch = 2, optimizer = { lr = 1 } } end)
fails('adamw: betas has 0 elements', function() compiled { batch = 2, optimizer = { kind = "adamw", lr = 1 } } end)
do
  local run <close> = piper.train(plan, { data = data })
  for _, m in run:steps(1) do tap.is(m.lr, 0.5, "the plan's optimizer is the one it was compiled with") end
end

-- A plan keeps its strategy as it was.
do
  local s = strategy()
  local p = piper.compile(model, s, { batch = 2 })
  s:place { filter = { PP = 7 }, devices = { 0 } }
  tap.ok(pcall(p.check_equivalence, p, { steps = 1 }), "directives added later are of no account to a plan")
end

-- Filters.
local function place(filter) return function() strategy():place { filter = filter, devices = { 0 } } end end
fails('place: PASS in the filter { PASS = {} } is {}, not one of "F"', place { PASS = {} })
fails('place: PASS in the filter .* not a list', place { PASS = { "F", nil, "B" } })
fails("place: PP in the filter .*, not a list", place { PP = { 0, nil, 2 } })
fails("place: PP in the filter .*, not a list", place { PP = { 0, 1, last = 2 } })
fails('place: "PP%?" is not a tag', place { ["PP\0"] = 0 })
do
  local all, began = {}, os.clock()
  for i = 1, 50000 do all[i] = i end
  pcall(place { PP = all })
  all[#all] = -1
  fails("place: index 50000 of PP in the filter { PP = { 1, 2, 3, 4, 5, 6, 7, 8, ... } } is %-1", place { PP = all })
  tap.ok(os.clock() - began < 5, "a long list of indices takes time in proportion")
end

-- Directives and schedules as data.
for _, line in ipairs { true, 3, { {} }, print } do
  local s = strategy()
  s:add { { op = "place", filter = {}, devices = { 0 }, line = line } }
  tap.ok(pcall(piper.compile, model, s, { batch = 2 }), "a directive's line that is a " .. type(line) .. " is not used")
end
fails("check: rank 0, column 1: 1 is not a filter", function()
  schedules.check { { op = "split", num_microbatches = 2 }, { op = "order", filters = { { 1, 2 }, { 3, 4 } } } }
end)
for _, name in ipairs { "gpipe", "one_f_one_b", "zb_h1", "dualpipe" } do
  fails(name .. ": 2147483648 ranks x %d stages x 4 microbatches are too many", function()
    schedules[name] { ranks = 1 << 31, microbatches = 4 }
  end)
  fails(name .. ": 4 ranks x %d stages x 9.22.*e%+18 microbatches are too many", function()
    schedules[name] { ranks = 4, microbatches = math.maxinteger }
  end)
end

-- Data.
local loop = { 1 }
loop[2] = loop
fails('data.table: sample 1 of "x" has lists nested deeper than 100', function() piper.data.table { x = { loop } } end)
fails('data.table: sample 1 of "x" is .*, not a list', function() piper.data.table { x = { { 1, nil, 3 }, { 4, nil, 6 } } } end)
fails('data.table: sample 2 of "x" is { 2, y = 1 }, not a list', function() piper.data.table { x = { { 1 }, { 2, y = 1 } } } end)

-- Parameters by a name that is not quite right.
do
  local run <close> = piper.train(compiled(), { data = data })
  for _ in run:steps(1) do end
  fails('params: the model has no parameter "layer0.wieght" %(did you mean "layer0.weight"%?%)$', function() run:params "layer0.wieght" end)
  fails('gradients: the model has no parameter "layer0.weight%?x"', function() run:gradients "layer0.weight\0x" end)
  fails('set_params: the model has no parameter "nn', function() run:set_params(long, {}) end)
end

-- Steps.
do
  local inside = true -- the rate of a step asks for that step, which asks for its rate
  local run
  run = piper.train(compiled(), { data = data, lr = function()
    if inside then for _ in run:steps(1) do end end
    return 0.1
  end })
  for _ = 1, 2 do
    fails("train: the learning rate function of step 1 starts a step of its own run$", function() for _ in run:steps(1) do end end)
  end
  inside = false
  local n = 0
  for _ in run:steps(math.maxinteger) do
    n = n + 1
    if n == 3 then break end
  end
  tap.is(n, 3, "steps to the end of all numbers")
  run:close()
end

-- Coroutines.
fails("adamw: field", coroutine.wrap(function() piper.adamw {} end))
tap.error_matches(coroutine.wrap(function() piper.adamw {} end), "^%S*bad_values.lua:%d+: adamw: ", "the position stands there once")
tap.error_matches(function() coroutine.wrap(piper.adamw) {} end, "^%S*bad_values.lua:%d+: adamw: ", "a coroutine of nothing but the library")
do
  local left = { coroutine.create(function() piper.model("left", function() coroutine.yield() end) end) }
  coroutine.resume(left[1])
  tap.ok(pcall(piper.model, "next", function(m) m:loss(nn.sum(m:input("x", { "batch" }))) end), "a model left in a coroutine does not hold up the next one")
  left[1] = nil
  collectgarbage()
  tap.ok(pcall(piper.model, "next", function(m) m:loss(nn.sum(m:input("x", { "batch" }))) end), "nor when the coroutine is gone")
end
fails('model: "inner" is inside the function of model "outer"', function()
  piper.model("outer", function() coroutine.wrap(function() piper.model("inner", print) end)() end)
end)

tap.done()
