-- The directive order, written again as a pass of one's own in twenty lines: it gives the same plan.
--   piper samples/pass_order.lua
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

-- orders: for each device set its groups, as in the directive's field 'filters'. A group is a filter, or a list of
-- filters whose nodes may overlap; each group comes before the next.
local function order(orders)
  return function(dag)
    for o, groups in ipairs(orders) do
      local last = {}
      for g, group in ipairs(groups) do
        local nodes = {}
        for m, filter in ipairs(group[1] and group or { group }) do
          local member = dag:nodes(filter)
          dag:position(member, { order = o, group = g, member = m - 1 }) -- for plan:actions(), no more
          table.move(member, 1, #member, #nodes + 1, nodes)
        end
        dag:before(last, nodes)
        if #nodes > 0 then last = nodes end -- a plan of forward passes alone has nothing for B
      end
    end
  end
end

local ranks, microbatches, width = 4, 6, 16
local model = piper.model("stages", function(m)
  local h = m:input("x", { "batch", width }, "f32")
  for stage = 0, ranks - 1 do
    piper.annotate("PP", function()
      h = nn.relu(nn.linear(h, "layer" .. stage, { out = width }))
      if stage == ranks - 1 then m:loss(nn.mean(h)) end
    end)
  end
end)

-- 1F1B, once as it is, and once without its orders, which the pass adds.
local list = schedules.one_f_one_b { ranks = ranks, microbatches = microbatches }
local rest, orders = {}, {}
for _, directive in ipairs(list) do
  if directive.op == "order" then orders[#orders + 1] = directive.filters else rest[#rest + 1] = directive end
end

local options = { batch = 24, optimizer = piper.adamw { lr = 1e-2 } }
local directive = piper.compile(model, piper.strategy():add(list), options)
local none = piper.compile(model, piper.strategy():add(rest), options)
local pass <close> = piper.pass("order_again", order(orders))
local again = piper.compile(model, piper.strategy():add(rest), options)

print("without an order:\n" .. none:actions())
print("with the pass:\n" .. again:actions())
print(("compiled with the %s: the actions of the directive: %s, its digest: %s"):format(pass,
  again:actions() == directive:actions(), again:digest() == directive:digest()))
print(again:check_equivalence())
