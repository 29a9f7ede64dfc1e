-- matrix - every schedule x ranks x microbatches x replicas x ZeRO x recomputation x bucket size x model, each
-- compared with one device. 'cover' runs a part in which any two values of two axes meet; 'all' everything
-- of one schedule. Nothing is random: the same cells in the same order each time.
local tap = require "tap"
local exact = require "exact"
local composed = require "composed"
local tables = require "schedule_table"
local piper = require "piper"
local nn = piper.nn

local M = {}

-- ---- models ---------------------------------------------------------------------------------------

-- Experts and dropout in every stage, targets of which some are ignored, in some samples all. The second kind has
-- samples of one token, which all experts get, and embedding and head are one parameter; in the third the first two
-- experts get all there is, since the first feature says so.
local EXPERTS = {
  experts = { tokens = 4, top_k = 2, capacity_factor = 1.0, aux = 0.05 },
  experts_all = { tokens = 1, top_k = 4, aux = 0.1, normalize = false, tied = true },
  experts_idle = { tokens = 3, top_k = 2, first_feature = 3, likes_first = { 2, 1.5, -1.5, -2 } },
}
local WIDTH, VOCAB = 6, 11

local function expert_model(kind, stages)
  local form = EXPERTS[kind]
  local function init(i, name)
    if form.likes_first and i % WIDTH == 0 then
      if name:find "%.gate%.weight$" then return form.likes_first[i // WIDTH + 1] end
      if name == "embed.weight" then return form.first_feature end
    end
    return 0.8 * math.sin(1 + 7 * i + #name * i + #name)
  end
  return piper.model(kind, function(m)
    local tokens = m:input("tokens", { "batch", form.tokens }, "i32")
    local targets = m:input("targets", { "batch", form.tokens }, "i32")
    local h
    for stage = 0, stages - 1 do
      piper.annotate("PP", function()
        local name = ("layers.%d."):format(stage)
        if stage == 0 then h = nn.embedding(tokens, "embed", { vocab = VOCAB, width = WIDTH }) end
        h = h + nn.moe(nn.dropout(nn.rmsnorm(h, name .. "norm"), 0.1), name .. "mlp", {
          experts = 4, top_k = form.top_k, width = 5, capacity_factor = form.capacity_factor, aux = form.aux,
          normalize = form.normalize })
        if stage == stages - 1 then
          m:loss(nn.cross_entropy(nn.linear(h, form.tied and "embed" or "head", { out = VOCAB, bias = false }), targets))
        end
      end)
    end
  end, { init = init })
end

-- Of sample i the last targets are ignored, none of them to all.
local function expert_data(kind)
  local width, tokens, targets = EXPERTS[kind].tokens, {}, {}
  for i = 1, 96 do
    tokens[i], targets[i] = {}, {}
    for j = 1, width do
      tokens[i][j] = (i * 13 + j * j * 7 + i * j) % VOCAB
      targets[i][j] = j > width - (i * 5) % (width + 1) and -100 or (i * 3 + j * 5) % VOCAB
    end
  end
  return piper.data.table { tokens = tokens, targets = targets }
end

local models = {}
local function model_of(kind, stages)
  local key = kind .. stages
  if not models[key] then models[key] = EXPERTS[kind] and expert_model(kind, stages) or exact.model(kind, stages) end
  return models[key]
end

-- ---- axes -----------------------------------------------------------------------------------------

-- What replicate is told; "none" on a single device is no directive at all.
M.zero = { { "none", {} }, table.unpack(exact.zero) }

-- MiB: an element of f64, a prime number of bytes, the default (more than any model here).
M.buckets = { 8 / (1 << 20), 1009 / (1 << 20), false }

M.again = { "keep", "recompute", "recompute some" }

-- How the devices of a rank are numbered: composed.sets.
M.across = { false, true }

-- Kinds of models, and how many devices share the experts of a stage (false: no shard directive).
M.models = {}
for _, kind in ipairs(exact.kinds) do M.models[#M.models + 1] = { kind } end
for _, kind in ipairs { "experts", "experts_all", "experts_idle" } do
  for _, group in ipairs { false, 1, 2, 4 } do M.models[#M.models + 1] = { kind, group } end
end

-- Ranks, and microbatches: one, two, fewer than ranks, twice as many, an odd number of more.
M.sizes = {}
for ranks = 1, 4 do
  local has = {}
  for _, n in ipairs { 1, 2, ranks - 1, 2 * ranks, ranks + 1 + ranks % 2 } do
    if n > 0 and not has[n] then M.sizes[#M.sizes + 1] = { ranks, n } end
    has[n] = true
  end
end

-- ---- one cell -------------------------------------------------------------------------------------

local ADAMW = piper.adamw { lr = 0.01, weight_decay = 0.1 }
local MOMENTUM = piper.sgd { lr = 1, momentum = 0.5 }
local exact_data = exact.data()
local expert_datas = {}
for kind in pairs(EXPERTS) do expert_datas[kind] = expert_data(kind) end

local function sorted_names(model)
  local names = {}
  for _, p in ipairs(model:params()) do names[#names + 1] = p.name end
  table.sort(names)
  return names
end

-- Three steps with experts: each step's losses, dropped choices, norm and gradients, and the last parameters.
local STEPS = 3
local function record(plan)
  local run <close> = piper.train(plan, { data = expert_datas[plan.model.name], seed = 5 })
  local names = sorted_names(plan.model)
  local out = { names = names, steps = {}, params = {} }
  for step, m in run:steps(STEPS) do
    local grads = {}
    for i, name in ipairs(names) do grads[i] = run:gradients(name) end
    out.steps[step] = { losses = m.losses, dropped = m.dropped, norm = m.grad_norm, grads = grads }
  end
  for i, name in ipairs(names) do out.params[i] = run:params(name) end
  run:check_replicas()
  return out, run:memory()
end

local LIMIT = 1e-9 -- design 5.8

-- The first of 'names' whose values differ by more than the limit, relative to the largest entry of its
-- own and never less than 1e-3 of the largest of all.
local function far_off(names, got, want)
  local largest, all = {}, 0
  for i, list in ipairs(want) do
    largest[i] = 0
    for _, v in ipairs(list) do largest[i] = math.max(largest[i], math.abs(v)) end
    all = math.max(all, largest[i])
  end
  for i, list in ipairs(want) do
    local most = LIMIT * math.max(largest[i], 1e-3 * all)
    for k, v in ipairs(list) do
      if not (math.abs(got[i][k] - v) <= most) then
        return ("%s[%d] is %.17g instead of %.17g"):format(names[i], k, got[i][k], v)
      end
    end
  end
end

local function close(a, b) return math.abs(a - b) <= LIMIT * math.abs(b) end

local function record_difference(got, want)
  for step, w in ipairs(want.steps) do
    local g, where = got.steps[step], ("step %d: "):format(step)
    for l, loss in ipairs(w.losses) do
      if not close(g.losses[l], loss) then return where .. ("loss %.17g instead of %.17g"):format(g.losses[l], loss) end
    end
    if g.dropped ~= w.dropped then return where .. ("%d dropped choices instead of %d"):format(g.dropped, w.dropped) end
    if not close(g.norm, w.norm) then return where .. ("norm %.17g instead of %.17g"):format(g.norm, w.norm) end
    local off = far_off(want.names, g.grads, w.grads)
    if off then return where .. "gradient of " .. off end
  end
  local off = far_off(want.names, got.params, want.params)
  return off and "parameter " .. off
end

local function compile(model, strategy, batch, verify)
  local experts = EXPERTS[model.name]
  return piper.compile(model, strategy, {
    batch = batch, dtype = "f64", optimizer = experts and ADAMW or MOMENTUM, clip_norm = experts and 0.5 or nil, verify = verify,
  })
end

-- What one device makes of it, kept; how often choices of experts were dropped, and an expert had no token.
local references = {}
M.dropped, M.idle = 0, 0
local function count_experts(ref)
  for _, step in ipairs(ref.steps) do
    M.dropped = M.dropped + step.dropped
    for i, name in ipairs(ref.names) do
      local any = not name:find "%.experts%."
      for _, v in ipairs(step.grads[i]) do any = any or v ~= 0 end
      if not any then M.idle = M.idle + 1 end
    end
  end
end

local function reference(model, stages, batch)
  local key = ("%s %d %d"):format(model.name, stages, batch)
  if not references[key] then
    local plan = compile(model, piper.strategy(), batch)
    if EXPERTS[model.name] then
      references[key] = record(plan)
      count_experts(references[key])
    else
      references[key] = exact.trace(plan, exact_data)
    end
  end
  return references[key]
end

-- The bytes of 'run' are those of 'plan', for every rank and category.
local function memory_difference(got, want)
  for rank, mine in pairs(want) do
    for what, bytes in pairs(mine) do
      if not got[rank] or got[rank][what] ~= bytes then
        return ("rank %d: %s bytes of %s, planned %s"):format(rank, got[rank] and got[rank][what], what, bytes)
      end
    end
  end
end

-- Actions without the recomputed ones, which no table has.
local function without_again(text)
  text = text:gsub("%d+R%d+", ""):gsub("%(%+", "("):gsub("%+%)", ")"):gsub("%+%+", "+")
  text = text:gsub("%((%d+%a%d+)%)", "%1"):gsub("%(%)", "")
  return (text:gsub("[ ]+", " "):gsub(" \n", "\n"):gsub("\n ", "\n"):gsub("^ ", ""):gsub(" $", ""))
end

-- The reference tables by schedule and size.
local table_text
local function table_of(cell)
  if not table_text then
    table_text = {}
    for _, row in ipairs(tables.all()) do
      local name = tables.builders[row.schedule]
      if name and row.stages <= 2 * row.ranks then
        table_text[("%s %d %d %d"):format(name, row.ranks, row.microbatches, row.stages)] = row.text
      end
    end
  end
  return table_text[("%s %d %d %d"):format(cell.schedule, cell.size[1], cell.size[2],
    cell.size[1] * composed.schedules[cell.schedule].stages)]
end

---@class Cell
---@field schedule string
---@field size integer[]    ranks and microbatches
---@field model table       of M.models
---@field zero table        of M.zero
---@field replicas integer  of the stage, or of the group that shares its experts
---@field again string      of M.again
---@field bucket number|false
---@field across boolean

function M.describe(c)
  return ("%s, %d ranks, %d microbatches, %d replicas, %s, %s%s, %s, %s%s"):format(c.schedule, c.size[1], c.size[2],
    c.replicas, c.zero[1], c.model[1], c.model[2] and (" over " .. c.model[2]) or "", c.again,
    c.bucket and ("buckets of %.0f bytes"):format(c.bucket * (1 << 20)) or "large buckets", c.across and ", devices across" or "")
end

-- The plan of a cell and what to compare it with; or nil and the builder's refusal.
local function build(c)
  local kind, group = c.model[1], c.model[2]
  local devices = c.replicas * (group or 1)
  local fine, list = pcall(composed.list, c.schedule, c.size[1], c.size[2], devices, c.across)
  if not fine then return nil, (tostring(list):gsub("^[^:]*:%d+: ", "")) end
  local stages = c.size[1] * composed.schedules[c.schedule].stages
  local flags
  if devices > 1 or c.zero[1] ~= "none" then
    flags = { bucket_size = c.bucket or nil }
    for k, v in pairs(c.zero[2]) do flags[k] = v end
  end
  local some = EXPERTS[kind] and { EP = "*" } or { PP = stages > 1 and { 0, stages - 1 } or 0 }
  local strategy = composed.strategy {
    list = list, replicate = flags, group = group,
    recompute = c.again == "recompute" and {} or c.again == "recompute some" and some or nil,
  }
  -- a multiple of all numbers of devices with which the reference is to be shared
  local batch = c.size[2] * (EXPERTS[kind] and math.max(2, devices) or 4)
  local model = model_of(kind, stages)
  return { plan = compile(model, strategy, batch, true), list = list, model = model, stages = stages, batch = batch, devices = devices }
end

-- nil where all holds; else what does not.
local function examine(c, b)
  b.plan:verify()
  local actions = without_again(b.plan:actions())
  local ordered = table_of(c) or piper.schedules.text(b.list) -- a line a rank; the plan has one a device
  local lines, wanted = {}, {}
  for line in ordered:gmatch "[^\n]+" do lines[#lines + 1] = line end
  for r, set in ipairs(composed.sets(c.size[1], b.devices, c.across)) do
    for _, device in ipairs(set) do wanted[device + 1] = lines[r] end
  end
  wanted = table.concat(wanted, "\n")
  if actions ~= wanted then return ("actions\n%s\ninstead of\n%s"):format(actions, wanted) end
  local want = reference(b.model, b.stages, b.batch)
  local got, memory, difference
  if EXPERTS[c.model[1]] then
    got, memory = record(b.plan)
    difference = record_difference(got, want)
  else
    got, memory = exact.trace(b.plan, exact_data)
    difference = got ~= want and exact.difference(got, want)
  end
  return difference or memory_difference(memory, b.plan:memory())
end

local WANT_REFUSED = { dualpipe = 'dualpipe: field "ranks" is %d: .*; the smallest above is %d' }

-- Counts of what was done, for 'report'.
M.ran, M.failed, M.refusals = 0, 0, {}

-- Runs a cell; a point of its own only where something is wrong.
function M.run(c)
  local fine, b, why = pcall(build, c)
  if fine and not b then
    local pattern = WANT_REFUSED[c.schedule]
    M.refusals[why] = (M.refusals[why] or 0) + 1
    if not pattern or c.size[1] % 2 == 0 or not why:find(pattern:format(c.size[1], c.size[1] + 1)) then
      M.failed = M.failed + 1
      tap.ok(false, M.describe(c) .. ": refused")
      tap.diag(why)
    end
    return
  end
  local what = not fine and b or nil
  if fine then fine, what = pcall(examine, c, b) end
  M.ran = M.ran + 1
  if not fine or what then
    M.failed = M.failed + 1
    if M.failed <= 50 then
      tap.ok(false, M.describe(c))
      tap.diag(what)
    end
  end
end

-- ---- which cells ----------------------------------------------------------------------------------

-- All combinations of some of 'n' axes, of 'strength' axes each, as lists of indices.
local function combinations(n, strength)
  local list = {}
  local function extend(chosen, from)
    if #chosen == strength then
      list[#list + 1] = table.move(chosen, 1, strength, 1, {})
      return
    end
    for axis = from, n do
      chosen[#chosen + 1] = axis
      extend(chosen, axis + 1)
      chosen[#chosen] = nil
    end
  end
  extend({}, 1)
  return list
end

---Cells in which any values of any 'strength' axes meet: greedily, beginning with what is still missing and
---choosing axis after axis the value that brings most with it, of equal ones in turn.
---@param axes table    name and values of each
---@param strength integer
---@return Cell[]
local function cover(axes, strength)
  local sets = combinations(#axes, strength)
  local function key(set, at) -- what a cell, as indices of values, has in these axes
    local k = 0
    for _, axis in ipairs(set) do k = k * 64 + at[axis] end
    return k
  end
  local covered, cells = {}, {}
  for i = 1, #sets do covered[i] = {} end
  -- A cell that has these values already, the others to be chosen.
  local function complete(fixed)
    local at = {}
    for axis = 1, #axes do at[axis] = fixed[axis] end
    local open = {}
    for axis = 1, #axes do
      if not at[axis] then open[#open + 1] = axis end
    end
    for _, axis in ipairs(open) do
      local best, most = nil, -1
      for turn = 0, #axes[axis][2] - 1 do
        at[axis] = (#cells + turn) % #axes[axis][2] + 1
        local gain = 0
        for i, set in ipairs(sets) do
          local whole, has = true, false
          for _, other in ipairs(set) do
            whole, has = whole and at[other] ~= nil, has or other == axis
          end
          if whole and has and not covered[i][key(set, at)] then gain = gain + 1 end
        end
        if gain > most then best, most = at[axis], gain end
      end
      at[axis] = best
    end
    for i, set in ipairs(sets) do covered[i][key(set, at)] = true end
    local cell = {}
    for axis, a in ipairs(axes) do cell[a[1]] = a[2][at[axis]] end
    cells[#cells + 1] = cell
  end
  for i, set in ipairs(sets) do
    local at = {}
    local function visit(depth)
      if depth > strength then
        if not covered[i][key(set, at)] then complete(at) end
        return
      end
      for v = 1, #axes[set[depth]][2] do
        at[set[depth]] = v
        visit(depth + 1)
      end
      at[set[depth]] = nil
    end
    visit(1)
  end
  return cells
end

local function report(what)
  local reasons = {}
  for why in pairs(M.refusals) do reasons[#reasons + 1] = why end
  table.sort(reasons)
  for _, why in ipairs(reasons) do tap.diag(("%d cells refused: %s"):format(M.refusals[why], why)) end
  tap.ok(M.dropped > 0 and M.idle > 0, ("%s: experts dropped choices %d times, had nothing to do %d times"):format(what,
    M.dropped, M.idle))
  tap.is(M.failed, 0, ("%s: %d plans are equal to one device"):format(what, M.ran))
  tap.done()
end

local function chosen(...)
  local list = {}
  for _, pattern in ipairs { ... } do
    for _, model in ipairs(M.models) do
      if (model[2] and ("%s/%d"):format(model[1], model[2]) or model[1]):find("^" .. pattern .. "$") then
        list[#list + 1] = model
      end
    end
  end
  return list
end

local function axes(o)
  return {
    { "schedule", o.schedules }, { "size", o.sizes }, { "model", o.models or M.models }, { "zero", M.zero },
    { "replicas", { 1, 2 } }, { "again", o.again or M.again }, { "bucket", o.buckets or M.buckets }, { "across", o.across or M.across },
  }
end

-- Searches of three kinds for four ranks would take as long as all the rest: one for each number of ranks.
local function run_few(cells)
  local placed = { "automatic_loop", "automatic_v", "automatic", "automatic" }
  for _, cell in ipairs(cells) do
    if cell.schedule == "automatic" then cell.schedule = placed[cell.size[1]] end
    M.run(cell)
  end
end

local names = {}
for _, name in ipairs(composed.names) do
  if not name:find "automatic_" then names[#names + 1] = name end
end

-- Some seconds: any two values of two axes.
function M.pairs()
  local sizes = {}
  for _, size in ipairs(M.sizes) do
    if size[1] % 2 == 0 or size[2] % 2 == 1 then sizes[#sizes + 1] = size end
  end
  run_few(cover(axes { schedules = names, sizes = sizes }, 2))
  report "any two values"
end

-- Some seconds: any schedule, level of ZeRO and kind of model, with two ranks and three microbatches.
function M.triples()
  run_few(cover(axes { schedules = names, sizes = { { 2, 3 } }, models = chosen("tied", "experts", "experts/2", "experts_idle/2") }, 3))
  report "any schedule, level of ZeRO and model"
end

-- A minute or two: of one schedule all with 2 and 4 ranks, and any values of three more axes that lie beyond.
function M.all(schedule)
  local only, sizes = { schedule }, {}
  for _, size in ipairs(M.sizes) do
    if size[1] % 2 == 0 then sizes[#sizes + 1] = size end
  end
  local whole = axes { schedules = only, sizes = sizes, models = chosen("plain", "tied", "skip", "uneven", "experts/[124]"),
    again = { "keep", "recompute" }, buckets = { false }, across = { false } }
  for _, cells in ipairs { cover(whole, #whole), cover(axes { schedules = only, sizes = M.sizes }, 3) } do
    for _, cell in ipairs(cells) do M.run(cell) end
  end
  report(schedule)
end

return M
