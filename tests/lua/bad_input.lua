-- What a user can get wrong between model and running plan: one clear message, the script's line,
-- what would be right. (Forms of directives: strategy_form.lua. Models: the tests of tracing.)
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local function model_of(stages)
  return piper.model("m", function(m)
    local h = m:input("x", { "batch", 4 }, "f32")
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        h = nn.linear(h, "layer" .. s, { out = 4 })
        if s == stages - 1 then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
end
local model = model_of(4)

-- Builds a strategy by 'fill' and compiles it; the message matches 'pattern', after "file:line: ".
local function fails(pattern, fill, options)
  local s = piper.strategy()
  fill(s)
  tap.error_matches(function() piper.compile(model, s, options or { batch = 24 }) end,
    "^%S*bad_input.lua:%d+: " .. pattern, pattern)
end
local function placed(s)
  for p = 0, 3 do s:place { filter = { PP = p }, devices = { p } } end
end

-- Filters.
fails("place: .*{ QQ = 0 }.*QQ.*PP", function(s) s:place { filter = { QQ = 0 }, devices = { 0 } } end)
fails("place: .*{ PP = 5 } matches nothing; PP runs from 0 to 3", function(s) s:place { filter = { PP = 5 }, devices = { 0 } } end)
fails("order: .*{ .*PP = 5.* } matches nothing; PP runs from 0 to 3", function(s)
  s:order { filters = { { PP = 0, PASS = "F" }, { PP = 5, PASS = "F" } } }
end)
fails("split: .*{ PP = false } matches nothing", function(s) s:split { filter = { PP = false }, num_microbatches = 2 } end)
fails("order: .*{ MB = 2.* } matches nothing; MB runs from 0 to 1", function(s)
  s:split { num_microbatches = 2 }
  s:order { filters = { { MB = 1, PP = 0, PASS = "F" }, { MB = 2, PP = 0, PASS = "F" } } }
end)
fails("order: .*MB", function(s) s:order { filters = { { MB = 0, PASS = "F" }, { MB = 0, PASS = "B" } } } end)

-- Batches.
fails("split: .*8.* 3", function(s) s:split { num_microbatches = 3 } end, { batch = 8 })
fails("place: 9 samples cannot be divided equally over devices 0%-1", function(s) s:place { filter = {}, devices = { 0, 1 } } end, { batch = 9 })
fails('split: .*"MB"', function(s)
  s:split { num_microbatches = 2 }
  s:split { num_microbatches = 2 }
end)
fails('split: .*"PP"', function(s) s:split { dim_name = "PP", num_microbatches = 2 } end)

-- Placement.
fails("place: .*PP.*3", function(s) s:place { filter = { PP = { 0, 1, 2 } }, devices = { 0 } } end)
fails("place: .*bad_input.lua:%d+", function(s)
  placed(s)
  s:place { filter = { PP = 2 }, devices = { 7 } }
end)
fails("place: the chunk { PP = 0 } .*add a replicate directive", function(s) s:place { filter = {}, devices = { 0, 1 } } end)
fails("replicate: ", function(s)
  placed(s)
  s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
end)

-- Orders.
local function act(pp, pass, mb) return { PP = pp, PASS = pass, MB = mb } end
fails("order: .*0B0.*0F0", function(s)
  s:order { filters = { { PP = 0, PASS = "B" }, { PP = 0, PASS = "F" } } }
end)
fails("order: .*1F0", function(s) -- a cycle through two ranks
  placed(s)
  s:split { num_microbatches = 2 }
  s:order { filters = { act(0, "B", 0), act(0, "F", 1) } }
  s:order { filters = { act(1, "F", 1), act(1, "F", 0) } }
end)
fails("order: ", function(s)
  placed(s)
  s:order { filters = { { PP = 0, PASS = "F" }, { PP = 1, PASS = "F" } } }
end)
fails("order: .*BW", function(s) s:order { filters = { { PP = 0, PASS = "BI" }, { PP = 1, PASS = "BI" } } } end)

local function schedule(change)
  return function(s)
    local list = piper.schedules.one_f_one_b { ranks = 4, microbatches = 4 }
    local orders = {}
    for _, d in ipairs(list) do
      if d.op == "order" then orders[#orders + 1] = d.filters end
    end
    change(orders)
    s:add(list)
  end
end
fails("order: .*rank 1.*1B2.*missing", schedule(function(o) table.remove(o[2], 7) end))
fails("order: .*rank 1, column 7.*1F0.*column 1", schedule(function(o) o[2][7] = act(1, "F", 0) end))

-- Options of compile.
local function compile_fails(pattern, options)
  tap.error_matches(function() piper.compile(model, piper.strategy(), options) end, "^%S*bad_input.lua:%d+: compile: " .. pattern, pattern)
end
compile_fails('unknown field "bacth" %(did you mean "batch"%?%)', { bacth = 8 })
compile_fails('field "batch" is missing', {})
compile_fails('field "batch" is 0', { batch = 0 })
compile_fails('field "dtype" is "f16", not one of "f32", "f64"', { batch = 8, dtype = "f16" })
compile_fails('field "device" is "tpu", not one of', { batch = 8, device = "tpu" })
compile_fails('field "optimizer"', { batch = 8, optimizer = {} })
compile_fails(".*threads_per_rank.* 0", { batch = 8, threads_per_rank = 0 })
compile_fails(".*threads_per_rank.* 5000", { batch = 8, threads_per_rank = 5000 })
compile_fails("rank 0 needs %d+%.?%d* [KM]iB and memory_limit is 100 B: params 320 B, ", { batch = 8, memory_limit = 100 })
tap.error_matches(function() piper.compile({}, piper.strategy(), { batch = 1 }) end, "compile: argument 1 is {}, not a model")
tap.error_matches(function() piper.compile(model, {}, { batch = 1 }) end, "compile: argument 2 is {}, not a strategy")
tap.error_matches(function() piper.sgd { lr = 1, momentum = 1 } end, "sgd: momentum is 1, not below 1")
tap.error_matches(function() piper.sgd {} end, 'sgd: field "lr" is missing')
tap.error_matches(function() piper.adamw { lr = 1, betas = { 0.9 } } end, "adamw: betas has 1 elements")

-- Data.
local function file_of(text)
  local path = os.tmpname()
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end
local function text_fails(pattern, ...)
  local args = table.pack(...)
  tap.error_matches(function() piper.data.text(table.unpack(args, 1, args.n)) end, "^%S*bad_input.lua:%d+: data.text: " .. pattern, pattern)
end
text_fails('cannot read "/nowhere/book.txt": No such file', "/nowhere/book.txt", { context = 8 })
text_fails('"/" is a directory', "/", { context = 8 })
text_fails('"/dev/full" is a device, not a file$', "/dev/full", { context = 8 }) -- which has no end
text_fails('"/dev/null" is a device, not a file$', { "/etc/hostname", "/dev/null" }, { context = 8 })
text_fails("the list of files is empty", {}, { context = 8 })
text_fails('field "context" is 0', "/etc/hostname", { context = 0 })
local empty, short = file_of "", file_of "12345678"
text_fails('".*" is empty', empty, { context = 8 })
text_fails("the text has 8 bytes; one sample with context = 8 takes 9", short, { context = 8 })
os.remove(empty)
tap.error_matches(function() piper.data.table { x = { { 1, 2 }, { 1 } } } end, 'data.table: sample 2 of "x" has 1 values, the ones before it 2')
tap.error_matches(function() piper.data.table { x = { { 1, "a" } } } end, 'data.table: sample 1 of "x" is "a"')
tap.error_matches(function() piper.data.table { x = { 1, 2 }, y = { 1 } } end, 'data.table: input "y" has 1 samples, input "x" has 2')
tap.error_matches(function() piper.data.table { x = {} } end, "data.table: there are no samples")

-- Training.
local plan = piper.compile(model, piper.strategy(), { batch = 4 })
local function train_fails(pattern, spec)
  tap.error_matches(function() piper.train(plan, spec) end, "^%S*bad_input.lua:%d+: train: " .. pattern, pattern)
end
train_fails('field "data" is missing', {})
train_fails("data is 3", { data = 3 })
train_fails('the model\'s input "x" is not in the data %(text%)', { data = piper.data.text(short, { context = 4 }) })
train_fails('the model\'s input "x" takes 4 values a sample, the data %(table%) has 3', { data = piper.data.table { x = { { 1, 2, 3 } } } })
train_fails('lr is "fast"', { data = piper.data.table { x = { { 1, 2, 3, 4 } } }, lr = "fast" })
os.remove(short)
local run = piper.train(plan, { data = piper.data.table { x = { { 1, 2, 3, 4 } } } })
tap.error_matches(function() run:gradients "layer0.weight" end, "bad_input.lua:%d+: gradients: no step has run yet")
tap.error_matches(function() run:params "layer9.weight" end, 'bad_input.lua:%d+: params: the model has no parameter "layer9.weight" %(did you mean "layer%d.weight"%?%)$')
tap.error_matches(function() run:set_params("layer0.bias", { 1 }) end, 'set_params: "layer0.bias" has 4 elements, not 1')
tap.error_matches(function() run:set_params("layer0.bias", { 1, 2, {}, 4 }) end, 'set_params: element 3 of "layer0.bias" is a table, not a number')
run:close()
tap.error_matches(function() for _ in run:steps(1) do end end, "bad_input.lua:%d+: run: it is closed")

-- A loss that is not a number: rank, step and script line are named, and the run stays ended.
local big = piper.train(piper.compile(model, (function()
  local s = piper.strategy()
  s:add(piper.schedules.one_f_one_b { ranks = 4, microbatches = 2 })
  return s
end)(), { batch = 4, optimizer = piper.sgd { lr = 1 } }), { data = piper.data.table { x = { { 1e30, 1e30, 1e30, 1e30 } } } })
tap.error_matches(function() for _ in big:steps(3) do end end, "rank 3, step 1, 3F[01] .*bad_input.lua:%d+.*: .*loss is")
tap.error_matches(function() for _ in big:steps(3) do end end, "rank 3, step 1")
big:close()

-- Integers out of the range of what consumes them.
local embedding = piper.model("e", function(m)
  m:loss(nn.sum_squares(nn.embedding(m:input("ids", { "batch", 2 }, "i32"), "e", { vocab = 5, width = 2 })))
end)
local ids = piper.train(piper.compile(embedding, piper.strategy(), { batch = 1 }), { data = piper.data.table { ids = { { 4, 5 } } } })
tap.error_matches(function() for _ in ids:steps(1) do end end, "data: ids of sample 0 is 5; it runs from 0 to 4")
ids:close()
tap.done()
