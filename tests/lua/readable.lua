-- What the library returns prints as text, and is a plain table for everything else.
local tap = require "tap"
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local model = piper.model("two", function(m)
  local h = m:input("x", { "batch", 8 }, "f32")
  for stage = 0, 1 do
    piper.annotate("PP", function()
      h = nn.relu(nn.linear(h, "layer" .. stage, { out = 8 }))
      if stage == 1 then m:loss(nn.sum_squares(h)) end
    end)
  end
end)
local s = piper.strategy():add(schedules.one_f_one_b { ranks = 2, microbatches = 2, devices = { { 0, 1 }, { 2, 3 } } })
for stage = 0, 1 do s:replicate { filter = { PP = stage }, devices = { 2 * stage, 2 * stage + 1 } } end
local options = { batch = 8, optimizer = piper.adamw { lr = 1e-3 }, threads_per_rank = 1 }
local plan = piper.compile(model, s, options)

local function prints(value, pattern, name) tap.like(tostring(value), pattern, name) end

-- Memory: the rows of print(plan), with its figures.
local memory = plan:memory()
local function words(text) return (text:gsub(" +", " ")) end
local in_table = words(tostring(plan)):match "memory of each rank at its peak\n(.-)\n\n"
tap.is(words(("\n" .. tostring(memory)):gsub("\n +", "\n")):sub(2), in_table, "plan:memory() as print(plan) has it")
prints(memory[0], "^params 288 B  grads 288 B  optimizer 576 B  activations .*peak ", "one rank")
local sum, n = 0, 0
for category, bytes in pairs(memory[2]) do
  n = n + 1
  if category ~= "peak" then sum = sum + bytes end
end
tap.is(sum .. " " .. n, memory[2].peak .. " 7", "fields and pairs stay as they are")

local communication = plan:communication()
prints(communication, "^kind +what +stream +devices +calls +bytes +bucket\n", "communication has a head")
prints(communication, "\nall_reduce +gradients +dp_stream +0%-1 +1 +288 B +layer0.weight..\n", "a reduction")
prints(communication, "\ntransfer +values +pp_stream/F/0>2 +0>2 +2 +128 B +%-\n", "a transfer")
prints(communication[1], "^kind all_reduce  what gradients  stream dp_stream  devices { 0, 1 }  calls 1  bytes 288", "a row")
tap.is(#communication[1].devices, 2, "devices are a list")
prints(plan:held(), "^rank  held\n   0     2\n   1     2\n   2     1\n   3     1$", "held")
local proof = plan:verify()
prints(proof, "^proved: no deadlock, no race, no early reuse: " .. proof.instructions .. " instructions, 8 transfers, 3 collectives; "
  .. proof.conflicts .. " pairs of accesses to the same bytes, of which one writes, are in order$", "the proof")
prints(plan:overlap()[1], "^kind transfer  stream pp_stream  calls 16  seconds ", "a row of overlap")

local metrics = schedules.metrics(s)
prints(metrics, "^makespan 9  bubble 0.3333 .*\nrank  busy  peak  peak_i  wq\n   0     6     2       2   0\n", "metrics of a schedule")
prints(metrics.peak, "^rank  peak\n   0     2\n", "one of them")
prints(options.optimizer, "^adamw { lr = 0.001, betas = { 0.9, 0.999 }, eps = 1e%-08, weight_decay = 0.01 }$", "adamw")
prints(piper.sgd { lr = 0.1 }, "^sgd { lr = 0.1, momentum = 0, weight_decay = 0 }$", "sgd")
prints(model:params(), "^layer0.weight %[8, 8%]\nlayer0.bias %[8%]\n", "parameters")

local rate = piper.lr.cosine { peak = 1, warmup = 2, total = 10 }
prints(rate, "^lr.cosine { peak = 1, warmup = 2, total = 10 }$", "a learning rate")
tap.is(rate(1), 0.5, "is called with the step")
prints(piper.lr.constant(3), "^lr.constant%(3%)$", "a constant one")

prints(nn, "^nn: add, attention,", "nn")
prints(schedules, "^schedules: automatic, check,", "schedules")
prints(piper, "^piper %S+: adamw, annotate, compile,", "piper")
prints(piper.data, "^data: table, text, tokens$", "data")

local rows = {}
for i = 1, 8 do rows[i] = { 1, 2, 3, 4, 5, 6, 7, 8 } end
local data = piper.data.table { x = rows }
prints(data, "^data.table: 8 samples$", "a source of samples")
local run = piper.train(plan, { data = data, lr = rate })
for _, m in run:steps(1) do
  prints(m, "^loss %S+  grad_norm %S+  lr 0.5  %S+ ms  %d+ tokens/s$", "metrics of a step")
  local names = {}
  for name in pairs(m) do names[#names + 1] = name end
  table.sort(names)
  tap.is(table.concat(names, " "), "dropped grad_norm loss losses lr seconds tokens_per_second", "have their fields")
  prints(m.losses, "^{ %S+ }$", "losses")
end
prints(run:evaluate { data = data }, "^loss %S+ over 8 tokens of 1 batch$", "an evaluation")
prints(run:params "layer0.weight", "^%[8, 8%] %S+ .* %.%.%.$", "a parameter's values")
tap.is(tostring(run:memory()), tostring(memory), "run:memory() reads like plan:memory()")
run:close()

local seen
do
  local _ <close> = piper.pass("look", function(dag) seen = tostring(dag:nodes({ PP = 1 })[1].devices) end, { after = "place" })
  piper.compile(model, s, options)
end
tap.is(seen, "{ 2, 3 }", "devices of a node")

-- The remedy of a plan above the limit is for what is largest.
local function refused(of, with, batch, threads, limit, remedy)
  tap.error_matches(function()
    piper.compile(of, with, { batch = batch, threads_per_rank = threads, memory_limit = limit })
  end, "memory_limit is .*; " .. remedy .. "$", remedy)
end
local function mlp(width, activations)
  return piper.model("mlp", function(m)
    local h = m:input("x", { "batch", width }, "f32")
    for layer = 1, activations do h = nn.gelu(nn.linear(h, "l" .. layer, { out = width })) end
    m:loss(nn.sum_squares(h))
  end)
end
local none = piper.strategy()
refused(mlp(8, 1), none, 2, 3, 1000, "fewer threads_per_rank need less workspace: kernels take 2.38 MiB for each of 3 threads")
refused(mlp(8, 1), none, 2, 1, 1000, "kernels take 2.38 MiB of workspace whatever the model is: a larger memory_limit helps")
refused(mlp(1024, 1), none, 1, 1, 1000, "more pipeline stages leave fewer parameters .* shard_params = true in replicate a share of them")
refused(mlp(64, 4), none, 8192, 1, 1000, "more microbatches, a smaller batch or a 1F1B schedule hold fewer activations.*")

-- The topics of the session's help name everything there is.
local help = require "piper.help"
local classes = { plan = require "piper.compile".Plan, strategy = require "piper.strategy".Strategy }
for topic, class in pairs(classes) do
  local listed, missing = {}, {}
  for _, row in ipairs(help.TOPICS[topic]) do
    listed[row[1]] = true
    if rawget(class, row[1]) == nil then missing[#missing + 1] = row[1] end
  end
  for name, value in pairs(class) do
    if type(value) == "function" and not name:find "^_" and not listed[name] then missing[#missing + 1] = name end
  end
  tap.is(table.concat(missing, " "), "", "help " .. topic)
end
tap.done()
