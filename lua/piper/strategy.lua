-- strategy - the list of directives that says how a model is trained.
--
-- A directive is checked for its form where it is written (unknown fields, types, ranges); what
-- it means for a model is checked by piper.compile, whose messages carry the line kept here.
local check = require "piper.check"

local M = {}

---@alias piper.Index integer|integer[]|"*"|false
---@alias piper.Filter table<string, piper.Index|string>  tag -> index; PASS -> "F", "B", "BI", "BW", "R"

---@class piper.Directive
---@field op "place"|"replicate"|"split"|"recompute"|"order"
---@field line? string "train.lua:12", set by the library

---@class piper.Strategy
---@field directives piper.Directive[]
local Strategy = {}
Strategy.__index = Strategy

local PASSES = { "F", "B", "BI", "BW", "R" }

-- The form of a filter; what it matches is known when a model is compiled. Returns a copy.
local function filter_copy(where, filter)
  if type(filter) ~= "table" then
    check.fail("%s: a filter is a table such as { PP = 0 }, not %s", where, check.show(filter))
  end
  local copy = {}
  for tag, index in pairs(filter) do
    local bad = type(tag) ~= "string" or tag == ""
    if bad then
      check.fail("%s: the filter %s has no tag before %s: it is a table such as { PP = 0 }", where,
        check.show(filter), check.show(index))
    end
    if tag:find "%c" then check.fail("%s: %s is not a tag: it is a word such as PP", where, check.show(tag)) end
    local is_list = type(index) == "table" and rawlen(index) > 0
    if is_list then
      check.value(where, function() return ("%s in the filter %s"):format(tag, check.show(filter)) end, index, "list")
    end
    if tag == "PASS" then
      local list = is_list and table.move(index, 1, rawlen(index), 1, {}) or { index }
      for _, pass in ipairs(list) do
        check.choice(where, function() return "PASS in the filter " .. check.show(filter) end, pass, PASSES)
      end
      copy[tag] = is_list and list or index
    elseif index == "*" or index == false then
      copy[tag] = index
    elseif is_list then
      local list = {}
      for i, v in ipairs(index) do
        list[i] = check.value(where, function()
          return ("index %d of %s in the filter %s"):format(i, tag, check.show(filter))
        end, v, "integer>=0")
      end
      copy[tag] = list
    elseif math.type(index) == "integer" and index >= 0 then
      copy[tag] = index
    else
      check.fail('%s: %s = %s in the filter %s is not an index (0, 1, ...), a list of them, "*" or false',
        where, tag, check.show(index), check.show(filter))
    end
  end
  return copy
end

-- A list of ranks, each once. Returns a copy.
local function devices_copy(where, devices)
  check.value(where, 'field "devices"', devices, "list")
  if #devices == 0 then check.fail("%s: devices is empty: it lists ranks, such as { 0, 1 }", where) end
  local copy, seen = {}, {}
  for i, rank in ipairs(devices) do
    check.value(where, ("device %d of the list"):format(i), rank, "integer>=0")
    if rank > 65535 then check.fail("%s: device %d is above 65535", where, rank) end
    if seen[rank] then check.fail("%s: device %d is listed twice in %s", where, rank, check.show(devices)) end
    seen[rank] = true
    copy[i] = math.tointeger(rank)
  end
  return copy
end

-- Groups of devices: a list of lists of ranks, all of one length; a list of ranks is one group.
local function device_groups_copy(where, devices)
  if type(devices[1]) ~= "table" then return devices_copy(where, devices) end
  local groups, all = {}, {}
  for i, group in ipairs(devices) do
    local here = ("%s: group %d of devices"):format(where, i)
    groups[i] = devices_copy(here, group)
    if #groups[i] ~= #groups[1] then
      check.fail("%s has %d, group 1 has %d: groups are of one size", here, #groups[i], #groups[1])
    end
    table.move(groups[i], 1, #groups[i], #all + 1, all)
  end
  devices_copy(where, all)
  return groups
end

local function name_copy(where, name, field)
  if not name:find "^[%w_.-]+$" then
    check.fail("%s: %s is %s: a name has letters, digits, _, . and - only", where, field, check.show(name))
  end
  return name
end

-- The groups of an order, each a list of filters. A list of filters has a first element that is a
-- table; {} is the filter that matches all.
local function groups_copy(where, filters)
  local groups = {}
  if #filters < 2 then check.fail("%s: filters lists at least two groups", where) end
  for i, group in ipairs(filters) do
    local here = (where:find "rank %d+$" and "%s, column %d" or "%s: group %d"):format(where, i) -- as messages of the core
    if type(group) ~= "table" then
      check.fail("%s is %s: a filter or a list of filters was expected", here, check.show(group))
    end
    local members = group[1] ~= nil and group or { group }
    local copy = {}
    for j, member in ipairs(members) do copy[j] = filter_copy(here, member) end
    for k in pairs(members) do
      if math.type(k) ~= "integer" or k < 1 or k > #members then
        check.fail("%s mixes filters and the field %s", here, check.show(k))
      end
    end
    groups[i] = copy
  end
  return groups
end

local function dim_name(where, name)
  name_copy(where, name, "dim_name")
  if name == "PASS" then check.fail('%s: dim_name cannot be "PASS": filters use it for %s', where, table.concat(PASSES, ", ")) end
  return name
end

local function bucket_size(where, mib, field)
  if mib > 1 << 30 then check.fail("%s: %s is %s MiB: too large", where, field, mib) end
  return math.tointeger(mib) or mib
end

local function prefetch(where, n)
  if n > 1 << 30 then check.fail("%s: prefetch is %d: too large", where, n) end
  return math.tointeger(n)
end

-- What a field may be: its type for check.options, and the function of (where, value, field) that
-- checks the rest and gives the copy that the strategy keeps (nil: the value itself).
local KINDS = {
  filter = { type = "table", copy = filter_copy },
  devices = { type = "list", copy = devices_copy },
  device_groups = { type = "list", copy = device_groups_copy },
  groups = { type = "list", copy = groups_copy },
  name = { type = "string", copy = name_copy },
  dim_name = { type = "string", copy = dim_name },
  count = { type = "integer>=1", copy = function(_, n) return math.tointeger(n) end },
  mebibytes = { type = "number>0", copy = bucket_size },
  flag = { type = "boolean" },
  ahead = { type = "integer>=0", copy = prefetch },
  more_mebibytes = { type = "number>=0", copy = bucket_size },
  reduce = { type = "string", copy = function(where, word) return check.choice(where, 'field "reduce"', word, { "step", "microbatch" }) end },
}

-- The fields of each directive, in the order in which they are printed and saved: name, kind, and
-- "optional" or the default. The methods below, add, load and save all go by this table.
local OPTIONAL = {}
local FIELDS = {
  place = { { "filter", "filter" }, { "devices", "devices" }, { "stream", "name", OPTIONAL } },
  replicate = {
    { "filter", "filter" }, { "devices", "devices" }, { "reduce_stream", "name", OPTIONAL },
    { "gather_stream", "name", OPTIONAL }, { "bucket_size", "mebibytes", OPTIONAL },
    { "shard_optimizer", "flag", OPTIONAL }, { "shard_grads", "flag", OPTIONAL }, { "shard_params", "flag", OPTIONAL },
    { "reduce", "reduce", OPTIONAL }, { "prefetch", "ahead", OPTIONAL }, { "keep", "more_mebibytes", OPTIONAL },
  },
  shard = { { "filter", "filter" }, { "devices", "device_groups" }, { "stream", "name", OPTIONAL } },
  split = { { "filter", "filter", {} }, { "dim_name", "dim_name", "MB" }, { "num_microbatches", "count" } },
  recompute = { { "filter", "filter" } },
  order = { { "filters", "groups" } },
}

-- What a directive carries beside its fields.
local FURTHER = {
  replicate = function(d)
    d.bucket_bytes = math.max(1, math.floor((d.bucket_size or 25) * (1 << 20)))
    d.keep_bytes = math.floor((d.keep or 0) * (1 << 20))
    d.zero = d.shard_params and 3 or d.shard_grads and 2 or d.shard_optimizer and 1 or 0 -- each includes those before it
  end,
}

local DECLARED = {}
for op, fields in pairs(FIELDS) do
  DECLARED[op] = {}
  for _, f in ipairs(fields) do DECLARED[op][f[1]] = KINDS[f[2]].type .. (f[3] and "?" or "") end
end

-- The checked, canonical form of what the script wrote; 'where' begins messages.
local function canonical(where, op, spec)
  local d = { op = op }
  for _, f in ipairs(FIELDS[op]) do
    local name, kind, default = f[1], KINDS[f[2]], f[3]
    local value = spec[name]
    if value == nil and default ~= OPTIONAL then value = default end
    if value ~= nil and kind.copy then value = kind.copy(where, value, name) end
    d[name] = value
  end
  if FURTHER[op] then FURTHER[op](d) end
  return d
end

local OPS = {}
for op in pairs(FIELDS) do OPS[#OPS + 1] = op end
table.sort(OPS)

-- Checks 'spec' and appends it; 'line' is the script's "file:line", 'where' begins messages (default
-- the directive's name).
local function append(self, op, spec, line, where)
  check.options(where or op, spec, DECLARED[op])
  local directive = canonical(where or op, op, spec)
  directive.line = line
  table.insert(self.directives, directive)
  return directive
end

---Puts the nodes that the filter matches on devices. Several devices are data parallel: the j-th
---takes the j-th equal part of each microbatch.
---@param spec { filter: piper.Filter, devices: integer[], stream?: string }  stream: of the
---transfers that leave these nodes (default "pp_stream")
function Strategy:place(spec) append(self, "place", spec, check.here()) return self end

---Keeps the parameters of matched chunks equal on their devices: gradients are summed over them.
---
---shard_optimizer: each device keeps and updates a share of them (ZeRO-1); shard_grads: and keeps its
---share of the gradients only (ZeRO-2); shard_params: and of the parameters, which are gathered for
---each pass that reads them (ZeRO-3). Each includes those before it. reduce "step" (default): one
---reduction a bucket, after its last backward; "microbatch": one after each backward, so that gradients
---are whole only from a backward to its reduction.
---@param spec { filter: piper.Filter, devices: integer[], reduce_stream?: string, gather_stream?: string, bucket_size?: number, shard_optimizer?: boolean, shard_grads?: boolean, shard_params?: boolean, reduce?: "step"|"microbatch", prefetch?: integer, keep?: number }
---bucket_size in MiB a bucket (default 25), per chunk; reduce_stream: default "dp_stream";
---gather_stream: default "ag_stream"; prefetch: parameters are gathered at most so many compute nodes
---ahead (default 1); keep in MiB: what the peak may grow by so that they are gathered less often (default 0)
function Strategy:replicate(spec) append(self, "replicate", spec, check.here()) return self end

---Spreads the experts (nn.moe) of matched chunks over devices, with an all_to_all before and after.
---The devices of a group are neighbours in the chunk's placement; several groups hold the same experts,
---and sum the gradients of each.
---@param spec { filter: piper.Filter, devices: integer[]|integer[][], stream?: string }  devices: a
---group, or a list of groups of one size; stream: of the all_to_alls (default "ep_stream")
function Strategy:shard(spec) append(self, "shard", spec, check.here()) return self end

---Cuts the batch of the matched part of the DAG into num_microbatches equal pieces; splits nest.
---@param spec { filter?: piper.Filter, dim_name?: string, num_microbatches: integer }  dim_name
---(default "MB") is the tag that counts the pieces
function Strategy:split(spec) append(self, "split", spec, check.here()) return self end

---Keeps of matched chunks only their inputs, and runs their forward pass again (R) before their
---backward pass: less memory for more time. R may be named in an order, and otherwise runs just
---before the backward pass that needs it.
---@param spec { filter: piper.Filter }
function Strategy:recompute(spec) append(self, "recompute", spec, check.here()) return self end

---Group after group on one device set; a group is a filter, or a list of filters whose nodes may
---overlap with one another.
---@param spec { filters: (piper.Filter|piper.Filter[])[] }
function Strategy:order(spec) append(self, "order", spec, check.here()) return self end

-- Lists given to add are numbered over the whole process: a list with a split and orders is a
-- schedule, which the compiler checks for completeness as one.
local n_lists = 0

---Appends a list of directives, as a schedule returns it. A list that has a split and orders is a
---schedule: each pass of each microbatch of the stages that it orders has to occur in it once.
---@param list piper.Directive[]
function Strategy:add(list)
  if type(list) == "table" and getmetatable(list) == Strategy then
    check.fail "add: argument 1 is a strategy, not a list of directives: strategy:copy() makes another one to add to"
  end
  if type(list) == "table" and list.op ~= nil then
    check.fail("add: argument 1 is a single directive, not a list of them: add { { op = %s, ... } }", check.show(list.op))
  end
  if type(list) == "function" then
    check.fail "add: argument 1 is a function, not the list of directives that calling it returns: schedules.gpipe { ranks = 2, microbatches = 4 }"
  end
  check.value("add", "argument 1", list, "list")
  local line = check.here()
  n_lists = n_lists + 1
  local rank = 0
  for i, spec in ipairs(list) do
    if type(spec) ~= "table" or getmetatable(spec) == Strategy then
      check.fail("add: element %d is %s, not a directive", i, check.show(spec))
    end
    check.choice("add", ("op of directive %d"):format(i), spec.op, OPS)
    local fields = {}
    for k, v in pairs(spec) do
      if k ~= "op" and k ~= "line" then fields[k] = v end
    end
    local where = spec.op == "order" and ("order: rank %d"):format(rank) or nil
    local directive = append(self, spec.op, fields, type(spec.line) == "string" and spec.line or line, where)
    directive.schedule = n_lists
    if spec.op == "order" then
      directive.rank_in_schedule = rank
      rank = rank + 1
    end
  end
  return self
end

---For the readers of files: appends one directive as a method does; 'where' begins messages.
---@param line string "file:line" of the directive, for messages of the compiler
function M.append(strategy, op, spec, line, where) append(strategy, op, spec, line, where) end

-- The value of a term: an index, "0,2", "*", or for "false" nodes outside every scope of the tag.
local function term_value(text)
  if text == "*" then return text end
  if text == "false" then return false end
  local list = {}
  for word in (text .. ","):gmatch "(.-)," do
    local index = word:find "^%d+$" and math.tointeger(tonumber(word))
    if not index then return nil end
    list[#list + 1] = index
  end
  return #list > 1 and list or list[1]
end

---Reads a filter in text: terms TAG=INDEX, apart by blanks. What is wrong is named with its position, from 1.
---@param where string begins messages
---@param text string such as "PP=1 MB=0,2 PASS=B"; "" matches everything
---@return piper.Filter
function M.parse_filter(where, text)
  local filter = {}
  for at, word in text:gmatch "()(%S+)" do
    local here = ("%s: position %d of %s"):format(where, at, check.show(text))
    local tag, value = word:match "^([%a_][%w_.-]*)=(.*)$"
    if not tag then
      local stage, letter, mb = word:match "^(%d+)([FBIWR])(%d+)$" -- as plan:actions() has it
      local pass = ({ I = "BI", W = "BW" })[letter] or letter
      check.fail("%s: %s is not TAG=INDEX: a filter reads PP=%s MB=%s PASS=%s", here, check.show(word), stage or "1",
        mb or "0,2", pass or "B")
    end
    if filter[tag] ~= nil then check.fail("%s: %s again", here, tag) end
    if tag == "PASS" then
      local passes = {}
      for pass in (value .. ","):gmatch "(.-)," do
        passes[#passes + 1] = check.choice(here, "PASS", pass, PASSES)
      end
      filter[tag] = passes
    else
      filter[tag] = term_value(value)
      if filter[tag] == nil then
        check.fail("%s: %s = %s is not an index (0, 1, ...), a list of them (0,2), * or false", here, tag, check.show(value))
      end
    end
  end
  return filter
end

---A filter that was given as a table, checked and copied.
---@return piper.Filter
function M.filter(where, filter) return filter_copy(where, filter) end

M.FIELDS, M.KINDS, M.OPS = FIELDS, KINDS, OPS

---Reads a strategy from a JSON file in the format of the paper's own schedules.
---@param path string
---@return piper.Strategy
function M.load(path) return require "piper.strategy_json".load(path) end

---Reads a PyTorch pipelining schedule (CSV: one line a rank, cells such as 0F0, 0I0, 0W0, 0B0 and
---(0F7;7B3)OVERLAP_F_B, blanks allowed) as a strategy with split, place and order directives.
---@param path string
---@param options? { placement?: "single"|"loop"|"v"|"bidirectional"|integer[], devices?: integer[][]|false }
---placement: the rank of every stage, by rule or as a list; without it each stage sits where its row
---is. devices: a device set for each rank (default rank r on device r); false: no placement
---@return piper.Strategy
function M.load_csv(path, options) return require "piper.strategy_csv".load(path, options) end

---Writes the strategy as JSON, in canonical form: fields in a fixed order, none that is not set.
---@param path string
function Strategy:save(path) require "piper.strategy_json".save(self, path) return self end

---Writes the orders of the strategy as a PyTorch pipelining schedule, one line for each.
---@param path string
function Strategy:save_csv(path) require "piper.strategy_csv".save(self, path) return self end

---@return piper.Strategy
function M.new()
  return setmetatable({ directives = {} }, Strategy)
end

---Another strategy with the same directives; what is added to one of them leaves the other as it is.
---@return piper.Strategy
function Strategy:copy()
  return setmetatable({ directives = table.move(self.directives, 1, #self.directives, 1, {}) }, Strategy)
end

function Strategy:__tostring()
  local lines = { ("strategy: %d directives"):format(#self.directives) }
  for _, d in ipairs(self.directives) do
    local fields = {}
    for _, f in ipairs(FIELDS[d.op]) do
      local k = f[1]
      if k ~= "filters" and d[k] ~= nil then fields[#fields + 1] = ("%s = %s"):format(k, check.show(d[k])) end
    end
    if d.filters then fields[#fields + 1] = ("%d groups"):format(#d.filters) end
    lines[#lines + 1] = ("  %-9s %s   (%s)"):format(d.op, table.concat(fields, ", "), d.line)
  end
  return table.concat(lines, "\n")
end

check.seal(Strategy, "strategy")
M.Strategy = Strategy

return setmetatable(M, {
  __call = function(_, ...)
    if select("#", ...) > 0 then check.fail "strategy: takes no arguments; directives are added with its methods" end
    return M.new()
  end,
  __index = function(_, name)
    if rawget(Strategy, name) then
      check.fail("strategy: %s is a method of a strategy, which piper.strategy() makes", check.show(name))
    end
  end,
})
