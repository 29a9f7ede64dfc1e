-- plan:explain: the directives that made a node, where and when it runs, what it waits for and what waits for it.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local model = piper.model("two", function(m)
  local h = m:input("x", { "batch", 4 }, "f32")
  piper.annotate("PP", function() h = nn.relu(nn.linear(h, "a", { out = 4, bias = false })) end)
  piper.annotate("PP", function() m:loss(nn.sum_squares(nn.linear(h, "b", { out = 4, bias = false }))) end)
end)
local function act(stage, pass, mb) return { PP = stage, PASS = pass, MB = mb } end
local s = piper.strategy()
s:split { num_microbatches = 2 }
s:place { filter = { PP = 0 }, devices = { 0, 1 } }
s:place { filter = { PP = 1 }, devices = { 2 }, stream = "up" }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:order { filters = { act(1, "F", 0), { act(1, "F", 1), act(1, "B", 0) }, act(1, "B", 1) } }
s:recompute { filter = { PP = 1 } }
local plan = piper.compile(model, s, { batch = 8 })

-- Times depend on the cost table, places and neighbours on the order: they become N and X.
local function explained(of, filter)
  return (of:explain(filter):gsub("[%w_./]*explain.lua:(%d+)", "L%1"):gsub("rank %d, %S+: ", "rank N, X: ")
    :gsub("node %d+ of %d+, instruction %d+ of %d+", "node N of N, instruction N of N")
    :gsub("[%d.e-]+ [um]?s to [%d.e-]+ [um]?s", "N to N"))
end
tap.is(explained(plan, "PP=1 MB=0 PASS=B"), [[
1B0  backward pass of chunk 2 (L9)
  made by      split (L13), place (L15), order (L17): group 2, recompute (L18)
  where        device 2, default_stream; samples 0 to 3
  when         node N of N, instruction N of N on rank 2; N to N of the predicted step
  waits for    1R0: what the forward pass keeps
               1F0: order (L17)
               rank N, X: before it on default_stream
  awaited by   transfer grad relu.4 1B0 (2>0-1, up): gradient of relu.4, for 0B0
               norm b.weight: gradients of parameters
               update b.weight: gradients of parameters
               1B1: order (L17)
               1R1: order (L17)
               rank N, X: after it on the same stream]], "one node")
tap.is(explained(plan, { PP = 0, MB = 1, PASS = "F" }), [[
0F1  forward pass of chunk 1 (L8)
  made by      split (L13), place (L14), replicate (L16)
  where        devices 0-1, default_stream; samples 4 to 7, 2 on each
  when         node N of N, instruction N of N on rank 0; N to N of the predicted step
  waits for    rank N, X: before it on default_stream
  awaited by   0B1: what the forward pass keeps
               transfer relu.4 0F1 (0-1>2, pp_stream): value relu.4, for 1F1
               rank N, X: after it on the same stream]], "a filter in a table, a device set")

-- As in the list of instructions: the k-th explained node is the k-th in the order in which they run.
local names = {}
for name in ("\n\n" .. plan:explain ""):gmatch "\n\n(%S+)  " do names[#names + 1] = name end
local ran = {}
for line in plan:dag():gmatch "[^\n]+" do
  local name = line:match "^%d%l*%u%d" and line:match "^%S+"
  if name then ran[#ran + 1] = name end
end
tap.is(table.concat(names, " "), table.concat(ran, " "), "an empty filter: all nodes, in the order in which they run")
tap.is(plan:explain "PP=0,1 PASS=F,B MB=*", plan:explain { PASS = { "F", "B" } }, "lists and *")

-- Times: a pipeline without overlap ends when the step ends; a node starts when what it waits for has ended.
local function span(name)
  for paragraph in (plan:explain "" .. "\n\n"):gmatch "(.-)\n\n" do
    if paragraph:find("^" .. name .. " ") then
      local a, unit_a, b, unit_b = paragraph:match "; ([%d.e-]+) ([um]?s) to ([%d.e-]+) ([um]?s)"
      local scale = { us = 1e-6, ms = 1e-3, s = 1 }
      return a * scale[unit_a], b * scale[unit_b]
    end
  end
end
local _, forward = span "0F0"
local next_start = span "1F0"
local back_start, back_end = span "0B0"
tap.ok(forward > 0 and next_start >= forward and back_start > next_start and back_end > back_start, "times follow the data")

-- Memory that is used again, halves of a backward pass, experts, orders that a pass made, joins of large groups.
local deep = piper.model("deep", function(m)
  local h = m:input("x", { "batch", 64 }, "f32")
  for stage = 0, 3 do
    piper.annotate("PP", function()
      h = nn.gelu(nn.linear(h, "l" .. stage, { out = 64 }))
      if stage == 3 then m:loss(nn.mean(h)) end
    end)
  end
end)
local zero = piper.strategy():add(piper.schedules.zb_h1 { ranks = 4, microbatches = 8, devices = { { 0, 1 }, { 2, 3 }, { 4, 5 }, { 6, 7 } } })
for stage = 0, 3 do zero:replicate { filter = { PP = stage }, devices = { 2 * stage, 2 * stage + 1 }, shard_params = true } end
local all = piper.compile(deep, zero, { batch = 64 }):explain "PP=1"
tap.like(all, "\n  when[^\n]*on rank 2;", "on the first rank of the set")
tap.like(all, "order %(%S+explain.lua:%d+%): rank 1, column 4", "rank and column of a schedule")
tap.like(all, "1I0  backward pass, gradients of inputs of chunk 2", "BI")
tap.like(all, "1I0: what BI keeps for BW", "BW waits for BI")
tap.like(all, "rank 2, [^\n]*: memory that is used again", "memory that is used again")
tap.like(all, "all_gather l1.weight.. 1%a0 %(2%-3, ag_stream%): parameters", "a gather")
local experts = piper.model("experts", function(m)
  m:loss(nn.mean(nn.moe(m:input("x", { "batch", 4, 4 }, "f32"), "moe", { experts = 2, top_k = 1, width = 4 })))
end)
local e = piper.strategy():place { filter = {}, devices = { 0, 1 } }:replicate { filter = { EP = false }, devices = { 0, 1 } }
e:shard { filter = { EP = "*" }, devices = { 0, 1 } }
tap.like(piper.compile(experts, e, { batch = 4 }):explain "EP=0 PASS=F",
  "^0F0/2  forward pass.*shard %(.*experts spread over 2 devices.*all_to_all moe to experts 0F0/2 %(0%-1, ep_stream%)", "spread experts")
local wide = piper.strategy():split { num_microbatches = 8 }:order { filters = { { PASS = "F" }, { PASS = "B" } } }
tap.ok(not piper.compile(deep, wide, { batch = 8 }):explain "PASS=B MB=0":find "join", "a join is what is behind it")

-- The guide shows what its script prints, but for numbers that depend on the cost table.
local f = assert(io.open(os.getenv "srcdir" .. "/doc/guide.md"))
local script, shown = f:read "a":match "\n```lua\n([^`]*:explain [^`]*)\n```\n\n```\n([^`]*)\n```\n"
f:close()
local printed
assert(load(script, "@train.lua", "t", setmetatable({ print = function(text) printed = text end }, { __index = _G })))()
local function facts(text) -- without times, places, and what instructions add
  return (text:gsub("  when[^\n]*\n", ""):gsub("\n +rank %d, [^\n]*", ""))
end
tap.is(facts(shown), facts(printed), "the guide's example")

-- What may be wrong with a filter.
local function says(filter, message)
  tap.error_matches(function() plan:explain(filter) end, "^%S*explain.lua:%d+: explain: " .. message)
end
says("PP=false", "filter { PP = false } matches nothing; no node has PP = false")
says("PP=7", "filter { PP = 7 } matches nothing; PP runs from 0 to 1$")
says("PP=0 MB", 'position 6 of "PP=0 MB": "MB" is not TAG=INDEX: a filter reads PP=1 MB=0,2 PASS=B')
says("1I1", "1I1: the plan has no such action; plan:actions%(%) lists what it has")
says("-F0", "%-F0: the plan has no such action")
says("1B0/1", "1B0/1: the plan has no such action")
says("1F99999999999", 'position 1 of "1F99999999999": "1F99999999999" is not TAG=INDEX')
says("1B0 MB=0", 'position 1 of "1B0 MB=0": "1B0" is not TAG=INDEX: a filter reads PP=1 MB=0 PASS=B')

-- Actions, as all outputs have them: where there are no stages, with nested splits, of a chunk of several.
tap.is(plan:explain "1B0", plan:explain "PP=1 MB=0 PASS=B", "an action")
tap.is(plan:explain " 1R1 ", plan:explain "PP=1 MB=1 PASS=R", "a pass that recomputes, with blanks")
local single = piper.model("single", function(m)
  local h = m:input("x", { "batch", 4 }, "f32")
  for _ = 1, 2 do piper.annotate("LAYER", function() h = nn.gelu(nn.linear(h, "l", { out = 4 })) end) end
  m:loss(nn.sum_squares(h))
end)
local nested = piper.strategy():split { num_microbatches = 2, dim_name = "A" }:split { num_microbatches = 2, dim_name = "C" }
local flat = piper.compile(single, nested, { batch = 8 })
tap.is(flat:explain "0F2", flat:explain "A=1 C=0 PASS=F", "without stages, the microbatch through nested splits")
tap.is(flat:explain "0B3/2", flat:explain "A=1 C=1 PASS=B LAYER=1", "one chunk")
says("  PP=one", 'position 3 of "  PP=one": PP = "one" is not an index')
says("PP=0 PP=1", 'position 6 of "PP=0 PP=1": PP again')
says("PASS=X", 'position 1 of "PASS=X": PASS is "X", not one of')
says("MB=1,", 'position 1 of "MB=1,": MB = "1," is not an index')
says({ PP = "one" }, 'PP = "one" in the filter')
says(3, "a filter is a table such as { PP = 0 }, not 3")
says("PP=99999999999999999999", "position 1 .*: PP = .* is not an index")
tap.done()
