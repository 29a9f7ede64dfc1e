-- The text model trains to the weights of one device, within the limits of design 5.8: softmax and
-- AdamW round, so equality is relative, in f64 and in f32.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local function text_model(stages, tied)
  return piper.model("text", function(m)
    local tokens, targets = m:input("tokens", { "batch", 6 }, "i32"), m:input("targets", { "batch", 6 }, "i32")
    local h
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        if s == 0 then h = nn.embedding(tokens, "embed", { vocab = 32, width = 16, init = { normal = 0.5 } }) end
        h = h + nn.relu(nn.linear(h, "hidden." .. s, { out = 16, init = { normal = 0.3 } }))
        if s == stages - 1 then
          m:loss(nn.cross_entropy(nn.linear(h, tied and "embed" or "head", { out = 32, bias = not tied }), targets))
          m:loss(nn.mean(h * h) * 0.01)
        end
      end)
    end
  end)
end

local OPTIMIZERS = {
  sgd = piper.sgd { lr = 0.1, momentum = 0.9, weight_decay = 0.01 },
  adamw = piper.adamw { lr = 0.01 },
}
for stages, tied in pairs { [1] = false, [2] = true, [4] = false } do
  local model = text_model(stages, tied)
  for _, schedule in ipairs { "gpipe", "one_f_one_b" } do
    for _, microbatches in ipairs { 1, 3, 4 } do
      for devices = 1, 2 do
        for _, optimizer in ipairs { "sgd", "adamw" } do
          local plan = piper.compile(model, exact.strategy(schedule, stages, microbatches, devices),
            { batch = 24, optimizer = OPTIMIZERS[optimizer], clip_norm = optimizer == "adamw" and 0.5 or nil })
          local name = ("%d stages, %s, %d microbatches, %d devices, %s"):format(stages, schedule, microbatches, devices, optimizer)
          for _, dtype in ipairs { "f64", "f32" } do
            local fine, worst = pcall(plan.check_equivalence, plan, { dtype = dtype })
            if not tap.ok(fine, name .. ", " .. dtype) then tap.diag(worst) end
          end
        end
      end
    end
  end
end

-- It notices a difference: the same plan on other data, or a strategy that loses a gradient, would
-- show. Here a rounding of f32 is held against the limit of f64.
local plan = piper.compile(text_model(2), exact.strategy("gpipe", 2, 3, 2), { batch = 24, optimizer = OPTIMIZERS.sgd })
local result = plan:check_equivalence { dtype = "f32", check = false }
tap.ok(result.grad > 0 and result.grad < 1e-5, ("f32 gradients differ by rounding: %.2g"):format(result.grad))
tap.ok(result.param > 0 and result.worst, "the parameter that is farthest off is named: " .. tostring(result.worst))
tap.error_matches(function() plan:check_equivalence { step = 3 } end, 'check_equivalence: unknown field "step"')

-- The same plan gives the same bits twice; the seed matters.
local function losses(seed)
  local run <close> = piper.train(plan, { data = require "piper.core".data.random(), seed = seed })
  local out = {}
  for _, m in run:steps(3) do out[#out + 1] = ("%a %a"):format(m.loss, m.grad_norm) end
  return table.concat(out, " ")
end
tap.is(losses(7), losses(7), "two runs of a plan: the same bits")
tap.ok(losses(7) ~= losses(8), "another seed: other values")

-- Memory: as predicted, to the byte; activations under 1F1B do not grow with the microbatches.
local function memory_of(schedule, microbatches, batch, threads)
  local p = piper.compile(text_model(4), exact.strategy(schedule, 4, microbatches, 1),
    { batch = batch, threads_per_rank = threads or 1 })
  local run <close> = piper.train(p, { data = require "piper.core".data.random() })
  for _ in run:steps(1) do end
  local predicted, actual = p:memory(), run:memory()
  local same = true
  for rank = 0, 3 do
    local sum = 0
    for category, bytes in pairs(predicted[rank]) do
      same = same and actual[rank][category] == bytes
      if category ~= "peak" then sum = sum + bytes end
    end
    same = same and sum == predicted[rank].peak
  end
  tap.ok(same, ("%s, %d microbatches: predicted memory is what was allocated, categories sum to the peak"):format(schedule, microbatches))
  return predicted
end
local few, many = memory_of("one_f_one_b", 8, 16), memory_of("one_f_one_b", 32, 64)
local threads = memory_of("one_f_one_b", 8, 16, 3)
for rank = 0, 3 do
  tap.is(threads[rank].workspace - few[rank].workspace, 2 * 2432 * 1024, ("rank %d: each thread has its working space"):format(rank))
end
local inputs = 4 * 6 * 48 -- bytes of the 48 more samples of one input
for rank = 0, 3 do
  tap.ok(many[rank].peak <= few[rank].peak + 2 * inputs + 256, ("rank %d: 1F1B with 32 microbatches needs what it needs with 8"):format(rank))
end
local gpipe = memory_of("gpipe", 32, 64)
tap.ok(gpipe[1].activations > 2 * many[1].activations, "GPipe needs more")
tap.done()
