-- threads_per_rank: how many threads a rank computes with changes the digest, and no bit of a run.
local tap = require "tap"
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local CONTEXT, WIDTH = 100, 150
local data = piper.data.text({ arg[0] }, { context = CONTEXT }) -- this file: bytes below 128

-- Large enough that every kind of op is cut.
local function model(stages)
  return piper.model("m", function(m)
    local tokens, targets = m:input("tokens", { "batch", CONTEXT }, "i32"), m:input("targets", { "batch", CONTEXT }, "i32")
    local h
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 128, width = WIDTH }) end
        h = h + nn.linear(nn.relu(nn.linear(h, "up" .. stage, { out = 333 })), "down" .. stage, { out = WIDTH })
        if stage == stages - 1 then m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 128 }), targets)) end
      end)
    end
  end)
end

local function plan_of(threads, stages, optimizer)
  local s = piper.strategy()
  if stages > 1 then s:add(schedules.one_f_one_b { ranks = stages, microbatches = 2 }) end
  return piper.compile(model(stages), s,
    { batch = 8, optimizer = optimizer, clip_norm = 0.5, threads_per_rank = threads })
end

-- All that a run leaves behind, as text.
local function trace(plan)
  local lines = {}
  local run = piper.train(plan, { data = data, seed = 3 })
  for step, m in run:steps(3) do
    lines[#lines + 1] = ("%d %a %a"):format(step, m.loss, m.grad_norm)
  end
  for _, name in ipairs { "embed.weight", "up0.weight", "down0.bias", "head.weight" } do
    for i, v in ipairs(run:params(name)) do lines[#lines + 1] = ("%s %d %a"):format(name, i, v) end
    for i, v in ipairs(run:gradients(name)) do lines[#lines + 1] = ("d %s %d %a"):format(name, i, v) end
  end
  run:close()
  return table.concat(lines, "\n")
end

local cores = tonumber(io.popen("nproc"):read "a")
for _, stages in ipairs { 1, 2 } do
  for name, optimizer in pairs { adamw = piper.adamw { lr = 0.01 }, sgd = piper.sgd { lr = 0.1, momentum = 0.9 } } do
    local one = plan_of(1, stages, optimizer)
    local want = trace(one)
    for threads = 2, 4 do
      local plan = plan_of(threads, stages, optimizer)
      tap.ok(trace(plan) == want, ("%d stages, %s, %d threads: the bits of one thread"):format(stages, name, threads))
      tap.ok(plan:digest() ~= one:digest(), "and another digest")
      tap.like(tostring(plan), ("ranks +%d .*, %d threads each\n"):format(stages, threads), "print shows them")
    end
    tap.is(plan_of(nil, stages, optimizer):digest(), plan_of(math.max(1, cores // stages), stages, optimizer):digest(),
      "by default the cores are divided by the ranks")
  end
end
tap.done()
