-- help - what the session's global 'help' shows.
local TEXT = [[
A model and a strategy make a plan, and a plan is run:

  model = piper.model("m", function(m) ... m:loss(...) end)    layers and ops: nn.linear, nn.attention, ...
  s = piper.strategy()                                         directives: s:split {}, s:place {}, s:replicate {},
                                                               s:shard {}, s:recompute {}, s:order {}
  s:add(schedules.one_f_one_b { ranks = 4, microbatches = 8 })
  plan = piper.compile(model, s, { batch = 64, optimizer = piper.adamw { lr = 1e-3 } })
  plan                                                         what it does, how long, how much memory
  plan:actions()  plan:dag()  plan:explain "PP=0 MB=1 PASS=B"  why
  plan:check_equivalence()                                     the same weights as one device?
  run = piper.train(plan, { data = piper.data.text("book.txt", { context = 64 }) })
  for step, m in run:steps(100) do print(step, m.loss) end

Documents: guide.md, directives.md, schedules.md, ops.md, passes.md in doc/ of the source tree, or in
%s.]]

---@param folder string where they are installed
return function(folder)
  local text = TEXT:format(folder)
  return setmetatable({}, { __tostring = function() return text end, __call = function() print(text) end })
end
