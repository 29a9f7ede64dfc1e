-- plan:overlap(): what of the communication hides behind compute, as it prints and as data; and that memory
-- which communication still uses does not undo what an order asked for.
local tap = require "tap"
local piper = require "piper"
local nn, schedules = piper.nn, piper.schedules

local model = piper.model("pairs", function(m)
  local tokens, targets = m:input("tokens", { "batch", 32 }, "i32"), m:input("targets", { "batch", 32 }, "i32")
  local h
  for stage = 0, 3 do
    piper.annotate("PP", function()
      local name = "layers." .. stage
      if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = 64, width = 32 }) end
      h = h + nn.attention(nn.rmsnorm(h, name .. ".norm1"), name .. ".attn", { heads = 2, head_width = 16 })
      h = h + nn.moe(nn.rmsnorm(h, name .. ".norm2"), name .. ".mlp", { experts = 4, top_k = 1, width = 64, capacity_factor = 2 })
      if stage == 3 then m:loss(nn.cross_entropy(nn.linear(h, "head", { out = 64 }), targets)) end
    end)
  end
end)

local list = schedules.dualpipev { ranks = 2, microbatches = 8, devices = { { 0, 1 }, { 2, 3 } } }
local function plan_of(apart, ep_stream)
  local s = piper.strategy()
  for _, d in ipairs(list) do
    local groups = d.filters
    if d.op == "order" and apart then
      groups = {}
      for _, g in ipairs(d.filters) do table.move(g[1] and g or { g }, 1, g[1] and #g or 1, #groups + 1, groups) end
    end
    if d.op == "order" then s:order { filters = groups }
    elseif d.op == "split" then s:split { num_microbatches = d.num_microbatches }
    else s:place { filter = d.filter, devices = d.devices } end
  end
  for stage = 0, 3 do
    local devices = (stage == 0 or stage == 3) and { 0, 1 } or { 2, 3 }
    s:replicate { filter = { PP = stage }, devices = devices, shard_grads = true }
    s:shard { filter = { PP = stage, EP = "*" }, devices = devices, stream = ep_stream }
  end
  return piper.compile(model, s, { batch = 16 })
end

local function row(overlap, kind)
  for _, r in ipairs(overlap) do
    if r.kind == kind then return r end
  end
end

local plan = plan_of(false)
local overlap = plan:overlap()
local calls, fine = {}, true
for _, c in ipairs(plan:communication()) do
  calls[c.kind .. " " .. c.stream:gsub("/.*", "")] = (calls[c.kind .. " " .. c.stream:gsub("/.*", "")] or 0) + c.calls * #c.devices
end
for _, r in ipairs(overlap) do
  fine = fine and r.seconds >= r.hidden and r.hidden >= 0 and calls[r.kind .. " " .. r.stream] == r.calls
  calls[r.kind .. " " .. r.stream] = nil
end
tap.ok(fine and next(calls) == nil, "a row for each kind and stream, each call once for each rank that takes part")

-- Where members overlap most of the exchanges are hidden; where they do not, hardly any is.
local pairs_row, apart_row = row(overlap, "all_to_all"), row(plan_of(true):overlap(), "all_to_all")
tap.diag(("%.1f us of exchanges, %.1f hidden; %.1f apart"):format(pairs_row.seconds * 1e6, pairs_row.hidden * 1e6, apart_row.hidden * 1e6))
tap.ok(pairs_row.hidden > 0.65 * pairs_row.seconds, "overlapped members hide the exchanges")
tap.ok(apart_row.hidden < 0.2 * apart_row.seconds, "members in sequence do not")

-- What is exposed says why.
local worst = true
for i, x in ipairs(overlap.exposed) do
  worst = worst and x.exposed > 0 and x.exposed <= x.seconds and x.op:find "overlap.lua:%d+%)$" ~= nil and #x.why > 0
    and (i == 1 or x.exposed <= overlap.exposed[i - 1].exposed + 1e-12)
end
tap.ok(worst and #overlap.exposed > 0, "exposed operations, worst first, with their lines")
local shared = plan_of(false, "dp_stream"):overlap()
tap.is(row(shared, "all_to_all").stream, "dp_stream", "streams by their names")

tap.like(tostring(plan), "\noverlap       [^\n]*all_to_all on ep_stream %d+%% of [%d.]+ .?s", "print(plan) has a line")
tap.like(tostring(plan), "hidden behind compute\n", "that says what it is about")
local apart = tostring(plan):match "members one after another ([%d.]+ .?s)\n"
tap.ok(apart and apart:find "ms$" and tonumber(apart:match "[%d.]+") > 1.05 * plan.core:info().seconds * 1e3,
  ("and that says what a step would take without overlap: %s, not %.2f ms"):format(apart, plan.core:info().seconds * 1e3))
tap.like(tostring(overlap), "all_to_all +ep_stream +%d+ calls +[%d.]+ ms +[%d.]+%% hidden", "it can be printed")
tap.like(tostring(overlap), "rank %d: [^\n]+ is exposed for [%d.]+ of [%d.]+ us: ", "with the reasons")

local text, longest = tostring(overlap), 0
for line in text:gmatch "[^\n]+" do longest = math.max(longest, #line) end
tap.ok(longest <= 120, ("in lines of %d columns"):format(longest))
local kinds, n_kinds = {}, 0
for _, x in ipairs(overlap.exposed) do
  local kind = ("%d %s %s"):format(x.rank, x.cause, x.op:gsub("(%d+[FB])%d+", "%1"))
  if not kinds[kind] then kinds[kind], n_kinds = true, n_kinds + 1 end
end
local _, n_lines = text:gsub("\nrank %d+: ", "")
tap.ok(n_lines == math.min(8, n_kinds) and n_kinds < #overlap.exposed, "those that differ only in the microbatch are one")
text = text:gsub("\n    ", " ")
tap.like(text, "us %(the worst of %d+ microbatches%): ", "with their count")
tap.like(text, " %d[FB]%d/%d+[ \n]", "and chunks are told apart where a stage has several")

-- A plan without communication has nothing to tell.
local alone = piper.compile(model, piper.strategy(), { batch = 4 })
tap.is(#alone:overlap(), 0, "no communication, no row")
tap.ok(not tostring(alone):find "overlap", "and no line")
tap.done()
