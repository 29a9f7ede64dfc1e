-- Every built-in schedule compiles, with few and odd numbers of microbatches, runs in the order it
-- says, trains to the gradients of one device, and is the same plan after a journey through a file.
local tap = require "tap"
local piper = require "piper"
local tables = require "schedule_table"
local nn, schedules = piper.nn, piper.schedules

-- Small whole numbers everywhere, so that no sum rounds and every order of it has the same bits.
local function model(stages)
  return piper.model("exact", function(m)
    local h = m:input("x", { "batch", 4 })
    for stage = 1, stages do
      piper.annotate("PP", function()
        local init = function(i) return (i * 7 + stage) % 3 - 1 end
        h = nn.relu(nn.linear(h, "layer." .. stage, { out = 4, init = init }))
        if stage == stages then m:loss(nn.sum_squares(h)) end
      end)
    end
  end)
end

local names = {}
for _, name in pairs(tables.builders) do names[#names + 1] = name end
table.sort(names)
local per_rank = { interleaved_one_f_one_b = 2, looped_bfs = 2, interleaved_zero_bubble = 2, zbv = 2, dualpipev = 2 }
local csv, json = os.tmpname(), os.tmpname()

for _, name in ipairs(names) do
  for _, ranks in ipairs { 2, 4 } do
    local net = model(ranks * (per_rank[name] or 1))
    for _, microbatches in ipairs(ranks == 4 and { 1, 2, 3, 4, 5, 7, 8 } or { 3 }) do
      local list = schedules[name] { ranks = ranks, microbatches = microbatches }
      local s = piper.strategy():add(list)
      local options = { batch = 2 * microbatches, verify = true }
      local what = ("%s, %d ranks, %d microbatches: "):format(name, ranks, microbatches)
      local fine, plan = pcall(piper.compile, net, s, options)
      if tap.ok(fine, what .. "compiles") then
        tap.is(plan:actions(), schedules.text(list), what .. "runs in this order")
        local equal, why = pcall(plan.check_equivalence, plan, { steps = 2 })
        tap.ok(equal, what .. "trains to the weights of one device")
        if not equal then tap.diag(why) end
        s:save_csv(csv)
        s:save(json)
        tap.is(piper.compile(net, piper.strategy.load_csv(csv), options):digest(), plan:digest(), what .. "the same plan from CSV")
        tap.is(piper.compile(net, piper.strategy.load(json), options):digest(), plan:digest(), what .. "the same plan from JSON")
      else
        tap.diag(plan)
      end
    end
  end
end
os.remove(csv)
os.remove(json)

-- A schedule that was searched for.
local list = schedules.automatic {
  ranks = 3, microbatches = 5, placement = "v", memory_limit = 4, costs = { F = 2, I = 3, W = 2, B = 4.5, comm = 1 },
}
local plan = piper.compile(model(6), piper.strategy():add(list), { batch = 10, verify = true })
tap.is(plan:actions(), schedules.text(list), "automatic: runs in this order")
tap.ok(pcall(plan.check_equivalence, plan, { steps = 2 }), "automatic: trains to the weights of one device")

-- Data parallel device sets from a mesh.
local mesh = piper.mesh { pp = 2, dp = 2 }
local s = piper.strategy():add(schedules.zbv { ranks = 2, microbatches = 3, devices = mesh })
for rank, stages in pairs { [0] = { 0, 3 }, { 1, 2 } } do
  s:replicate { filter = { PP = stages }, devices = mesh { pp = rank } }
end
plan = piper.compile(model(4), s, { batch = 12, verify = true })
tap.ok(pcall(plan.check_equivalence, plan, { steps = 2 }), "zbv on two device sets of a mesh")

-- A schedule and a placement that do not fit: the compiler says which stage is where.
local loop = piper.strategy():add(schedules.zbv { ranks = 2, microbatches = 3, devices = false })
for stage = 0, 3 do loop:place { filter = { PP = stage }, devices = { stage % 2 } } end
tap.error_matches(function() piper.compile(model(4), loop, { batch = 6 }) end,
  "schedule_plans.lua:%d+: order: rank 0, column %d+: 3F0 is on device 1 .*, 0F0 on device 0 .*: .* place PP = 3 on device 0 too")

-- Half a backward pass, and halves the wrong way round.
local function refused(text, pattern)
  local halves = piper.strategy():add(schedules.parse(text))
  tap.error_matches(function() piper.compile(model(1), halves, { batch = 2 }) end, "schedule_plans.lua:%d+: order: " .. pattern)
end
refused("0F0 0I0", "rank 0, column 2: BI without BW")
refused("0F0 0W0 0I0", "rank 0, column 2: 0W0 is ordered before 0I0")
tap.done()
