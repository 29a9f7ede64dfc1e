-- Names that do not exist, and methods called with "." instead of ":".
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local function says(name, fn, message)
  tap.error_matches(fn, "^%S*wrong_names.lua:%d+: " .. message:gsub("%p", "%%%0") .. "$", name)
end

says("piper", function() return piper.adam end, 'piper: there is no "adam" (did you mean "adamw"?)')
says("nn", function() nn.rleu() end, 'nn: there is no "rleu" (did you mean "relu"?)')
says("data", function() piper.data.txt() end, 'data: there is no "txt" (did you mean "text"?)')
says("lr", function() piper.lr.cosin() end, 'lr: there is no "cosin" (did you mean "cosine"?)')
tap.is(piper._nothing, nil, "names with _ may be asked for")

local strategy = piper.strategy()
says("a method of a strategy", function() strategy:palce() end, 'strategy: there is no "palce" (did you mean "place"?)')
says("place", function() strategy.place { filter = {}, devices = { 0 } } end,
  "place: this is a method; it is called with a colon: strategy:place(...)")
says("piper.strategy", function() piper.strategy:place {} end,
  'strategy: "place" is a method of a strategy, which piper.strategy() makes')

local model = piper.model("m", function(m)
  says("input", function() m.input("x", { "batch", 2 }) end,
    "input: this is a method; it is called with a colon: model:input(...)")
  says("a method of a model", function() m:inptu "x" end, 'model: there is no "inptu" (did you mean "input"?)')
  local width
  says("nil in a shape", function() m:input("x", { width, 2 }) end, 'input "x": axis 0 of the shape is nil')
  m:loss(nn.mean(nn.linear(m:input("x", { "batch", 2 }), "l", { out = 1 })))
end)
says("a strategy as the model", function() piper.compile(strategy, strategy, { batch = 1 }) end,
  "compile: argument 1 is strategy: 0 directives, not a model of piper.model")

local plan = piper.compile(model, strategy, { batch = 1 })
says("actions", function() plan.actions() end, "actions: this is a method; it is called with a colon: plan:actions(...)")
says("a method of a plan", function() plan:digset() end, 'plan: there is no "digset" (did you mean "digest"?)')
tap.ok(tostring(plan:check_equivalence {}):find "^largest relative differences: loss %S+, gradients %S+, parameters ",
  "what check_equivalence returns prints as a line")

says("no data", function() piper.train(plan, {}) end,
  'train: field "data" is missing; piper.data.text(...), .tokens(...) or .table {...} makes it')
says("a table as data", function() piper.train(plan, { data = { x = { 1 } } }) end,
  "train: data is { x = {...} }; piper.data.text(...), .tokens(...) or .table {...} makes it")
local run <close> = piper.train(plan, { data = piper.data.table { x = { { 1, 2 } } } })
says("steps", function() run.steps(2) end, "steps: this is a method; it is called with a colon: run:steps(...)")
says("params", function() run.params "l.bias" end, "params: this is a method; it is called with a colon: run:params(...)")
says("a method of a run", function() run:setps(2) end, 'run: there is no "setps" (did you mean "steps"?)')
tap.done()
