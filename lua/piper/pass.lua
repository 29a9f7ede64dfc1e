-- pass - passes of one's own among the built-in ones (doc/passes.md).
--
-- A registered pass is a function of a dag, the object that holds the primitives. It works on the DAG that
-- the compiler is at just then, and on its nodes, while the function runs, and no longer.
local check = require "piper.check"
local core = require "piper.core"
local show = require "piper.show"
local strategy = require "piper.strategy"

local M = {}

-- ---- nodes ----------------------------------------------------------------------------------------

---A node of the DAG. Fields are read from the DAG as it is at that moment; those that a node of its kind
---does not have are nil. 'stream' of a transfer or a collective can be set, everything else by the
---dag's methods.
---@class piper.Node
---@field id integer           from 1, in order of creation
---@field kind "compute"|"transfer"|"all_reduce"|"reduce_scatter"|"all_gather"|"all_to_all"|"count"|"norm"|"update"|"join"
---@field pass? "F"|"B"|"BI"|"BW"|"R"  of a compute node, and of communication that serves one
---@field chunk? integer       of the model, from 1: likewise
---@field microbatch? integer  counted through all nested splits, from 0
---@field bucket? integer      of norms, updates and collectives of a bucket; dag:bucket tells more
---@field tensor? string       what a transfer or a collective moves, as in plan:dump: "v7", "grad(v7,2)"
---@field devices integer[]    those it runs on, by position; of a transfer those that receive; empty before "place"
---@field src_devices? integer[]  of a transfer: those that send
---@field lo? integer          samples [lo, hi) of the batch
---@field hi? integer
---@field stream? string
---@field tags table<string, integer>  a copy: scopes of the model, indices of splits, tags of dag:tag
---@field line? string         "train.lua:12": what it comes from
---@field label string         as in messages: "2F3", "all_reduce layers.0.weight.. 0-1"
---@field order? integer       stands in an order, counted from 1; as do its group in it, and its member of the group (from 0)
---@field group? integer
---@field member? integer
---@field parts? integer       of experts that are spread: devices of a group
---@field recompute boolean    of a chunk that is recomputed
local Node = { __name = "piper.Node" }

local FIELDS = { "bucket", "chunk", "devices", "group", "hi", "id", "kind", "label", "line", "lo", "member", "microbatch",
  "order", "parts", "pass", "recompute", "src_devices", "stream", "tags", "tensor" }
local IS_FIELD = {}
for _, name in ipairs(FIELDS) do IS_FIELD[name] = true end

-- Keys that no script can write.
local DAG, ID = {}, {}

-- One that a dag has made: a script can give a table of its own the metatable of a node.
local function is_node(v)
  if type(v) ~= "table" or getmetatable(v) ~= Node then return false end
  local dag = rawget(v, DAG)
  return type(dag) == "table" and rawget(dag, "known") and rawget(dag.known, rawget(v, ID)) == v
end

local function core_of(node)
  if not is_node(node) then check.fail "pass: this table has the metatable of a node, but no dag has made it" end
  return rawget(node, DAG).core
end

function Node:__index(name)
  if name == "id" and is_node(self) then return rawget(self, ID) end
  if IS_FIELD[name] then
    local value = core_of(self):field(rawget(self, ID), name)
    if name == "devices" or name == "src_devices" then return value and show.list(value) end
    return value
  end
  check.fail("pass: a node has no field %s%s", check.show(name), check.suggestion(name, FIELDS, "fields"))
end

local function stream_name(where, name)
  check.value(where, "the name", name, "string")
  return strategy.KINDS.name.copy(where, name, "the name")
end

function Node:__newindex(name, value)
  if name == "stream" then
    core_of(self):stream(rawget(self, ID), stream_name("stream", value))
  elseif IS_FIELD[name] then
    local instead = (name == "order" or name == "group" or name == "member") and "; dag:position sets it"
      or name == "tags" and "; dag:tag sets them" or ""
    check.fail("pass: the field %s of a node cannot be set%s", name, instead)
  else
    check.fail("pass: a node has no field %s%s", check.show(name), check.suggestion(name, { "stream" }, "what can be set"))
  end
end

function Node:__tostring()
  if not is_node(self) then return "a table with the metatable of a node" end
  return core_of(self):field(rawget(self, ID), "label")
end

-- ---- the dag --------------------------------------------------------------------------------------

---The DAG of the plan that is being compiled.
---@class piper.Dag
---@field pass string           the name of the pass
---@field after string          the built-in pass behind which it runs
---@field batch integer         samples a step
---@field forward_only boolean  this is the plan of run:evaluate: it has no backward passes, reductions and updates
local Dag = {}
Dag.__index = Dag

---@alias piper.NodeOrId piper.Node|integer

---@class piper.Edge
---@field from piper.Node
---@field to piper.Node
---@field kind "data"|"temporal"
---@field tensor? string  what flows, as in plan:dump
---@field line? string    of a temporal edge: what asked for it

local Edge = { __name = "piper.Edge" }

local function node_of(dag, id)
  local node = dag.known[id]
  if not node then
    node = setmetatable({ [DAG] = dag, [ID] = id }, Node)
    dag.known[id] = node
  end
  return node
end

local function nodes_of(dag, ids)
  for i, id in ipairs(ids) do ids[i] = node_of(dag, id) end
  return ids
end

-- The id of a node of this DAG; 'what' as in check.value.
local function id_of(dag, where, what, v)
  if is_node(v) then
    if rawget(v, DAG) == dag then return rawget(v, ID) end
    if type(what) == "function" then what = what() end
    check.fail("%s: %s is a node of another DAG, whose pass has ended", where, what)
  end
  local id = math.type(v) == "integer" and v
  local n = dag.core:about().nodes
  if id and id >= 1 and id <= n then return id end
  if type(what) == "function" then what = what() end
  if type(v) == "number" then check.fail("%s: %s is %s: ids of nodes run from 1 to %d", where, what, check.show(v), n) end
  check.fail("%s: %s is %s, not a node (or its id)", where, what, check.show(v))
end

-- The ids of a node or of a list of them.
local function ids_of(dag, where, what, v)
  if type(v) ~= "table" or is_node(v) then return { id_of(dag, where, what, v) } end
  check.value(where, what, v, "list")
  local ids = {}
  for i, node in ipairs(v) do
    ids[i] = id_of(dag, where, function() return ("element %d of %s"):format(i, what) end, node)
  end
  return ids
end

local KINDS = { "compute", "transfer", "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "count", "norm", "update",
  "join", "*" }

---The nodes that a filter matches, in order of their ids: compute nodes, as for directives, or those of
---'kind' ("*": of any). Matching none is no error here: the pass runs for every plan.
---@param filter piper.Filter
---@param kind? string
---@return piper.Node[]
function Dag:nodes(filter, kind)
  local copy = strategy.KINDS.filter.copy("nodes", filter)
  kind = kind == nil and "compute" or check.choice("nodes", "argument 2 (kind)", kind, KINDS)
  return nodes_of(self, self.core:nodes(copy, kind))
end

---@param id integer
---@return piper.Node
function Dag:node(id) return node_of(self, id_of(self, "node", "argument 1", id)) end

local function edges(self, where, node, out)
  local list = self.core:edges(id_of(self, where, "argument 1", node), out)
  for i, e in ipairs(list) do
    list[i] = setmetatable({ [ID] = e.id, [DAG] = self, from = node_of(self, e.from), to = node_of(self, e.to),
      kind = e.kind, tensor = e.tensor, line = e.line }, Edge)
  end
  return list
end

---The edges that enter a node, in order of their making.
---@param node piper.NodeOrId
---@return piper.Edge[]
function Dag:edges_in(node) return edges(self, "edges_in", node, false) end

---@param node piper.NodeOrId
---@return piper.Edge[]
function Dag:edges_out(node) return edges(self, "edges_out", node, true) end

---Does b wait for a, through data or by order?
---@param a piper.NodeOrId
---@param b piper.NodeOrId
---@return boolean
function Dag:reaches(a, b)
  local from = id_of(self, "reaches", "argument 1", a)
  return self.core:reaches(from, id_of(self, "reaches", "argument 2", b))
end

---A temporal edge: on each device that both are on, b starts when a has ended. Of lists, every node of
---the one before every node of the other. A cycle is an error at once.
---@param a piper.NodeOrId|piper.NodeOrId[]
---@param b piper.NodeOrId|piper.NodeOrId[]
function Dag:before(a, b)
  local firsts = ids_of(self, "before", "argument 1", a)
  local seconds = ids_of(self, "before", "argument 2", b)
  for _, first in ipairs(firsts) do
    for _, second in ipairs(seconds) do self.core:before(first, second) end
  end
end

---Takes a temporal edge away, whoever made it.
---@param edge piper.Edge
function Dag:remove(edge)
  if getmetatable(edge) ~= Edge then
    check.fail("remove: argument 1 is %s, not an edge of dag:edges_in or dag:edges_out", check.show(edge))
  end
  if rawget(edge, DAG) ~= self then check.fail "remove: this edge is of another DAG, whose pass has ended" end
  self.core:remove(rawget(edge, ID))
end

---Gives nodes a tag of one's own, which filters of this and of later passes can name (those of directives as
---well, where they run later); false takes it away.
---@param nodes piper.NodeOrId|piper.NodeOrId[]
---@param name string a word
---@param index integer|false
function Dag:tag(nodes, name, index)
  local ids = ids_of(self, "tag", "argument 1", nodes)
  check.value("tag", "argument 2 (name)", name, "string")
  if not name:find "^[%a_][%w_]*$" then
    check.fail("tag: the name is %s; it is a word of letters, digits and _", check.show(name))
  end
  if name == "PASS" then check.fail 'tag: "PASS" cannot be a tag: in filters it says which pass' end
  if index ~= false then
    check.value("tag", "argument 3 (index)", index, "integer>=0")
    if index > 0x7fffffff then check.fail("tag: the index is %d, more than %d", index, 0x7fffffff) end
    index = math.tointeger(index)
  end
  for _, id in ipairs(ids) do self.core:tag(id, name, index) end
end

local POSITION = { order = "integer>=1", group = "integer>=1", member = "integer>=0?" }

---Says where compute nodes stand in an order, as the order directive does: plan:actions() shows members of one
---group together, and where nothing is ordered the compiler puts backward passes first. It makes no edge.
---@param nodes piper.NodeOrId|piper.NodeOrId[]
---@param at { order: integer, group: integer, member?: integer }
function Dag:position(nodes, at)
  local ids = ids_of(self, "position", "argument 1", nodes)
  check.options("position", at, POSITION)
  for name, v in pairs(at) do
    if v >= 0x7fffffff then check.fail("position: %s is %d: too large", name, v) end
  end
  for _, id in ipairs(ids) do
    self.core:order(id, math.tointeger(at.order), math.tointeger(at.group), math.tointeger(at.member or 0))
  end
end

---What a bucket is: parameters that are stored, gathered and reduced together.
---@param bucket integer|piper.Node  a node's field 'bucket', or such a node
---@return { id: integer, chunk: integer?, params: string[], elements: integer, devices: integer[], trained: boolean, zero: integer, reduce: "step"|"microbatch" }
function Dag:bucket(bucket)
  local id = bucket
  if is_node(bucket) then
    id = self.core:field(id_of(self, "bucket", "argument 1", bucket), "bucket")
    if not id then check.fail("bucket: %s is of no bucket", tostring(bucket)) end
  end
  if math.type(id) ~= "integer" then
    check.fail("bucket: argument 1 is %s, not the number of a bucket or a node that has one", check.show(bucket))
  end
  local n = self.core:about().buckets
  if id < 1 or id > n then check.fail("bucket: there is no bucket %d: they run from 1 to %d", id, n) end
  return self.core:bucket(id)
end

---Makes several reductions of one. The gradients of a bucket are summed over its devices by one reduction a
---step, or one a microbatch; this one becomes as many as there are groups, each of which sums what the backward
---passes of its group make. Memory: a whole bucket for each that is under way.
---@param reduction piper.NodeOrId  an all_reduce or reduce_scatter of a bucket
---@param groups piper.NodeOrId[][] the backward passes that it gets gradients from, each in one group
---@return piper.Node[] reductions in order of groups; the first is the one that was there
function Dag:split_reduction(reduction, groups)
  local id = id_of(self, "split_reduction", "argument 1", reduction)
  check.value("split_reduction", "argument 2 (groups)", groups, "list")
  local lists = {}
  for i, group in ipairs(groups) do
    if type(group) ~= "table" or is_node(group) then
      check.fail("split_reduction: group %d is %s, not a list of nodes", i, check.show(group))
    end
    lists[i] = ids_of(self, "split_reduction", "group " .. i, group)
  end
  return nodes_of(self, self.core:split_reduction(id, lists))
end

---With shard_params, parameters that one gather brings to several passes come to one of these from a gather of
---its own, so that they need not be kept in between. After "zero".
---@param gather piper.NodeOrId
---@param node piper.NodeOrId  the compute node
---@return piper.Node gather its own
function Dag:gather_again(gather, node)
  local id = id_of(self, "gather_again", "argument 1", gather)
  return node_of(self, self.core:gather_again(id, id_of(self, "gather_again", "argument 2", node)))
end

function Dag:__tostring()
  return ("dag of %d nodes, in pass %q after %q"):format(self.core:about().nodes, self.pass, self.after)
end

check.seal(Dag, "dag")

-- ---- registration ---------------------------------------------------------------------------------

---@class piper.PassHandle
---@field name string
local Handle = {}
Handle.__index = Handle

-- Passes in order of registration: { name, line, after, fn }.
local registered = {}
-- The pass that runs now.
local current

local function position_of(name)
  for i, p in ipairs(registered) do
    if p.name == name then return i end
  end
end

---Plans that are compiled from now on are compiled without it; those that were keep it.
function Handle:remove()
  local i = position_of(self.name)
  if i and registered[i] == self.entry then table.remove(registered, i) end
end

Handle.__close = Handle.remove

function Handle:__tostring() return ("pass %q"):format(self.name) end

check.seal(Handle, "pass")

local OPTIONS = { after = "string?" }

---Registers a pass for all plans that are compiled from now on. It runs behind the built-in pass 'after', passes of
---one place in order of their registration. The same name again replaces the pass in its place.
---
---    local delay = piper.pass("delay", function(dag) ... end)
---    ...
---    delay:remove()                          -- or: local _ <close> = piper.pass(...)
---@param name string
---@param fn fun(dag: piper.Dag)
---@param options? { after?: "build"|"split"|"split_backward"|"recompute"|"place"|"shard"|"replicate"|"count"|"order"|"zero" }  default "order"
---@return piper.PassHandle
local function pass(name, fn, options)
  check.value("pass", "argument 1 (name)", name, "string")
  if not name:find "^[%w_.-]+$" or #name > 64 then
    check.fail("pass: the name is %s: it has 1 to 64 letters, digits, _, . and -", check.show(name))
  end
  local built_in = core.plan.pass_names()
  for _, other in ipairs(built_in) do
    if name == other then check.fail("pass: %s is a built-in pass: take another name", check.show(name)) end
  end
  if type(fn) ~= "function" then check.fail("pass: argument 2 is %s, not a function", check.show(fn)) end
  options = check.options("pass", options == nil and {} or options, OPTIONS)
  local after = options.after or "order"
  check.choice("pass", 'field "after"', after, built_in)
  local entry = { name = name, fn = fn, after = after, line = check.here() }
  registered[position_of(name) or #registered + 1] = entry
  return setmetatable({ name = name, entry = entry }, Handle)
end

-- What the core calls with the box around the DAG.
local function runner(entry)
  return function(box)
    current = entry
    local _ <close> = setmetatable({}, { __close = function() current = nil end })
    local about = box:about()
    entry.fn(setmetatable({ core = box, known = {}, pass = entry.name, after = entry.after, batch = about.batch,
      forward_only = about.forward_only }, Dag))
  end
end

---The passes that a plan is compiled with from now on, for core.plan.compile.
function M.list()
  local list = {}
  for i, entry in ipairs(registered) do
    list[i] = { name = entry.name, line = entry.line, after = entry.after, run = runner(entry) }
  end
  return list
end

---Raises inside a pass: a plan cannot be compiled while another one is.
---@param where string
function M.refuse_inside(where)
  if current then
    check.fail("%s: plans cannot be compiled inside a pass: the function of pass %q is running", where, current.name)
  end
end

return setmetatable(M, { __call = function(_, ...) return pass(...) end })
