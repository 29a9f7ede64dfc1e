-- strategy - the list of directives that says how a model is trained.
--
-- A directive is checked for its form where it is written (unknown fields, types, ranges); what
-- it means for a model is checked by piper.compile, whose messages carry the line kept here.
local check = require "piper.check"

local M = {}

---@alias piper.Index integer|integer[]|"*"|false
---@alias piper.Filter table<string, piper.Index|string>  tag -> index; PASS -> "F", "B", "BI", "BW"

---@class piper.Directive
---@field op "place"|"replicate"|"split"|"order"
---@field line? string "train.lua:12", set by the library

---@class piper.Strategy
---@field directives piper.Directive[]
local Strategy = {}
Strategy.__index = Strategy

local PASSES = { "F", "B", "BI", "BW" }

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
    if tag == "PASS" then
      for _, pass in ipairs(type(index) == "table" and index or { index }) do
        check.choice(where, "PASS in the filter " .. check.show(filter), pass, PASSES)
      end
      copy[tag] = type(index) == "table" and table.move(index, 1, #index, 1, {}) or index
    elseif index == "*" or index == false then
      copy[tag] = index
    elseif type(index) == "table" and #index > 0 then
      local list = {}
      for i, v in ipairs(index) do
        list[i] = check.value(where, ("index %d of %s in the filter %s"):format(i, tag, check.show(filter)),
          v, "integer>=0")
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

local function name_of(where, field, name)
  if name ~= nil and not name:find "^[%w_.-]+$" then
    check.fail("%s: %s is %s: a name has letters, digits, _, . and - only", where, field, check.show(name))
  end
  return name
end

local DECLARED = {
  place = { filter = "table", devices = "list", stream = "string?" },
  replicate = { filter = "table", devices = "list", reduce_stream = "string?", bucket_size = "number>0?" },
  split = { filter = "table?", dim_name = "string?", num_microbatches = "integer>=1" },
  order = { filters = "list" },
}

local MIB = 1 << 20

-- One function a directive: the checked, canonical form of what the script wrote.
local canonical = {}

function canonical.place(spec)
  return {
    filter = filter_copy("place", spec.filter),
    devices = devices_copy("place", spec.devices),
    stream = name_of("place", "stream", spec.stream),
  }
end

function canonical.replicate(spec)
  local bucket_size = spec.bucket_size or 25
  if bucket_size > 1 << 30 then check.fail("replicate: bucket_size is %s MiB: too large", bucket_size) end
  return {
    filter = filter_copy("replicate", spec.filter),
    devices = devices_copy("replicate", spec.devices),
    reduce_stream = name_of("replicate", "reduce_stream", spec.reduce_stream),
    bucket_size = bucket_size,
    bucket_bytes = math.max(1, math.floor(bucket_size * MIB)),
  }
end

function canonical.split(spec)
  local dim = name_of("split", "dim_name", spec.dim_name or "MB")
  if dim == "PASS" then check.fail 'split: dim_name cannot be "PASS": filters use it for F, B, BI, BW' end
  return {
    filter = filter_copy("split", spec.filter or {}),
    dim_name = dim,
    num_microbatches = math.tointeger(spec.num_microbatches),
  }
end

function canonical.order(spec)
  local groups = {}
  if #spec.filters < 2 then check.fail "order: filters lists at least two groups" end
  for i, group in ipairs(spec.filters) do
    local where = ("order: group %d"):format(i)
    if type(group) ~= "table" then
      check.fail("%s is %s: a filter or a list of filters was expected", where, check.show(group))
    end
    -- A list of filters has a first element that is a table; {} is the filter that matches all.
    local members = group[1] ~= nil and group or { group }
    local copy = {}
    for j, member in ipairs(members) do copy[j] = filter_copy(where, member) end
    for k in pairs(members) do
      if math.type(k) ~= "integer" or k < 1 or k > #members then
        check.fail("%s mixes filters and the field %s", where, check.show(k))
      end
    end
    groups[i] = copy
  end
  return { filters = groups }
end

local OPS = { "place", "replicate", "split", "order" }

-- Checks 'spec' and appends it; 'line' is the script's "file:line".
local function append(self, op, spec, line)
  check.options(op, spec, DECLARED[op])
  local directive = canonical[op](spec)
  directive.op, directive.line = op, line
  table.insert(self.directives, directive)
  return directive
end

---Puts the nodes that the filter matches on devices. Several devices are data parallel: the j-th
---takes the j-th equal part of each microbatch.
---@param spec { filter: piper.Filter, devices: integer[], stream?: string }  stream: of the
---transfers that leave these nodes (default "pp_stream")
function Strategy:place(spec) append(self, "place", spec, check.here()) return self end

---Keeps the parameters of matched chunks equal on their devices: gradients are summed over them.
---@param spec { filter: piper.Filter, devices: integer[], reduce_stream?: string, bucket_size?: number }
---bucket_size in MiB a bucket (default 25), per chunk; reduce_stream: default "dp_stream"
function Strategy:replicate(spec) append(self, "replicate", spec, check.here()) return self end

---Cuts the batch of the matched part of the DAG into num_microbatches equal pieces; splits nest.
---@param spec { filter?: piper.Filter, dim_name?: string, num_microbatches: integer }  dim_name
---(default "MB") is the tag that counts the pieces
function Strategy:split(spec) append(self, "split", spec, check.here()) return self end

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
  check.value("add", "argument 1", list, "list")
  local line = check.here()
  n_lists = n_lists + 1
  local rank = 0
  for i, spec in ipairs(list) do
    if type(spec) ~= "table" then check.fail("add: element %d is %s, not a directive", i, check.show(spec)) end
    check.choice("add", ("op of directive %d"):format(i), spec.op, OPS)
    local fields = {}
    for k, v in pairs(spec) do
      if k ~= "op" and k ~= "line" then fields[k] = v end
    end
    local directive = append(self, spec.op, fields, spec.line or line)
    directive.schedule = n_lists
    if spec.op == "order" then
      directive.rank_in_schedule = rank
      rank = rank + 1
    end
  end
  return self
end

---@return piper.Strategy
function M.new()
  return setmetatable({ directives = {} }, Strategy)
end

function Strategy:__tostring()
  local lines = { ("strategy: %d directives"):format(#self.directives) }
  for _, d in ipairs(self.directives) do
    local fields = {}
    for _, k in ipairs { "filter", "devices", "stream", "reduce_stream", "bucket_size", "dim_name", "num_microbatches" } do
      if d[k] ~= nil then fields[#fields + 1] = ("%s = %s"):format(k, check.show(d[k])) end
    end
    if d.filters then fields[#fields + 1] = ("%d groups"):format(#d.filters) end
    lines[#lines + 1] = ("  %-9s %s   (%s)"):format(d.op, table.concat(fields, ", "), d.line)
  end
  return table.concat(lines, "\n")
end

M.Strategy = Strategy

return setmetatable(M, { __call = function(_, ...)
  if select("#", ...) > 0 then check.fail "strategy: takes no arguments; directives are added with its methods" end
  return M.new()
end })
