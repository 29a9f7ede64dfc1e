-- A PyTorch pipelining schedule, read from CSV (a line a rank, blanks are idle time): checked,
-- measured, changed, trained, and written again.
--   piper samples/import_schedule.lua [FILE.csv]     (default: zbv_2x4.csv beside this script)
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local path = arg[1] or (arg[0]:match "^(.*/)" or "") .. "zbv_2x4.csv"

-- Each row is a rank. The placement is what the file is expected to have: a stage that sits on
-- another rank is an error that names row and column.
local strategy = piper.strategy.load_csv(path, { placement = not arg[1] and "v" or nil })
print(schedules.text(strategy))
local m = schedules.metrics(strategy)
print(("step %g, idle %.1f%%, rank 0 holds %d activations"):format(m.makespan, 100 * m.bubble, m.peak[0]))
print(select(2, pcall(piper.strategy.load_csv, path, { placement = "loop" })))

-- A model with as many stages as the file.
local stages, microbatches = 0, 0
for _, d in ipairs(strategy.directives) do
  if d.op == "place" then stages = math.max(stages, d.filter.PP + 1) end
  if d.op == "split" then microbatches = d.num_microbatches end
end
local width = 16
local model = piper.model("chain", function(model)
  local h, y = model:input("x", { "batch", width }), model:input("y", { "batch", width })
  for stage = 0, stages - 1 do
    piper.annotate("PP", function()
      h = nn.relu(nn.linear(h, "layer." .. stage, { out = width, init = { normal = 0.3 } }))
      if stage == stages - 1 then model:loss(nn.mse(h, y)) end
    end)
  end
end)

local plan = piper.compile(model, strategy, { batch = 2 * microbatches })
print(("gradients differ from those of one device by at most %.1g"):format(plan:check_equivalence { steps = 2 }.grad))

-- Out again: what is written reads back as the same plan.
local copy = os.tmpname()
strategy:save_csv(copy)
local again = piper.compile(model, piper.strategy.load_csv(copy), { batch = 2 * microbatches })
print("written and read again: " .. (again:digest() == plan:digest() and "the same plan" or "another plan"))
os.remove(copy)
