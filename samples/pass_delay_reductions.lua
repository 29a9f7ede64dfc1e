-- A pass of one's own that keeps gradient reductions out of the way of expert traffic: while one backward pass exchanges
-- tokens, no reduction of its gradients runs beside it (an all_to_all beside an all_reduce may take half as long again).
--   piper samples/pass_delay_reductions.lua
local piper = require "piper"
local nn = piper.nn

local layers, microbatches, width = 3, 2, 32
local model = piper.model("experts", function(m)
  local x, y = m:input("x", { "batch", 16, width }, "f32"), m:input("y", { "batch", 16, width }, "f32")
  local h = x
  for layer = 0, layers - 1 do
    piper.annotate("LAYER", function()
      local mixed = nn.linear(h, ("layers.%d.mix"):format(layer), { out = width })
      h = h + nn.moe(mixed, ("layers.%d.mlp"):format(layer), { experts = 4, top_k = 2, width = 64, capacity_factor = 1.5 })
    end)
  end
  m:loss(nn.mse(h, y))
end, { init = { normal = 0.2 } })

-- Experts in pairs on devices 0, 1 and again on 2, 3; all the rest on all of them. Gradients are reduced after each
-- backward pass: the reductions of a layer are ready while the layers below it still exchange tokens.
local strategy = piper.strategy()
strategy:split { num_microbatches = microbatches }
strategy:place { filter = {}, devices = { 0, 1, 2, 3 } }
strategy:shard { filter = { EP = "*" }, devices = { { 0, 1 }, { 2, 3 } } }
strategy:replicate { filter = {}, devices = { 0, 1, 2, 3 }, reduce = "microbatch" }

local function share_device(a, b)
  local on = {}
  for _, device in ipairs(a.devices) do on[device] = true end
  for _, device in ipairs(b.devices) do if on[device] then return true end end
  return false
end

-- A reduction serves one backward pass, and has its microbatch; it comes behind those exchanges of that microbatch's
-- backward passes that could run beside it.
local function delay(dag)
  for _, kind in ipairs { "all_reduce", "reduce_scatter" } do
    for _, reduction in ipairs(dag:nodes({ PASS = { "B", "BW" } }, kind)) do
      for _, exchange in ipairs(dag:nodes({ MB = reduction.microbatch, PASS = { "B", "BI", "BW" } }, "all_to_all")) do
        local beside = not dag:reaches(exchange, reduction) and not dag:reaches(reduction, exchange)
        if beside and share_device(exchange, reduction) then dag:before(exchange, reduction) end
      end
    end
  end
end

local options = { batch = 16, optimizer = piper.adamw { lr = 1e-2 } }
local plain = piper.compile(model, strategy, options)
local plan
do
  local _ <close> = piper.pass("delay", delay) -- for the plans of this block
  plan = piper.compile(model, strategy, options)
end

-- What moved, of microbatch 0: edges of a pass stand as "~name" behind "<-" in the list of the DAG.
local function show(list)
  for line in list:gmatch "[^\n]+" do
    local name = line:match "^(all_reduce %S+ 0B0%S*)"
    local behind = {}
    for exchange in (line .. ","):gmatch "~(.-)," do behind[#behind + 1] = exchange end
    if name then
      print(("  %s waits for %s"):format(name, #behind > 0 and table.concat(behind, ", ") or "its gradients only"))
    end
  end
end
print "without the pass"
show(plain:dag "order")
print "with it"
show(plan:dag "delay")
-- The prediction knows nothing of one transfer slowing down another, so to it later reductions can only cost: that is
-- the price. What the pass buys, exchanges that have the links to themselves, shows only where links are real.
local function predicted(p) return tostring(p):match "predicted +([^,]*)" end
print(("predicted, without interference between streams: %s without the pass, %s with it"):format(predicted(plain), predicted(plan)))
print(plan:check_equivalence())
