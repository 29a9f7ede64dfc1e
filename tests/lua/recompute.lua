-- recompute: the same bits with less memory, R just before its backward pass or where an order puts it.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local data = exact.data()
local function options(batch) return { batch = batch or 24, dtype = "f64", optimizer = piper.sgd { lr = 1 }, verify = true } end
local function trace(model, strategy) return exact.trace(piper.compile(model, strategy, options()), data) end

for _, kind in ipairs(exact.kinds) do
  local model = exact.model(kind, 4)
  local want = trace(model, piper.strategy())
  for _, microbatches in ipairs { 1, 3 } do
    for devices = 1, 2 do
      for i, filter in ipairs { {}, { PP = { 0, 2 } }, { MB = 0 } } do
        local s = exact.strategy(i == 2 and "gpipe" or "one_f_one_b", 4, microbatches, devices)
        s:recompute { filter = filter }
        tap.ok(trace(model, s) == want, ("%s: %d microbatches, %d devices a stage, filter %d"):format(kind, microbatches, devices, i))
      end
    end
  end
  -- No order: R waits for the gradients of its backward pass.
  local s = piper.strategy()
  s:split { num_microbatches = 4 }
  s:place { filter = { PP = { 0, 1 } }, devices = { 0 } }
  s:place { filter = { PP = { 2, 3 } }, devices = { 1 } }
  s:recompute { filter = {} }
  tap.ok(trace(model, s) == want, kind .. ": no order")
end

-- R in an order, and with the backward pass in halves.
local function act(pp, pass, mb) return { PP = pp, PASS = pass, MB = mb } end
local s = piper.strategy()
s:split { num_microbatches = 2 }
s:place { filter = { PP = 0 }, devices = { 0 } }
s:place { filter = { PP = 1 }, devices = { 1 } }
s:recompute { filter = {} }
s:order { filters = { act(0, "F", 0), act(0, "F", 1), act(0, "R", 1), act(0, "R", 0), act(0, "BI", 0), act(0, "BI", 1),
  act(0, "BW", 1), act(0, "BW", 0) } }
for _, kind in ipairs { "plain", "skip", "shared", "tied", "reshape" } do
  local model = exact.model(kind, 2)
  local plan = piper.compile(model, s, options())
  tap.like(plan:actions(), "^0F0 0F1 0R1 0R0 0I0 0I1 0W1 0W0\n", kind .. ": R where the order has it")
  tap.ok(exact.trace(plan, data) == trace(model, piper.strategy()), kind .. ": R in an order, split backward")
end

-- Dropout: R draws the mask of its F. Rounding ops, outputs that the backward pass reads.
local dropout = piper.model("dropout", function(m)
  local x, h = m:input("x", { "batch", 8 }, "f32"), nil
  for stage = 0, 1 do
    piper.annotate("PP", function()
      h = nn.softmax(nn.dropout(nn.gelu(nn.linear(h or x, "layer" .. stage, { out = 8, init = { normal = 1 } })), 0.3))
      h = nn.rmsnorm(h, "norm" .. stage)
      if stage == 1 then m:loss(nn.mean(h * h * h)) end
    end)
  end
end)
for _, dtype in ipairs { "f64", "f32" } do
  local strategy = exact.strategy("one_f_one_b", 2, 4, 2)
  strategy:recompute { filter = {} }
  local fine, worst = pcall(function()
    return piper.compile(dropout, strategy, { batch = 16 }):check_equivalence { dtype = dtype }
  end)
  if not tap.ok(fine, "dropout, gelu, softmax, rmsnorm: " .. dtype) then tap.diag(worst) end
end

-- Memory and where R runs.
local deep = piper.model("deep", function(m)
  local h = m:input("x", { "batch", 16 }, "f32")
  for stage = 0, 3 do
    piper.annotate("PP", function()
      for l = 1, 6 do h = nn.gelu(nn.linear(h, ("l%d.%d"):format(stage, l), { out = 16 })) end
      if stage == 3 then m:loss(nn.mean(h)) end
    end)
  end
end)
local plain, again = exact.strategy("one_f_one_b", 4, 8, 1), exact.strategy("one_f_one_b", 4, 8, 1)
again:recompute { filter = { PP = { 0, 1, 2 } } }
local kept = piper.compile(deep, plain, { batch = 8192 })
local less = piper.compile(deep, again, { batch = 8192 })
tap.like(less:actions(), "^0F0 0F1 0F2 0F3 0R0 0B0 0F4 0R1 0B1", "R just before its B")
for rank, most in pairs { [0] = 0.6, [1] = 0.7 } do
  local ratio = less:memory()[rank].activations / kept:memory()[rank].activations
  tap.ok(ratio < most, ("rank %d: activations %.2f of those kept"):format(rank, ratio))
end

-- What a user may get wrong.
local function fails(pattern, fill)
  tap.error_matches(function()
    local strategy = piper.strategy()
    fill(strategy)
    piper.compile(deep, strategy, { batch = 8 })
  end, "recompute.lua:%d+: " .. pattern)
end
fails("recompute: .*{ PP = 7 } matches nothing; PP runs from 0 to 3", function(x) x:recompute { filter = { PP = 7 } } end)
fails("recompute: .*leave PASS out", function(x) x:recompute { filter = { PP = 0, PASS = "F" } } end)
fails('recompute: unknown field "filtre"', function(x) x:recompute { filtre = {} } end)
fails('order: .*"R".* matches nothing', function(x) x:order { filters = { { PP = 0, PASS = "R" }, { PP = 0, PASS = "B" } } } end)
tap.done()
