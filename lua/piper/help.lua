-- help - what the session's globals 'help', 'quit' and 'exit' show.
local check = require "piper.check"
local show = require "piper.show"

local M = {}

local TEXT = [[
A model and a strategy make a plan, and a plan is run:

  model = piper.model("m", function(m) ... m:loss(...) end)    layers and ops: nn.linear, nn.attention, ...
  s = piper.strategy()                                         directives: s:split {}, s:place {}, s:replicate {},
                                                               s:shard {}, s:recompute {}, s:order {}
  s:add(schedules.one_f_one_b { ranks = 4, microbatches = 8 })
  plan = piper.compile(model, s, { batch = 64, optimizer = piper.adamw { lr = 1e-3 } })
  plan                                                         what it does, how long, how much memory
  plan:actions()  plan:dag()  plan:explain "0B1"               why
  plan:check_equivalence()                                     the same weights as one device?
  run = piper.train(plan, { data = piper.data.text("book.txt", { context = 64 }) })
  for step, m in run:steps(100) do print(step, m.loss) end

More: help "plan", and likewise %s.
Documents: guide.md, directives.md, schedules.md, ops.md, passes.md in
%s.]]

---Topics: what there is, a line each.
M.TOPICS = {
  model = {
    { "input", 'm:input("x", { "batch", 8 }, "f32"): data that every step brings; the batch is the outermost axis' },
    { "loss", "m:loss(x): a term of the loss; several add up" },
    { "freeze", 'm:freeze "embed%..*": parameters that are not trained, by a Lua pattern' },
    { "params", "names, shapes and numbers of elements of the parameters" },
    { "flops", "model:flops(batch): operations of a step" },
  },
  strategy = {
    { "place", "{ filter, devices, stream }: which devices compute" },
    { "replicate", "{ filter, devices, shard_optimizer, shard_grads, shard_params, ... }: data parallelism, ZeRO" },
    { "shard", "{ filter, devices, stream }: spreads the experts of nn.moe" },
    { "split", "{ num_microbatches, filter, dim_name }: cuts the batch" },
    { "recompute", "{ filter }: keeps only inputs and runs the forward pass again" },
    { "order", "{ filters }: group after group" },
    { "add", "s:add(list): all directives of a list, such as a schedule" },
    { "copy", "the same directives again, to be changed" },
    { "save", "s:save(path): JSON in the paper's format; piper.strategy.load(path) reads it" },
    { "save_csv", "s:save_csv(path): PyTorch's CSV; piper.strategy.load_csv(path) reads it" },
  },
  plan = {
    { "actions", "what each rank does in which order: 0F1 is stage 0, forward, microbatch 1" },
    { "check_equivalence", "trains the plan and one device side by side and compares" },
    { "communication", "calls and bytes of a step, by bucket, kind, stream and devices" },
    { "dag", "the training DAG in words; plan:dag(pass): as it is after a pass" },
    { "digest", "a hash, equal for equal plans" },
    { "dot", "plan:dot(path): the DAG as a picture for Graphviz" },
    { "dump", "plan:dump(pass): the DAG after a pass, with every field" },
    { "explain", 'plan:explain "0B1" or "PP=0 MB=1 PASS=B": why nodes are as they are' },
    { "held", "for how many microbatches each rank holds activations at once" },
    { "memory", "bytes of each rank by category, at the instant of its peak" },
    { "overlap", "how much of the communication hides behind compute, and what keeps the rest from it" },
    { "verify", "a proof: no deadlock, no race, no early reuse of memory" },
  },
  run = {
    { "steps", "for step, m in run:steps(100) do ... end: trains; m.loss, m.grad_norm, m.lr, m.tokens_per_second" },
    { "evaluate", "run:evaluate { data, batches }: the losses on other data" },
    { "params", "run:params(name): the values of a parameter" },
    { "gradients", "run:gradients(name): of the last step" },
    { "set_params", "run:set_params(name, values)" },
    { "memory", "bytes as allocated, in the form of plan:memory()" },
    { "check_replicas", "raises where two holders of a parameter differ" },
    { "close", "ends the run" },
  },
}

-- What a topic shows: of nn and schedules the names, which doc/ops.md and doc/schedules.md explain.
local function topic(name)
  if name == "nn" then return tostring(require "piper.nn") .. "\ndoc/ops.md says what each does" end
  if name == "schedules" then return tostring(require "piper.schedules") .. "\ndoc/schedules.md says what each does" end
  local rows = {}
  for i, row in ipairs(M.TOPICS[name]) do rows[i] = { "  " .. row[1], row[2] } end
  return show.columns({ name, "" }, rows)
end

local function names()
  local list = { "nn", "schedules" }
  for name in pairs(M.TOPICS) do list[#list + 1] = name end
  table.sort(list)
  return list
end

---@param folder string  of the documents
---@return table  prints as the general page; called with a topic's name it prints that
function M.page(folder)
  local all = table.concat(names(), ", ")
  local text = TEXT:format(all:gsub("plan, ", ""), folder)
  return setmetatable({}, {
    __tostring = function() return text end,
    __call = function(_, ...)
      local asked = ...
      if select("#", ...) == 0 then
        print(text)
      elseif asked == "nn" or asked == "schedules" or type(asked) == "string" and M.TOPICS[asked] then
        print(topic(asked))
      else
        print(("no topic %s; topics are %s"):format(check.show(asked), all))
      end
    end,
  })
end

---'quit' and 'exit' of the session: typed, or called, they say how it is left.
M.leave = setmetatable({}, {
  __tostring = function() return "Ctrl-D leaves" end,
  __call = function() print "Ctrl-D leaves" end,
})

return M
