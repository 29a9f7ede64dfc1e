-- compile - from a model and a strategy to a plan.
local check = require "piper.check"
local core = require "piper.core"
local show = require "piper.show"
local user_passes = require "piper.pass"

---@class piper.Plan
---@field core userdata
---@field model piper.Model
---@field strategy piper.Strategy
---@field options piper.CompileOptions
---@field passes table[]  those of piper.pass that it was compiled with
local Plan = {}
Plan.__index = Plan

---@class piper.OverlapRow
---@field kind string      "all_to_all", "transfer", ...
---@field stream string
---@field calls integer    instructions, of all ranks; a transfer has two
---@field seconds number   of communication, summed over the ranks
---@field hidden number    seconds of these in which the same rank computes

---@class piper.Exposed
---@field rank integer
---@field op string        "all_to_all moe to experts 0F1 0-1 (train.lua:12)"
---@field kind string
---@field stream string
---@field seconds number
---@field exposed number   seconds of these in which the rank computes nothing
---@field late number      seconds between its data being there and its begin
---@field cause string     "data", "order", "stream", "memory", "rank", "list", "end"
---@field waiting string?  the compute that comes after the gap
---@field blocker string?  what held up the operation, or that compute, or the compute that was ready
---@field line string?     of the temporal edge (order), or of what shares the stream (stream)
---@field why string       all of it in words

---@class piper.Overlap
---@field [integer] piper.OverlapRow
---@field exposed piper.Exposed[]

---@class piper.CompileOptions
---@field batch integer            samples a step
---@field dtype? "f32"|"f64"       default "f32"
---@field optimizer? piper.Optimizer  default piper.sgd { lr = 0.01 }
---@field clip_norm? number        clip the global gradient norm to this (default: none)
---@field device? "cpu"
---@field threads_per_rank? integer  that a rank computes with, at most 1024 (default: the cores divided by
---the ranks, at least 1); results have the same bits whatever it is
---@field order_rule? "critical_path"|"downstream"  default: the one that simulates faster
---@field memory_limit? integer    bytes a rank (default: the memory available divided by the ranks)
---@field verify? boolean          check every invariant after every pass (default: what the
---environment variable PIPER_VERIFY says)

local DECLARED = {
  batch = "integer>=1", dtype = "string?", optimizer = "table?", clip_norm = "number>0?", device = "string?",
  threads_per_rank = "integer>=1?", order_rule = "string?", memory_limit = "integer>=1?", verify = "boolean?",
}

-- PIPER_STREAMS=1: all streams of a rank collapse into one queue.
local function single_stream()
  local streams = os.getenv "PIPER_STREAMS"
  if streams == nil or streams == "" then return false end
  if streams ~= "1" then check.fail("compile: PIPER_STREAMS is %s: it is 1 or not set", check.show(streams)) end
  return true
end

-- PIPER_VERIFY=1: every invariant is checked after every pass.
local function verifies()
  local verify = os.getenv "PIPER_VERIFY"
  if verify == nil or verify == "0" or verify == "" then return false end
  if verify ~= "1" then check.fail("compile: PIPER_VERIFY is %s: it is 0, 1 or not set", check.show(verify)) end
  return true
end

-- The core's plan for the checked options; 'passes' of the user's, as user_passes.list gives them (nil: none).
local function build(model, strategy, options, passes)
  user_passes.refuse_inside "compile"
  local plan, dump = core.plan.compile(model.graph, strategy.directives, {
    batch = options.batch, dtype = options.dtype, optimizer = options.optimizer, clip_norm = options.clip_norm or nil,
    threads_per_rank = options.threads_per_rank, order_rule = options.order_rule,
    memory_limit = options.memory_limit, single_stream = single_stream(),
    verify = options.verify, dump_after = options.dump_after, dump_form = options.dump_form, dump_filter = options.dump_filter, trains = options.trains,
    passes = passes,
  })
  return plan, dump
end

-- The core's plan of the forward passes alone, with the parameters of 'plan', proved.
local function evaluation(plan)
  local forward = build(plan.model, plan.strategy,
    setmetatable({ trains = plan.core, optimizer = false, clip_norm = false }, { __index = plan.options }), plan.passes)
  forward:verify()
  return forward
end

-- A plan that does not fit into this machine is refused before it runs.
local function refuse_above_available(plan)
  local available = require "piper.available"()
  if not available then return end
  local ranks, memory = plan:info().ranks, plan:memory()
  local total, worst = 0, ranks[1]
  for _, rank in ipairs(ranks) do
    total = total + memory[rank].peak
    if memory[rank].peak > memory[worst].peak then worst = rank end
  end
  if total <= available then return end
  local parts = {}
  for _, part in ipairs { "params", "grads", "optimizer", "activations", "comm", "workspace" } do
    parts[#parts + 1] = ("%s %s"):format(part, core.bytes(memory[worst][part]))
  end
  check.fail("compile: the plan needs %s on %d ranks of this machine and %s are available; rank %d needs most, %s: %s", core.bytes(total),
    #ranks, core.bytes(available), worst, core.bytes(memory[worst].peak), table.concat(parts, ", "))
end

-- Everything about the options that can be said without the model.
local function checked(options)
  check.options("compile", options, DECLARED)
  local copy = {}
  for k, v in pairs(options) do copy[k] = v end
  copy.dtype = check.choice("compile", 'field "dtype"', options.dtype or "f32", { "f32", "f64" })
  copy.device = check.choice("compile", 'field "device"', options.device or "cpu", { "cpu" })
  if options.order_rule then
    check.choice("compile", 'field "order_rule"', options.order_rule, { "critical_path", "downstream" })
  end
  local optim = require "piper.optim"
  copy.optimizer = options.optimizer and optim.copy("compile", options.optimizer) or optim.sgd { lr = 0.01 }
  if copy.verify == nil then copy.verify = verifies() end
  return copy
end

---Compiles a model under a strategy. Every error names the line of the directive it is about.
---@param model piper.Model
---@param strategy piper.Strategy
---@param options piper.CompileOptions
---@return piper.Plan
local function compile(model, strategy, options)
  if type(model) ~= "table" or not check.is_core(rawget(model, "graph"), "piper.Graph") then
    check.fail("compile: argument 1 is %s, not a model of piper.model", check.show(model))
  end
  if getmetatable(strategy) ~= require "piper.strategy".Strategy then
    local list = type(strategy) == "table" and (strategy.op ~= nil or type(strategy[1]) == "table" and strategy[1].op ~= nil)
    check.fail("compile: argument 2 is %s, not a strategy%s", list and "a plain table of directives" or check.show(strategy),
      list and ": piper.strategy():add(list) makes one" or " of piper.strategy()")
  end
  local all = checked(options)
  local passes = user_passes.list()
  local plan = build(model, strategy, all, passes)
  if not all.memory_limit then refuse_above_available(plan) end
  -- What is compiled again later (check_equivalence, dump) is this strategy with these passes, whatever is added.
  return setmetatable({ core = plan, model = model, strategy = strategy:copy(), options = all, passes = passes }, Plan)
end

-- The DAG after a pass, in one of the core's forms.
local function dump(plan, pass, form, filter)
  local options = setmetatable({ dump_after = pass, dump_form = form, dump_filter = filter }, { __index = plan.options })
  local _, text = build(plan.model, plan.strategy, options, plan.passes)
  return text
end

---The DAG's text form after the named pass ("build", "split", ..., see doc, or one of piper.pass).
---@param pass string
---@return string
function Plan:dump(pass)
  check.value("dump", "argument 1", pass, "string")
  return dump(self, pass, "text")
end

---The DAG in words: a node a line, with its devices, its stream, and after "<-" the nodes that it waits
---for ("~": only by order).
---@param pass? string  as it is after that pass, in a topological order (default: as it is in the end,
---in the order in which it runs)
---@return string
function Plan:dag(pass)
  if pass == nil then return self.core:list() end
  check.value("dag", "argument 1", pass, "string")
  return dump(self, pass, "list")
end

---Why nodes are as they are: which directives made them, where and when they run, what they wait for and
---why, and what waits for them. Of several devices, instructions are those of the first.
---@param filter string|piper.Filter  "PP=1 MB=3 PASS=B", or { PP = 1, MB = 3, PASS = "B" }; or an action as
---outputs name it, "1B3" (of all chunks of the stage; "1B3/2" of one), its microbatch counted through all splits
---@return string
function Plan:explain(filter)
  local strategy = require "piper.strategy"
  local action = type(filter) == "string" and filter:match "^%s*([%d-]+[FBIWR]%d+/?%d*)%s*$"
  local found = action and self.core:explain(self.strategy.directives, action)
  if found then return found end
  local terms = type(filter) == "string" and strategy.parse_filter("explain", filter) or strategy.filter("explain", filter)
  return self.core:explain(self.strategy.directives, terms)
end

---Writes a picture of the DAG in Graphviz's language: dot -Tsvg -O path
---@param path string
---@param what? string|{ pass?: string, filter?: string|piper.Filter }  pass: as it is after that pass (default: in
---the end); filter: of the computing nodes those that match (default: all), with what is beside them, as for explain
function Plan:dot(path, what)
  check.value("dot", "argument 1", path, "string")
  local pass, filter = what, nil
  if type(what) == "table" then
    check.options("dot", what, { pass = "string?", filter = "string|table?" })
    pass, filter = what.pass, what.filter
    local strategy = require "piper.strategy"
    if filter then filter = type(filter) == "string" and strategy.parse_filter("dot", filter) or strategy.filter("dot", filter) end
  elseif what ~= nil then
    check.value("dot", "argument 2", what, "string")
  end
  local text = pass and dump(self, pass, "dot", filter) or self.core:dot(filter)
  local file, why = io.open(path, "w")
  if not file then check.fail("dot: %s", why) end
  local written
  written, why = file:write(text)
  local closed, why_closed = file:close()
  if not (written and closed) then check.fail("dot: %s: %s", path, why or why_closed) end
  return self
end

---One line a rank: its actions in order, <stage><pass><microbatch>. Of more than 32 ranks those with the same
---line share it, their numbers in front ("0-255: 0F0 0F1").
---@return string
function Plan:actions() return self.core:actions() end

---Bytes for each rank, by category, at the instant of the rank's peak.
---@return table<integer, { params: integer, grads: integer, optimizer: integer, activations: integer, comm: integer, workspace: integer, peak: integer }>
function Plan:memory() return show.memory(self.core:memory()) end

local held_of = show.by_rank "held"

---For each rank the most pairs of stage and microbatch whose activations it holds at once: the "peak" of
---schedules.metrics, counted on the plan's instructions. With recompute: from R on.
---@return table<integer, integer>
function Plan:held() return held_of(self.core:held()) end

local proof_of = show.form(function(p)
  return ("proved: no deadlock, no race, no early reuse: %s, %s, %s; %s to the same bytes, of which one writes, %s"):format(
    show.count(p.instructions, "instruction"), show.count(p.transfers, "transfer"),
    show.count(p.collectives, "collective"), show.count(p.conflicts, "pair") .. " of accesses",
    p.conflicts == 1 and "is in order" or "are in order")
end)

---Proves from the finished plan alone that it has no deadlock, no race and no early reuse.
---@return { instructions: integer, transfers: integer, collectives: integer, conflicts: integer }
function Plan:verify()
  local available, need = require "piper.available"(), self.core:verify_bytes()
  if available and need > available then
    check.fail("verify: the proof needs about %d MiB for the lists of %d ranks and %d MiB are available; "
      .. "prove the same strategy with fewer replicas", need >> 20, #self.core:info().ranks, available >> 20)
  end
  return proof_of(self.core:verify())
end

local communication_of = show.form(function(rows)
  if #rows == 0 then return "no communication" end
  local cells = {}
  for i, r in ipairs(rows) do
    cells[i] = { r.kind, r.what, r.stream, r.kind == "transfer" and table.concat(r.devices, ">") or show.ranges(r.devices), r.calls,
      core.bytes(r.bytes), r.bucket or "-" }
  end
  return show.columns({ "kind", "what", "stream", "devices", "calls", "bytes", "bucket" }, cells)
end)
local communication_row = show.form(show.fields { "kind", "what", "stream", "devices", "calls", "bytes", "bucket" })

---What a step communicates: a list of { bucket, what, kind, stream, devices, calls, bytes }. A collective
---is one call however many devices make it; bytes are those of all its calls: of what is reduced or
---gathered, or sent. 'bucket' is named by its first parameter; nil where it is no bucket's. 'devices' of a
---transfer are its source and its destination.
---@return { bucket: string?, what: string, kind: string, stream: string, devices: integer[], calls: integer, bytes: integer }[]
function Plan:communication()
  local rows = self.core:communication()
  for _, row in ipairs(rows) do
    show.list(row.devices)
    communication_row(row)
  end
  return communication_of(rows)
end

-- The text in lines of at most 118 columns where words allow, those after the first indented.
local function wrapped(text)
  local lines, line = {}, nil
  for word in text:gmatch "%S+" do
    if line and #line + 1 + #word > 118 then
      lines[#lines + 1] = line
      line = "    " .. word
    else
      line = line and line .. " " .. word or word
    end
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

-- Exposed operations that differ only in the microbatch are one, the worst of them (they are sorted), with their
-- count: { worst, count }; at most 'most'.
local function merged(exposed, most)
  local list, at = {}, {}
  for _, x in ipairs(exposed) do
    local key = ("%d %s %s"):format(x.rank, x.cause, x.op:gsub("(%f[%w]%d+[FBIWR])%d+", "%1", 1))
    if at[key] then
      at[key][2] = at[key][2] + 1
    elseif #list < most then
      at[key] = { x, 1 }
      list[#list + 1] = at[key]
    end
  end
  return list
end

-- The text form of what overlap() returns.
local overlap_of = show.form(function(overlap)
  local lines = {}
  for _, r in ipairs(overlap) do
    lines[#lines + 1] = ("%-16s%-16s%5d calls%12.3f ms%6.1f%% hidden"):format(r.kind, r.stream, r.calls, r.seconds * 1e3,
      r.seconds > 0 and 100 * r.hidden / r.seconds or 100)
  end
  for _, m in ipairs(merged(overlap.exposed, 8)) do
    local x, others = m[1], m[2] > 1 and (" (the worst of %d microbatches)"):format(m[2]) or ""
    lines[#lines + 1] = wrapped(("rank %d: %s is exposed for %.1f of %.1f us%s: %s"):format(x.rank, x.op, x.exposed * 1e6,
      x.seconds * 1e6, others, x.why))
  end
  return table.concat(lines, "\n")
end)
local overlap_row = show.form(show.fields { "kind", "stream", "calls", "seconds", "hidden" })
local exposed_row = show.form(show.fields { "rank", "op", "seconds", "exposed", "cause", "why" })

---What of the communication hides behind compute, in virtual time (see doc/guide.md): a list of { kind,
---stream, calls, seconds, hidden }, over all ranks that take part. 'exposed' lists the operations of which
---most is not hidden, each on its worst rank, with what kept it from that: 'cause' is one of "data", "order",
---"stream", "memory", "rank", "list", "end", 'why' says it in words. Can be printed.
---@return piper.Overlap
function Plan:overlap()
  local overlap = self.core:overlap()
  for _, row in ipairs(overlap) do overlap_row(row) end
  for _, row in ipairs(overlap.exposed) do exposed_row(row) end
  return overlap_of(overlap)
end

---A hash of everything that has to be equal on all ranks.
---@return string hex
function Plan:digest() return self.core:digest() end

---@param spec? { steps?: integer, seed?: integer, dtype?: "f32"|"f64", data?: piper.Data, check?: boolean }
---@return { loss: number, grad: number, param: number, worst: string? }
function Plan:check_equivalence(spec) return require "piper.equivalence"(self, spec or {}) end

function Plan:__tostring() return self.core:table() end

check.seal(Plan, "plan")

return setmetatable({ Plan = Plan, build = build, evaluation = evaluation }, { __call = function(_, ...) return (compile(...)) end })
