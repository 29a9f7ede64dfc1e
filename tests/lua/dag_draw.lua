-- plan:dag lists the nodes in words, plan:dot draws them for Graphviz: every node and every edge of the text form.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local function model_of(stages)
  return piper.model("drawn", function(m)
    local h = m:input("x", { "batch", 4 }, "f32")
    for s = 0, stages - 1 do
      piper.annotate("PP", function()
        h = nn.relu(nn.linear(h, "l" .. s, { out = 4, bias = false }))
        if s == stages - 1 then m:loss(nn.mean(h)) end
      end)
    end
  end)
end

local s = piper.strategy()
s:split { num_microbatches = 2 }
s:place { filter = { PP = 0 }, devices = { 0, 1 } }
s:place { filter = { PP = 1 }, devices = { 2 }, stream = "up" }
s:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
s:order { filters = { { PP = 1, PASS = "F", MB = 0 }, { PP = 1, PASS = "F", MB = 1 }, { PP = 1, PASS = "B", MB = 1 },
                      { PP = 1, PASS = "B", MB = 0 } } }
local plan = piper.compile(model_of(2), s, { batch = 4 })
tap.is(plan:dag "order", [[
0F0                       0-1
0F1                       0-1
transfer relu.4 0F0       0-1>2  pp_stream  <- 0F0
1F0                       2                 <- transfer relu.4 0F0
transfer relu.4 0F1       0-1>2  pp_stream  <- 0F1
1F1                       2                 <- transfer relu.4 0F1, ~1F0
1B1                       2                 <- 1F1
1B0                       2                 <- 1F0, ~1B1
transfer grad relu.4 1B0  2>0-1  up         <- 1B0
0B0                       0-1               <- 0F0, transfer grad relu.4 1B0
transfer grad relu.4 1B1  2>0-1  up         <- 1B1
0B1                       0-1               <- 0F1, transfer grad relu.4 1B1
all_reduce l0.weight      0-1    dp_stream  <- 0B0, 0B1
norm l0.weight            0                 <- all_reduce l0.weight
update l0.weight          0-1               <- all_reduce l0.weight
norm l1.weight            2                 <- 1B0, 1B1
all_reduce metrics        0-2    dp_stream  <- 1F0, 1F1, norm l0.weight, norm l1.weight
update l1.weight          2                 <- 1B0, 1B1]], "the list after a pass")

local at = {}
for line in plan:dag():gmatch "[^\n]+" do at[#at + 1] = line:match "^%S+" end
local actions = table.concat(at, " ")
tap.like(actions, "1F0.*1F1.*1B1.*1B0", "the plan's list is in the order in which it runs")
tap.is(#at, 18, "and complete")
tap.is(plan:dag "build":match "[^\n]+", "0F0", "before placement a node has no device")

-- Several chunks of one stage are told apart.
local experts = piper.model("experts", function(m)
  local x = m:input("x", { "batch", 4, 4 }, "f32")
  m:loss(nn.mean(nn.moe(x, "moe", { experts = 2, top_k = 1, width = 4 })))
end)
local e = piper.strategy()
e:place { filter = {}, devices = { 0, 1 } }
e:replicate { filter = { EP = false }, devices = { 0, 1 } }
e:shard { filter = { EP = "*" }, devices = { 0, 1 } }
local list = piper.compile(experts, e, { batch = 4 }):dag "order"
tap.like(list, "\n0F0/2 +0%-1 +<%- all_to_all %S+ to experts 0F0/2\n", "chunks of a stage have their number")

-- The picture has what the text form has.
local path = os.tmpname()
local function picture(of, pass)
  tap.is(of:dot(path, pass), of, "dot gives the plan back")
  local f <close> = assert(io.open(path))
  return f:read "a"
end
local function count(text, pattern)
  local _, n = text:gsub(pattern, "")
  return n
end
for _, pass in ipairs { "split", "place", "order", "zero" } do
  local text, dot = plan:dump(pass), picture(plan, pass)
  tap.is(count(dot, "\n +n%d+ %[label="), count(text, "\n%d+ %l"), pass .. ": every node")
  local edges = 0
  for sources in text:gmatch "<%- ([^\n]+)" do edges = edges + count(sources, "%d+[:~]") end
  tap.is(count(dot, "\n  n%d+ %-> n%d+"), edges, pass .. ": every edge")
  tap.is(count(dot, "style=dashed"), count(text, "%d+~"), pass .. ": temporal ones dashed")
end
local dot = picture(plan)
tap.like(dot, '^digraph "drawn" {', "the model's name")
tap.like(dot, 'subgraph cluster_%d+ {\n    label="devices 0%-1";', "a cluster for each device set")
tap.is(count(dot, "subgraph"), 2, "none for the metrics of all")
tap.like(dot, 'label="transfer\\nrelu.4 0F0\\n0%-1>2  pp_stream"', "communication has devices and stream")
tap.like(dot, 'tooltip="%S*dag_draw.lua:12"', "nodes have script lines")

-- A part of it: what matches, what it communicates, in grey what else is beside it.
local part = picture(plan, { pass = "order", filter = { PP = 0, MB = 0 } })
local function drawn(text)
  local names, grey = {}, {}
  for label, rest in text:gmatch '\n +n%d+ %[label="([^"]*)"([^\n]*)' do
    table.insert(rest:find "#f2f2f2" and grey or names, (label:gsub("\\n", " ")))
  end
  table.sort(names) table.sort(grey)
  return table.concat(names, ", ") .. " beside " .. table.concat(grey, ", ")
end
tap.is(drawn(part), "0B0, 0F0, all_reduce l0.weight 0-1  dp_stream, transfer grad relu.4 1B0 2>0-1  up, "
  .. "transfer relu.4 0F0 0-1>2  pp_stream beside 1B0, 1F0", "a filter draws a part, after a pass")
tap.is(count(part, "\n  n%d+ %-> n%d+"), 6, "with the edges of that")
tap.is(drawn(picture(plan, { filter = "PP=0 MB=0" })), drawn(part), "likewise in the end, by the text of a filter")
tap.is(picture(plan, { pass = "order" }), picture(plan, "order"), "a pass alone draws everything")
tap.like(dot, "<td bgcolor=\"#bcd9f5\">F</td>", "a legend")
tap.ok(not dot:find "beside these" and part:find "beside these", "of what there is")
for _, pass in ipairs { false, "order" } do
  tap.error_matches(function() plan:dot(path, { pass = pass or nil, filter = { PP = 7 } }) end,
    "dag_draw.lua:%d+: dot: filter { PP = 7 } matches nothing")
end
tap.error_matches(function() plan:dot(path, { filtre = {} }) end, 'dag_draw.lua:%d+: dot: unknown field "filtre"')

local z = piper.strategy():add(piper.schedules.zbv { ranks = 2, microbatches = 2 })
local zbv = picture(piper.compile(model_of(4), z, { batch = 4 }))
tap.is(count(zbv, 'label="stage %d"'), 4, "a cluster for each stage where a device set has several")

local function colour(text, name) return text:match('label="' .. name .. '", fillcolor="(#%x+)"') end
tap.ok(colour(zbv, "0F0") ~= colour(zbv, "0I0") and colour(zbv, "0I0") ~= colour(zbv, "0W0"), "passes have colours")

-- Names of parameters have no quotes, but script files may.
local weird = load([[
return function(piper, model)
  return piper.compile(model, piper.strategy():place { filter = {}, devices = { 0 } }, { batch = 4 })
end]], '@a "b" \\c\n.lua')()
local escaped = picture(weird(piper, load('return function(piper) return piper.model("m", function(m) '
  .. 'm:loss(piper.nn.mean(piper.nn.linear(m:input("x", { "batch", 2 }), "l", { out = 1 }))) end) end',
  '@a "b" \\c\n.lua')()(piper)))
tap.like(escaped, 'tooltip="a \\"b\\" \\\\c', "quotes and backslashes are escaped")

local _, _, has_dot = os.execute "command -v dot >/dev/null"
for _, case in ipairs { { "device sets", dot }, { "stages", zbv }, { "quotes", escaped }, { "a part", part } } do
  local name, text = case[1], case[2]
  if has_dot ~= 0 then
    tap.skip("no Graphviz", name)
  else
    local f = assert(io.open(path, "w"))
    f:write(text)
    f:close()
    tap.ok(os.execute(("dot -Tsvg -o %s.svg %s"):format(path, path)), "Graphviz reads it: " .. name)
    os.remove(path .. ".svg")
  end
end
os.remove(path)

tap.error_matches(function() plan:dot "/nowhere/at/all.dot" end, "^%S*dag_draw.lua:%d+: dot: /nowhere/at/all.dot: No such file")
tap.error_matches(function() plan:dot "/dev/full" end, "dag_draw.lua:%d+: dot: /dev/full: No space left")
tap.error_matches(function() plan:dot() end, "dag_draw.lua:%d+: dot: argument 1 is missing")
tap.error_matches(function() plan:dag(3) end, "dag_draw.lua:%d+: dag: argument 1 is 3")
tap.error_matches(function() plan:dag "ordr" end, 'dag_draw.lua:%d+: there is no pass "ordr" to dump after')
tap.done()
