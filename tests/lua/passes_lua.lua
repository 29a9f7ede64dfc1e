-- Passes of one's own: what they read, what they do, every message with its line, and that plans with them train to the
-- weights of one device.
local tap = require "tap"
local exact = require "exact"
local piper = require "piper"
local nn = piper.nn

local data = exact.data()
local OPTIONS = { batch = 24, dtype = "f64", optimizer = piper.sgd { lr = 1 }, verify = true }

local function compile(model, strategy, batch)
  local options = { batch = batch }
  for k, v in pairs(OPTIONS) do options[k] = options[k] or v end
  return piper.compile(model, strategy, options)
end

-- The plan of a model and a strategy with one pass.
local function with(fn, model, strategy, after, batch)
  local _ <close> = piper.pass("mine", fn, after and { after = after })
  return compile(model, strategy, batch)
end

local function line() return debug.getinfo(2, "l").currentline end

-- 'fn' as a pass raises what matches; 'at': the line that is blamed, if it is to be checked.
local plain, two = exact.model("plain", 2), exact.strategy("one_f_one_b", 2, 3, 2)
local function fails(fn, want, after, model, strategy)
  local fine, message = pcall(with, fn, model or plain, strategy or two, after)
  tap.ok(not fine and type(message) == "string" and message:find('passes_lua.lua:%d+: pass "mine": ') ~= nil
    and message:find(want, 1, true) ~= nil, want)
  if fine or not tostring(message):find(want, 1, true) then tap.diag(message) end
  return message
end

-- ---- reading ----------------------------------------------------------------------------------------

local seen = {}
with(function(dag)
  tap.is(tostring(dag), 'dag of 25 nodes, in pass "mine" after "replicate"', "a dag as text")
  tap.is(dag.pass .. " " .. dag.after .. " " .. dag.batch .. " " .. tostring(dag.forward_only), "mine replicate 24 false",
    "fields of a dag")
  local list = dag:nodes { PP = 1, MB = { 0, 2 }, PASS = "B" }
  tap.is(#list, 2, "nodes of a filter")
  local b = list[1]
  tap.is(table.concat({ b.id, b.kind, b.pass, b.chunk, b.microbatch, b.lo, b.hi, b.stream, b.label }, " "),
    "3 compute B 2 0 0 8 default_stream 1B0", "fields of a compute node")
  tap.is(tostring(b), "1B0", "a node as text")
  tap.is(table.concat(b.devices, ","), "2,3", "its devices")
  tap.ok(b.tags.PP == 1 and b.tags.MB == 0 and b.tags.EP == nil, "its tags")
  tap.like(b.line, "exact.lua:%d+$", "its line")
  tap.ok(b.bucket == nil and b.tensor == nil and b.src_devices == nil and b.order == nil and b.group == nil
    and b.member == nil and b.parts == nil and not b.recompute, "fields that it does not have are nil")
  tap.ok(dag:node(3) == b and dag:nodes({ PASS = "B" }, "*")[1] == b, "a node is one object")
  b.tags.PP = 7
  tap.is(b.tags.PP, 1, "tags are a copy")

  local t = dag:nodes({}, "transfer")[1]
  tap.is(table.concat({ t.kind, t.pass, t.microbatch, t.stream, t.tensor, table.concat(t.src_devices, ","),
    table.concat(t.devices, ",") }, " "), "transfer F 0 pp_stream v5 0,1 2,3", "fields of a transfer")
  local r = dag:nodes({}, "all_reduce")[2]
  tap.is(table.concat({ r.kind, r.bucket, r.tensor, r.stream }, " "), "all_reduce 1 bucket(1) dp_stream", "of a reduction")
  tap.ok(r.pass == nil and r.microbatch == nil and r.lo == nil and r.chunk == nil, "which serves no single node")
  local bucket = dag:bucket(r)
  tap.is(("%d %d %s %d %s %s %d %s"):format(bucket.id, bucket.chunk, table.concat(bucket.params, ","), bucket.elements,
    table.concat(bucket.devices, ","), bucket.trained, bucket.zero, bucket.reduce),
    "1 1 layer0.0.weight,layer0.0.bias 20 0,1 true 0 step", "a bucket")
  tap.is(dag:bucket(1).id, 1, "by number")

  local function text(edges)
    local words = {}
    for i, e in ipairs(edges) do
      words[i] = ("%s>%s %s %s"):format(e.from, e.to, e.kind, e.tensor or e.line)
    end
    return table.concat(words, "; ")
  end
  tap.is(text(dag:edges_in(dag:node(4))), "0F0>0B0 data saved(1); transfer grad relu.5 1B0 2-3>0-1>0B0 data grad(v5,2)",
    "edges that enter")
  tap.is(text(dag:edges_out(4)), "0B0>all_reduce layer0.0.weight.. 0-1 data bucket(1)", "and leave, by id")
  tap.ok(dag:reaches(1, 4) and not dag:reaches(4, 1) and dag:reaches(1, 1), "paths")

  tap.is(#dag:nodes({}, "*"), 25, "nodes of every kind")
  tap.is(#dag:nodes {}, 12, "compute nodes alone where no kind is said")
  tap.is(#dag:nodes({ MB = 1 }, "transfer"), 2, "transfers have tags")
  tap.is(#dag:nodes({ MB = false }, "*"), 7, "metrics, reductions, norms and updates of a step have none")
  tap.is(#dag:nodes { PASS = "BW" } + #dag:nodes { XY = 3 } + #dag:nodes({ XY = 3 }, "*"), 0, "nothing matches")
  seen[#seen + 1] = dag
  seen[#seen + 1] = b
  seen[#seen + 1] = dag:edges_in(4)[1]
end, plain, two, "replicate")

-- After the pass.
local over = "this pass has ended: its dag and nodes are good only while its function runs"
tap.error_matches(function() local _ = seen[1]:nodes {} end, "passes_lua.lua:%d+: " .. over, "the dag after its pass")
tap.error_matches(function() return seen[2].kind end, over, "a node after its pass")
tap.error_matches(function() return tostring(seen[2]) end, over, "its text")
tap.error_matches(function() seen[2].stream = "x" end, over, "setting a field")
tap.error_matches(function() seen[1]:before(1, 2) end, over, "a primitive")
fails(function(dag) dag:before(seen[2], dag:node(1)) end, "before: argument 1 is a node of another DAG, whose pass has ended")
fails(function(dag) dag:remove(seen[3]) end, "remove: this edge is of another DAG, whose pass has ended")

-- ---- order ------------------------------------------------------------------------------------------

local function actions(plan) return plan:actions():gsub("\n.*", "") end -- of rank 0

local one = exact.model("plain", 1)
local split = piper.strategy():split { num_microbatches = 3 }
tap.is(actions(compile(one, split)), "0F0 0B0 0F1 0B1 0F2 0B2", "without a pass")
local gpipe = with(function(dag)
  dag:before(dag:nodes { PASS = "F" }, dag:nodes { PASS = "B", MB = 2 })
  dag:before(dag:nodes { MB = 2, PASS = "B" }, dag:nodes { MB = { 0, 1 }, PASS = "B" })
end, one, split)
tap.is(actions(gpipe), "0F0 0F1 0F2 0B2 0B0 0B1", "with lists of nodes one before the other")
tap.is(gpipe:actions(), with(function(dag)
  local last = dag:nodes { PASS = "B", MB = 2 }[1]
  for _, f in ipairs(dag:nodes { PASS = "F" }) do dag:before(f.id, last) end
  for mb = 0, 1 do dag:before(last, dag:nodes { PASS = "B", MB = mb }[1]) end
end, one, split):actions(), "one by one, by id as well")
tap.like(gpipe:dump "mine", "passes_lua.lua:%d+", "the DAG after the pass, with the lines of its edges")
tap.like(gpipe:dag "mine", "0B2.*~", "the same in words")
tap.ok(gpipe:dump "order" ~= gpipe:dump "mine" and gpipe:dump "order" == compile(one, split):dump "order",
  "and before it")
tap.error_matches(function() gpipe:dump "mime" end,
  'passes_lua.lua:%d+: there is no pass "mime" to dump after; the passes are build, .*, zero, mine$')
tap.error_matches(function() compile(one, split):dump "mine" end, "order, zero$", "plans compiled later are without it")

local removed = with(function(dag)
  for _, n in ipairs(dag:nodes {}) do
    for _, e in ipairs(dag:edges_in(n)) do
      if e.kind == "temporal" then dag:remove(e) end
    end
  end
end, plain, two)
tap.like(compile(plain, two):actions(), "^0F0 0F1 0B0", "1F1B")
tap.ok(removed:actions() ~= compile(plain, two):actions(), "edges of an order can be removed")

fails(function(dag) dag:before(dag:node(4), dag:node(1)) end,
  "before: 0B0 cannot come before 0F0, since it has to wait for it: 0F0 -> 0B0")
do
  local first
  local message = fails(function(dag)
    local f = dag:nodes { PASS = "F" }
    first = line() + 1
    dag:before(f[2], f[1])
    dag:before(f[3], f[2])
    dag:before(f[1], f[3])
  end, "0F0 cannot come before 0F2, since it has to wait for it: 0F2 -> ", nil, one, split)
  tap.like(message, ("lua:%d: pass .* %%-> %%(.*lua:%d%%) 0F1 %%-> %%(.*lua:%d%%) 0F0$"):format(first + 2, first + 1, first),
    "a cycle is found in the call that closes it, and shows the lines of the others")
end
fails(function(dag) dag:before(1, 1) end, "before: 0F0 cannot come before itself")
fails(function(dag) dag:before(dag:nodes { PP = 0 }[1], dag:nodes { PP = 1 }[1]) end,
  "before: 0F0 is on devices 0-1 and 1F0 on devices 2-3: an order holds on a device that both are on")
fails(function(dag) dag:before(1, 2) end, "before: nodes have devices, and can be ordered on them, from the built-in pass place on",
  "recompute")
tap.ok(with(function(dag)
  local t = dag:nodes({ MB = 1, PASS = "F" }, "transfer")[1]
  dag:before(dag:nodes { PP = 0, MB = 0, PASS = "B" }[1], t) -- on the side that sends
  dag:before(t, dag:nodes { PP = 1, MB = 2, PASS = "F" }[1]) -- on the side that receives
end, plain, two):verify(), "transfers are ordered on both sides")
fails(function(dag) dag:remove(dag:edges_in(dag:node(4))[1]) end, "remove: data flows along this edge: only temporal edges can be removed")
fails(function(dag)
  dag:before(1, 5)
  local list = dag:edges_in(5)
  dag:remove(list[#list])
  dag:remove(list[#list])
end, "remove: this edge was removed before", nil, one, split)
fails(function(dag) dag:remove(3) end, "remove: argument 1 is 3, not an edge of dag:edges_in or dag:edges_out")

-- A pass before an order directive, which contradicts it.
tap.error_matches(function()
  with(function(dag) dag:before(dag:nodes { PP = 0, MB = 2, PASS = "F" }, dag:nodes { PP = 0, MB = 1, PASS = "F" }) end, plain, two, "count")
end, "order: 0F[12] is ordered before 0F[12], but has to wait for it: ", "an order that contradicts a pass before it")

-- The pass order tells edges of passes before it from those of data: what an R serves, ...
local recomputed = piper.strategy():split { num_microbatches = 2 }:recompute { filter = {} }
recomputed:order { filters = { { MB = 0, PASS = "F" }, { MB = 0, PASS = "B" }, { MB = 1, PASS = "F" }, { MB = 1, PASS = "B" } } }
tap.like(with(function(dag) dag:before(dag:nodes { PASS = "R", MB = 0 }, dag:nodes { PASS = "F", MB = 1 }) end, one, recomputed, "count")
  :actions(), "^0F0 0R0 0B0 0F1 0R1 0B1$", "an edge from R to what it does not serve")
-- ... and what a wide group gets through transfers (a walk along all of these paths would take years).
local many = piper.strategy():split { num_microbatches = 48 }
many:place { filter = { PP = 0 }, devices = { 0 } }:place { filter = { PP = 1 }, devices = { 1 } }
many:order { filters = { { PP = 1, PASS = "F" }, { PP = 1, PASS = "B" } } }
tap.ok(with(function(dag)
  local transfers = dag:nodes({ PASS = "F" }, "transfer")
  for i = 2, #transfers do
    for j = 1, i - 1 do dag:before(transfers[j], transfers[i]) end
  end
end, plain, many, "count", 48):verify(), "all transfers in one order, before the pass order")

-- Joins stand between wide groups.
local wide = piper.strategy():split { num_microbatches = 8 }
wide:order { filters = { { MB = { 0, 1, 2, 3 }, PASS = "F" }, { MB = { 4, 5, 6, 7 }, PASS = "F" } } }
fails(function(dag) dag:before(dag:nodes({}, "join")[1], 1) end, "before: join 0 runs nothing: order the nodes beside it", nil, one, wide)

-- ---- positions --------------------------------------------------------------------------------------

tap.like(with(function(dag)
  dag:position(dag:nodes { MB = { 0, 1 }, PASS = "F" }, { order = 1, group = 1 })
  dag:position(dag:nodes { MB = 1, PASS = "F" }[1], { order = 1, group = 1, member = 1 })
  tap.ok(dag:nodes({ MB = 1 })[1].member == 1 and dag:nodes({ MB = 1 })[1].order == 1 and dag:nodes({ MB = 1 })[1].group == 1,
    "positions are read back")
end, one, split):actions(), "^%(0F0%+", "members of a group are shown together")
fails(function(dag) dag:position(1, { order = 1 }) end, 'position: field "group" is missing: it is a whole number of at least 1')
fails(function(dag) dag:position(1, { order = 0, group = 1 }) end, 'position: field "order" is 0, not a whole number of at least 1')
fails(function(dag) dag:position(1, { order = 1, group = 1 << 40 }) end, "position: group is 1099511627776: too large")
fails(function(dag) dag:position(1, { order = 1, group = 1, memeber = 1 }) end, 'position: unknown field "memeber" (did you mean "member"?)')
fails(function(dag) dag:position(dag:nodes({}, "update"), { order = 1, group = 1 }) end,
  "position: update layer0.0.weight.. 0-1 is not a compute node: only those stand in orders")
fails(function(dag) dag:position(1, { order = 1, group = 1 }) end,
  'position: the built-in pass order comes later, and says where nodes stand: use after = "order"', "count")

-- ---- streams and tags -------------------------------------------------------------------------------

local streams = with(function(dag)
  for _, kind in ipairs { "transfer", "all_reduce" } do
    for _, n in ipairs(dag:nodes({}, kind)) do n.stream = "mine_" .. kind end
  end
end, plain, two)
tap.ok(streams:dump("mine"):find("stream=mine_transfer", 1, true) and tostring(streams):find("mine_all_reduce 2", 1, true),
  "streams of communication")
fails(function(dag) dag:node(1).stream = "x" end,
  "stream: 0F0 does not communicate, and runs on default_stream: only transfers and collectives have a stream to choose")
fails(function(dag) dag:nodes({}, "transfer")[1].stream = "a b" end,
  'stream: the name is "a b": a name has letters, digits, _, . and - only')
fails(function(dag) dag:nodes({}, "transfer")[1].stream = 3 end, "stream: the name is 3, not a string")
fails(function(dag) dag:node(1).strem = "x" end, 'a node has no field "strem" (did you mean "stream"?)')
fails(function(dag) dag:node(1).kind = "x" end, "the field kind of a node cannot be set")
fails(function(dag) dag:node(1).tags = {} end, "the field tags of a node cannot be set; dag:tag sets them")
fails(function(dag) dag:node(1).group = 1 end, "the field group of a node cannot be set; dag:position sets it")
fails(function(dag) return dag:node(1).devces end, 'a node has no field "devces" (did you mean "devices"?)')

-- A tag that directives use: the pass runs before them.
local by_tag = piper.strategy()
by_tag:place { filter = { HALF = 0 }, devices = { 0 } }
by_tag:place { filter = { HALF = 1 }, devices = { 1 } }
by_tag:split { num_microbatches = 2 }
local tagged = with(function(dag)
  for _, n in ipairs(dag:nodes {}) do dag:tag(n, "HALF", n.tags.PP // 2) end
end, exact.model("plain", 4), by_tag, "build")
tap.like(tagged:actions(), "^0F0 0F1 1F0[^2]*\n2F0 3F0 ", "a tag of one's own in the filters of directives")
with(function(dag)
  dag:tag(dag:nodes { PP = 1 }, "OWN", 4)
  tap.is(#dag:nodes { OWN = 4 }, 6, "and in those of the pass")
  dag:tag(dag:nodes { OWN = 4, MB = 0 }, "OWN", 5)
  dag:tag(dag:nodes { OWN = 4, MB = 1 }, "OWN", false)
  tap.is(#dag:nodes { OWN = 4 } .. #dag:nodes { OWN = 5 } .. #dag:nodes { OWN = false, PP = 1 } .. #dag:nodes { OWN = "*" },
    "2224", "changed and taken away")
  dag:tag(dag:nodes({}, "transfer"), "OWN", 9)
  tap.is(#dag:nodes({ OWN = 9 }, "*"), 6, "on transfers")
end, plain, two)
fails(function(dag) dag:tag(1, "PP", 3) end, "tag: PP is a tag of the model: take a name of your own")
tap.like(fails(function(dag) dag:tag(1, "MB", 3) end, "tag: MB counts microbatches"), "%(.-exact.lua:%d+%): take a name of your own$",
  "with the line of the split")
fails(function(dag) dag:tag(1, "PASS", 3) end, 'tag: "PASS" cannot be a tag: in filters it says which pass')
fails(function(dag) dag:tag(1, "a b", 3) end, 'tag: the name is "a b"; it is a word of letters, digits and _')
fails(function(dag) dag:tag(1, "X", -1) end, "tag: argument 3 (index) is -1, not a whole number of at least 0")
fails(function(dag) dag:tag(1, "X", 1 << 31) end, "tag: the index is 2147483648, more than 2147483647")
fails(function(dag) dag:tag(1, "X") end, "tag: argument 3 (index) is missing")
fails(function(dag) dag:tag(1, 5, 1) end, "tag: argument 2 (name) is 5, not a string")

-- ---- communication ----------------------------------------------------------------------------------

local function trains(plan, kind, stages, name)
  local got = exact.trace(plan, data)
  local want = exact.trace(compile(exact.model(kind, stages), piper.strategy()), data)
  if not tap.ok(got == want, name) then tap.diag(exact.difference(got, want)) end
end

-- The one reduction of each bucket becomes one for the last backward pass, and one for the others.
local function in_two(dag)
  for _, kind in ipairs { "all_reduce", "reduce_scatter" } do
    for _, r in ipairs(dag:nodes({}, kind)) do
      local groups = { {}, {} }
      for _, e in ipairs(dag:edges_in(r)) do
        if e.tensor == "bucket(" .. (r.bucket or 0) .. ")" then table.insert(groups[e.from.microbatch == 2 and 2 or 1], e.from) end
      end
      if #groups[2] > 0 then
        local parts = dag:split_reduction(r, groups)
        tap.ok(#parts == 2 and parts[1] == r and r.pass ~= nil and parts[2].microbatch == 2 and dag:bucket(r).reduce == "microbatch",
          r.label .. " in two")
      end
    end
  end
end
for _, flags in ipairs { {}, { shard_optimizer = true }, { shard_grads = true }, { shard_params = true } } do
  local strategy = exact.strategy("one_f_one_b", 2, 3, 2, nil, flags)
  local plan = with(in_two, plain, strategy, "replicate")
  local calls = 0
  for _, row in ipairs(plan:communication()) do
    if row.what == "gradients" and (row.kind == "all_reduce" or row.kind == "reduce_scatter") then calls = calls + row.calls end
  end
  tap.is(calls, 4, "twice as many calls: " .. exact.flags_text(flags))
  trains(plan, "plain", 2, "and the weights of one device")
end
-- A tied parameter: its reduction joins two stages.
trains(with(in_two, exact.model("tied", 2), two, "replicate"), "tied", 2, "reductions of a tied parameter in two")

-- Paths after a split are those of the parts.
with(function(dag)
  local r, backward = dag:nodes({}, "all_reduce")[2], dag:nodes { PP = 0, PASS = "B" }
  dag:before(dag:nodes({ MB = 2 }, "transfer")[1], r)
  local parts = dag:split_reduction(r, { { backward[1], backward[2] }, { backward[3] } })
  tap.ok(dag:reaches(backward[1], parts[1]) and not dag:reaches(backward[1], parts[2]), "the first part waits for its own sources")
  tap.ok(dag:reaches(backward[3], parts[2]) and not dag:reaches(backward[3], parts[1]), "so does the second")
  tap.ok(dag:reaches(parts[2], dag:nodes({}, "update")[1]), "both lead to the update")
  for i, part in ipairs(parts) do
    local n = 0
    for _, e in ipairs(dag:edges_in(part)) do n = n + (e.kind == "temporal" and 1 or 0) end
    tap.is(n, 1, ("part %d keeps the order of the whole"):format(i))
  end
  tap.error_matches(function() dag:before(parts[2], backward[3]) end, "before: .* cannot come before 0B%d, since it has to wait",
    "and closes cycles")
  tap.is(#dag:nodes({ MB = parts[2].microbatch }, "all_reduce"), 1, "a part has the tags of its last backward pass")
end, plain, piper.strategy():split { num_microbatches = 3 }:place { filter = { PP = 0 }, devices = { 0, 1 } }
  :place { filter = { PP = 1 }, devices = { 2, 3 } }:replicate { filter = { PP = 0 }, devices = { 0, 1 } }
  :replicate { filter = { PP = 1 }, devices = { 2, 3 } }, "replicate")
-- Also where nodes have moved up in the search for cycles.
with(function(dag)
  local r, forward, backward = dag:nodes({}, "all_reduce")[2], dag:nodes { PASS = "F" }, dag:nodes { PASS = "B" }
  for i = 2, #forward do dag:before(forward[i - 1], forward[i]) end
  dag:before(forward[#forward], backward[1])
  local last = table.remove(backward, 1)
  local parts = dag:split_reduction(r, { backward, { last } })
  tap.error_matches(function() dag:before(parts[2], last) end, "before: .* cannot come before 0B%d, since it has to wait",
    "a part behind a long chain")
end, one, piper.strategy():split { num_microbatches = 24 }:place { filter = {}, devices = { 0, 1 } }
  :replicate { filter = {}, devices = { 0, 1 } }, "replicate", 48)
fails(function(dag) dag:split_reduction(1, {}) end, "split_reduction: 0F0 is not a reduction of gradients")
fails(function(dag) dag:split_reduction(dag:nodes({}, "all_reduce")[1], {}) end,
  "split_reduction: all_reduce metrics 0-3 is not a reduction of gradients")
fails(function(dag) dag:split_reduction(1, {}) end, "split_reduction: there are reductions from the built-in pass replicate on", "place")
local function second(dag) return dag:nodes({}, "all_reduce")[2] end -- of stage 0
local function sources(dag) return dag:nodes { PP = 0, PASS = "B" } end
fails(function(dag) dag:split_reduction(second(dag), { { sources(dag)[1] }, { sources(dag)[2] } }) end,
  "split_reduction: 0B2 gives gradients to all_reduce layer0.0.weight.. 0-1, but is in no group")
fails(function(dag) dag:split_reduction(second(dag), { sources(dag), { sources(dag)[2] } }) end, "split_reduction: 0B1 is named twice")
fails(function(dag) dag:split_reduction(second(dag), { sources(dag), {} }) end, "split_reduction: group 2 is empty")
fails(function(dag) dag:split_reduction(second(dag), { { 1 } }) end, "split_reduction: 0F0 gives no gradients to all_reduce layer0.0.weight.. 0-1")
fails(function(dag) dag:split_reduction(second(dag), { 4 }) end, "split_reduction: group 1 is 4, not a list of nodes")
fails(function(dag) dag:split_reduction(second(dag), 4) end, "split_reduction: argument 2 (groups) is 4, not a list")

-- Parameters that are kept between two uses are gathered again.
local kept = exact.strategy("gpipe", 1, 3, 2, nil, { shard_params = true, keep = 100 })
local gathers
local again = with(function(dag)
  local g = dag:nodes({}, "all_gather")
  gathers = #g
  for _, e in ipairs(dag:edges_out(g[1])) do
    if e.to.pass == "F" and e.to.microbatch == 2 then
      local own = dag:gather_again(g[1], e.to)
      tap.is(own.label, "all_gather layer0.0.weight.. 0F2 0-1", "a gather of one's own")
      dag:before(dag:nodes { MB = 0, PASS = "F" }, own)
    end
  end
  tap.is(#dag:nodes({}, "all_gather"), gathers + 1, "is one more")
end, one, kept, "zero")
trains(again, "plain", 1, "and the weights of one device")
fails(function(dag) dag:gather_again(dag:nodes({}, "all_gather")[1], 1) end,
  "gather_again: there are gathers for compute nodes after the built-in pass zero", "replicate", one,
  exact.strategy("gpipe", 1, 3, 2, nil, { shard_optimizer = true }))
fails(function(dag) dag:gather_again(1, 2) end, "gather_again: 0F0 brings no parameters to 0B0", "zero", one, kept)
local lone = exact.strategy("gpipe", 1, 1, 2, nil, { shard_params = true, prefetch = 0 })
fails(function(dag)
  local g = dag:nodes({}, "all_gather")[1]
  dag:gather_again(g, dag:edges_out(g)[1].to)
end, "gather_again: all_gather layer0.0.weight.. 0F0 0-1 serves nobody but 0F0", "zero", one, lone)

-- ---- nodes that are none ----------------------------------------------------------------------------

for _, case in ipairs {
  { 0, "argument 1 is 0: ids of nodes run from 1 to 25" }, { 26, "argument 1 is 26: ids of nodes run from 1 to 25" },
  { math.mininteger, "argument 1 is -9223372036854775808: ids of nodes run from 1 to 25" }, { 1.5, "argument 1 is 1.5: ids" }, { 0 / 0, "argument 1 is " },
  { 1e300, "argument 1 is 1e+300: ids" }, { "1", 'argument 1 is "1", not a node (or its id)' },
  { true, "argument 1 is true, not a node (or its id)" },
} do
  fails(function(dag) dag:before(case[1], 1) end, "before: " .. case[2])
  fails(function(dag) dag:edges_in(case[1]) end, "edges_in: " .. case[2])
end
fails(function(dag) dag:before({ 1, "x" }, 1) end, 'before: element 2 of argument 1 is "x", not a node (or its id)')
fails(function(dag) dag:before({ 1, x = 2 }, 1) end, "before: argument 1 is { 1, x = 2 }, not a list")
fails(function(dag) dag:before(1) end, "before: argument 2 is nil, not a node (or its id)")
fails(function(dag) dag:bucket(99) end, "bucket: there is no bucket 99: they run from 1 to 2")
fails(function(dag) dag:bucket(dag:node(1)) end, "bucket: 0F0 is of no bucket")
fails(function(dag) dag:bucket "x" end, 'bucket: argument 1 is "x", not the number of a bucket or a node that has one')
fails(function(dag) dag:nodes({ PP = -1 }) end, "nodes: PP = -1 in the filter { PP = -1 } is not an index")
fails(function(dag) dag:nodes() end, "nodes: a filter is a table such as { PP = 0 }, not nil")
fails(function(dag) dag:nodes({}, "all_reduse") end, 'nodes: argument 2 (kind) is "all_reduse", not one of "compute"')
fails(function(dag) dag.nodes {} end, "nodes: this is a method; it is called with a colon: dag:nodes(...)")
fails(function(dag) dag:befor(1, 2) end, 'dag: there is no "befor" (did you mean "before"?)')

-- ---- errors of the function -------------------------------------------------------------------------

do
  local at = line() + 1
  tap.like(fails(function() error "something of mine" end, "something of mine"), ("^.*passes_lua.lua:%d: pass \"mine\": something of mine$"):format(at),
    "an error keeps its line")
  at = line() + 1
  tap.like(fails(function() local x; return x.y end, "attempt to index a nil value (local 'x')"), ("passes_lua.lua:%d: "):format(at), "so does a mistake")
end
fails(function() error("bare", 0) end, "bare")
local thing = {}
local _, raised = pcall(with, function() error(thing) end, plain, two)
tap.ok(raised == thing, "what is no text is raised as it is")
fails(function() coroutine.yield() end, "attempt to yield from outside a coroutine")
coroutine.wrap(function() fails(function() coroutine.yield() end, "attempt to yield across a C-call boundary") end)()
fails(function() compile(plain, two) end, 'compile: plans cannot be compiled inside a pass: the function of pass "mine" is running')
local ready = compile(plain, two)
fails(function() ready:dump "order" end, "plans cannot be compiled inside a pass")
tap.ok(pcall(compile, plain, two), "after such an error plans can be compiled again")
tap.ok(coroutine.wrap(function() return with(function(dag) dag:before(1, 5) end, one, split):verify() end)(), "in a coroutine")
tap.ok(with(function()
  local co = coroutine.wrap(function() coroutine.yield(1) end)
  co()
end, plain, two), "coroutines of the pass")
-- What is caught has changed nothing.
tap.is(with(function(dag)
  pcall(dag.before, dag, 4, 1)
  pcall(dag.tag, dag, 1, "PP", 1)
  pcall(dag.split_reduction, dag, second(dag), { { 4 } })
  pcall(dag.remove, dag, dag:edges_in(4)[1])
end, plain, two):digest(), ready:digest(), "primitives that fail leave the DAG as it was")

-- The DAG is verified: who reads parameters of a bucket without contributing comes before its update.
local reader = piper.model("reader", function(m)
  local x = m:input("x", { "batch", 4 }, "f32")
  piper.annotate("PP", function() m:loss(nn.sum_squares(nn.linear(x, "w", { out = 4 }))) end)
  piper.annotate("PP", function() local _ = nn.relu(nn.linear(x, "w", { out = 4 })) end)
end)
local fine, message = pcall(with, function(dag)
  for _, n in ipairs(dag:nodes {}) do
    for _, e in ipairs(dag:edges_out(n)) do
      if e.kind == "temporal" then dag:remove(e) end
    end
  end
end, reader, piper.strategy(), "replicate")
tap.ok(not fine, "an edge that matters cannot be removed")
tap.like(message, '^.*passes_lua.lua:%d+: pass "mine" leaves a DAG that is not right: 1F0 %(node %d+%) reads bucket 1, but does not come before update',
  "what is wrong is said, with the pass and its line")

-- ---- registration -----------------------------------------------------------------------------------

local calls = {}
local function note(name) return function() calls[#calls + 1] = name end end
local a, b = piper.pass("a", note "a"), piper.pass("b", note "b")
local c = piper.pass("c", note "c", { after = "build" })
compile(one, split)
tap.is(table.concat(calls), "cab", "behind the pass named, then in order of registration")
tap.is(tostring(a), 'pass "a"', "a handle as text")
calls = {}
local other = piper.pass("a", note "A")
compile(one, split)
tap.is(table.concat(calls), "cAb", "the same name replaces a pass in its place")
a:remove()
calls = {}
local old = compile(one, split)
tap.is(table.concat(calls), "cAb", "whose handle does nothing then")
other:remove()
b:remove()
c:remove()
b:remove()
calls = {}
compile(one, split)
tap.is(#calls, 0, "removed; twice is once")
old:dump "order"
tap.is(table.concat(calls), "cAb", "a plan keeps the passes that it was compiled with")
for _, case in ipairs {
  { function() piper.pass() end, "pass: argument 1 %(name%) is missing: it is a string" },
  { function() piper.pass("a b", note "") end, 'pass: the name is "a b": it has 1 to 64 letters, digits, _, %. and %-' },
  { function() piper.pass("x", 3) end, "pass: argument 2 is 3, not a function" },
  { function() piper.pass("order", note "") end, 'pass: "order" is a built%-in pass: take another name' },
  { function() piper.pass("x", note "", { after = "plaice" }) end, 'pass: field "after" is "plaice", not one of "build", .* %(did you mean "place"%?%)' },
  { function() piper.pass("x", note "", { befor = "place" }) end, 'pass: unknown field "befor"' },
  { function() piper.pass("x", note "", 3) end, "pass: expects a table of options, not 3" },
} do tap.error_matches(case[1], "passes_lua.lua:%d+: " .. case[2]) end
calls = {}
compile(one, split)
tap.is(#calls, 0, "what was refused is not registered")

-- ---- a table with the metatable of a node -----------------------------------------------------------

with(function(dag)
  local mt = getmetatable(dag:node(1))
  local copy = setmetatable({}, mt)
  for k, v in next, dag:node(1) do rawset(copy, k, v) end
  for i, odd in ipairs { setmetatable({}, mt), copy } do
    local name = i == 1 and "empty" or "copied"
    for _, fn in ipairs { function() return odd.label end, function() return odd.id end, function() odd.stream = "s" end } do
      tap.error_matches(fn, "passes_lua.lua:%d+: .*this table has the metatable of a node, but no dag has made it$", name)
    end
    tap.is(tostring(odd), "a table with the metatable of a node", name .. " as text")
    tap.error_matches(function() dag:node(odd) end, "passes_lua.lua:%d+: .*node: argument 1 is .*, not a node %(or its id%)$", name)
    tap.error_matches(function() dag:before(odd, 1) end, "passes_lua.lua:%d+: ", name .. " in a list's place")
  end
end, plain, two)

-- ---- R where a pass wants it ------------------------------------------------------------------------

-- An R that no order names runs just before its backward pass, but for what a pass has put behind it.
local function r_where(want, name, strategy, fn)
  local model = piper.model("again", function(m)
    local h = m:input("x", { "batch", 4 })
    piper.annotate("PP", function() h = nn.relu(nn.linear(h, "a", { out = 4 })) end)
    piper.annotate("PP", function() m:loss(nn.mean(nn.relu(nn.linear(h, "b", { out = 4 })))) end)
  end)
  tap.is(tostring(with(fn, model, strategy:recompute { filter = { PP = 0 } }, "place", 4):actions()):gsub("%s+$", ""), want, name)
end
local function of(dag, pp, mb, pass) return dag:nodes { PP = pp, MB = mb, PASS = pass } end
local function halves() return piper.strategy():split { dim_name = "MB", num_microbatches = 2 } end
r_where("0F0 1F0 1B0 0R0 0B0", "of itself", piper.strategy(), function() end)
r_where("0F0 0R0 1F0 1B0 0B0", "before what its gradient comes from", piper.strategy(), function(dag)
  dag:before(of(dag, 0, nil, "R"), of(dag, 1, nil, "B"))
end)
r_where("0F0 1F0 1B0 0R0 0B0", "before what it does not wait for", piper.strategy(), function(dag)
  dag:before(of(dag, 0, nil, "R"), of(dag, 0, nil, "B"))
end)
r_where("0F0 0F1 0R1 1F0 1B0 0R0 0B0 1F1 1B1 0B1", "two, each before the gradient of the other", halves(), function(dag)
  dag:before(of(dag, 0, 0, "R"), of(dag, 1, 1, "B"))
  dag:before(of(dag, 0, 1, "R"), of(dag, 1, 0, "B"))
end)
local function in_order()
  local filters = {}
  for _, f in ipairs { { 0, 0, "F" }, { 0, 1, "F" }, { 1, 0, "F" }, { 1, 0, "B" }, { 0, 0, "B" }, { 1, 1, "F" }, { 1, 1, "B" }, { 0, 1, "B" } } do
    filters[#filters + 1] = { PP = f[1], MB = f[2], PASS = f[3] }
  end
  return halves():order { filters = filters }
end
r_where("0F0 0F1 1F0 1B0 0R0 0B0 1F1 1B1 0R1 0B1", "in an order that does not name it", in_order(), function() end)
r_where("0F0 0F1 1F0 1B0 0R0 0B0 1F1 0R1 1B1 0B1", "in such an order, before what stands before it", in_order(), function(dag)
  dag:before(of(dag, 0, 1, "R"), of(dag, 1, 1, "B"))
end)

-- ---- equal to one device ----------------------------------------------------------------------------

-- Random orders of reductions and exchanges, splits, streams: here in one pass of each kind, for run:evaluate too.
local evaluated = {}
local function busy(dag)
  evaluated[#evaluated + 1] = dag.forward_only
  for _, n in ipairs(dag:nodes({}, "all_to_all")) do
    for _, kind in ipairs { "all_reduce", "reduce_scatter" } do
      for _, r in ipairs(dag:nodes({ PASS = { "B", "BW" } }, kind)) do
        if n.devices[1] == r.devices[1] and not dag:reaches(r, n) then dag:before(n, r) end
      end
    end
  end
  for _, n in ipairs(dag:nodes({}, "all_gather")) do n.stream = "gathers" end
end
local experts = piper.model("experts", function(m)
  local x, y = m:input("x", { "batch", 4, 6 }, "f32"), m:input("y", { "batch", 4, 6 }, "f32")
  local h = x
  for stage = 0, 1 do
    piper.annotate("PP", function()
      h = h + nn.moe(nn.linear(h, "mix" .. stage, { out = 6 }), "mlp" .. stage, { experts = 4, top_k = 2, width = 5 })
      if stage == 1 then m:loss(nn.mse(h, y)) end
    end)
  end
end)
for _, flags in ipairs { { reduce = "microbatch" }, { reduce = "microbatch", shard_params = true }, {} } do
  local s = exact.strategy("one_f_one_b", 2, 3, 2, nil, flags)
  s:shard { filter = { EP = 0 }, devices = { 0, 1 } }
  s:shard { filter = { EP = 1 }, devices = { 2, 3 } }
  local plan = with(busy, experts, s, "zero")
  evaluated = {}
  local equal = plan:check_equivalence { steps = 2 }
  tap.ok(equal.grad < 1e-9, "experts, reductions behind exchanges: " .. exact.flags_text(flags))
  tap.is(#evaluated, 1, "the reference has no pass")
end
local run = piper.train(with(busy, plain, two), { data = data })
evaluated = {}
tap.ok(run:evaluate({ data = data, batches = 1 }).loss > 0, "evaluation")
tap.ok(#evaluated == 1 and evaluated[1], "is of a plan with the passes, which know that it is")
run:close()
tap.done()
