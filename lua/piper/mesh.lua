-- mesh - devices as a grid with named axes, and device sets as slices of it.
--
--   local mesh = piper.mesh { pp = 4, dp = 2 }
--   mesh { pp = 0 }        --> { 0, 1 }
--   mesh { dp = 1 }        --> { 1, 3, 5, 7 }
--   mesh:slices "pp"       --> { { 0, 1 }, { 2, 3 }, { 4, 5 }, { 6, 7 } }
--
-- Devices are numbered row by row, the last axis fastest. A Lua table has no order, so the order of
-- the axes comes from one of: a list of pairs, { { "pp", 4 }, { "dp", 2 } }; { order = { "pp", "dp" }
-- } as second argument; or, for the usual names alone, from the usual nesting pp, dp, ep, cp, tp,
-- outermost first, as in Megatron-LM: what communicates most is between neighbouring devices.
local check = require "piper.check"

---@class piper.Mesh
---@field axes string[]  outermost first
---@field sizes table<string, integer>
---@overload fun(at: table<string, integer|integer[]|"*">): integer[]
local Mesh = {}
Mesh.__index = Mesh

local USUAL = { "pp", "dp", "ep", "cp", "tp" }

local MAX_DEVICES <const> = 65536

local function position(list, v)
  for i, w in ipairs(list) do
    if v == w then return i end
  end
end

-- { { "pp", 4 }, ... } or { pp = 4, ... }: names in the order of writing (a list) or nil, and sizes.
local function read_axes(spec)
  local names, sizes = spec[1] ~= nil and {} or nil, {}
  local function axis(name, size)
    if type(name) ~= "string" or not name:find "^[%a_][%w_]*$" then
      check.fail("mesh: %s is not the name of an axis, such as pp", check.show(name))
    end
    if sizes[name] then check.fail("mesh: axis %s is given twice", name) end
    sizes[name] = math.tointeger(check.value("mesh", "axis " .. name, size, "integer>=1"))
  end
  if names then
    check.value("mesh", "argument 1", spec, "list")
    for i, pair in ipairs(spec) do
      if type(pair) ~= "table" then check.fail('mesh: element %d is %s, not a pair such as { "pp", 4 }', i, check.show(pair)) end
      axis(pair[1], pair[2])
      names[i] = pair[1]
    end
  else
    for name, size in pairs(spec) do axis(name, size) end
  end
  return names, sizes
end

-- The order of axes given without one.
local function usual_order(sizes)
  local names, only = {}, next(sizes)
  if next(sizes, only) == nil then return { only } end
  for _, name in ipairs(USUAL) do
    if sizes[name] then names[#names + 1] = name end
  end
  for name in pairs(sizes) do
    if not position(names, name) then
      check.fail('mesh: where axis %s goes is not known (the usual order has %s): list the axes, outermost first, as { { "%s", %d }, ... }',
        name, table.concat(USUAL, ", "), name, sizes[name])
    end
  end
  return names
end

local function check_order(order, sizes)
  local names = {}
  for i, name in ipairs(order) do
    if not sizes[name] then
      local known = {}
      for axis in pairs(sizes) do known[#known + 1] = axis end
      table.sort(known)
      check.fail("mesh: order names %s, which is no axis%s", check.show(name), check.suggestion(name, known, "axes"))
    end
    if position(names, name) then check.fail("mesh: order names %s twice", name) end
    names[i] = name
  end
  for name in pairs(sizes) do
    if not position(names, name) then check.fail("mesh: order leaves out axis %s", name) end
  end
  return names
end

---@param spec table<string, integer>|{ [1]: string, [2]: integer }[]
---@param options? { order?: string[] }  outermost first
---@return piper.Mesh
local function new(spec, options)
  check.value("mesh", "argument 1", spec, "table")
  options = check.options("mesh", options or {}, { order = "list?" })
  if next(spec) == nil then check.fail "mesh: has no axis: it is a table such as { pp = 4, dp = 2 }" end
  local names, sizes = read_axes(spec)
  if options.order then
    if names then check.fail "mesh: a list of pairs has an order already" end
    names = check_order(options.order, sizes)
  end
  names = names or usual_order(sizes)
  local count = 1
  for _, name in ipairs(names) do
    count = count * sizes[name]
    if count > MAX_DEVICES then check.fail("mesh: has more than %d devices", MAX_DEVICES) end
  end
  return setmetatable({ axes = names, sizes = sizes }, Mesh)
end

-- The indices that a slice keeps of one axis.
local function indices(where, name, size, wanted)
  local list = {}
  if wanted == nil or wanted == "*" then
    for i = 0, size - 1 do list[i + 1] = i end
    return list
  end
  for i, index in ipairs(type(wanted) == "table" and wanted or { wanted }) do
    check.value(where, name, index, "integer>=0")
    if index >= size then check.fail("%s: %s = %d, but %s runs from 0 to %d", where, name, index, name, size - 1) end
    list[i] = index
  end
  if #list == 0 then check.fail("%s: %s has no index", where, name) end
  return list
end

local function check_axis(where, self, name)
  if not self.sizes[name] then
    check.fail("%s: no axis is called %s%s", where, check.show(name), check.suggestion(name, self.axes, "axes"))
  end
end

-- The devices at the given indices of each axis, ascending along the axes' order.
local function devices_at(self, where, at)
  check.value(where, "argument 1", at, "table")
  for name in pairs(at) do check_axis(where, self, name) end
  local devices = { 0 }
  for _, name in ipairs(self.axes) do
    local longer = {}
    for _, device in ipairs(devices) do
      for _, index in ipairs(indices(where, name, self.sizes[name], at[name])) do
        longer[#longer + 1] = device * self.sizes[name] + index
      end
    end
    devices = longer
  end
  return devices
end

---A slice: the devices with the given index (or one of a list of indices) on each axis that is named.
function Mesh:__call(at) return devices_at(self, "mesh", at) end

---The slices of one axis, a device set for each index: what a schedule's 'devices' takes.
---@param name string
---@return integer[][]
function Mesh:slices(name)
  check_axis("slices", self, name)
  local list = {}
  for i = 0, self.sizes[name] - 1 do list[i + 1] = devices_at(self, "slices", { [name] = i }) end
  return list
end

---The groups of devices that differ on one axis only, among those of a slice: what shard's
---'devices' takes for several expert groups.
---@param name string
---@param at? table<string, integer|integer[]>
---@return integer[][]
function Mesh:groups(name, at)
  check_axis("groups", self, name)
  at = check.value("groups", "argument 2", at, "table?") or {}
  local stride = 1
  for i = #self.axes, position(self.axes, name) + 1, -1 do stride = stride * self.sizes[self.axes[i]] end
  local groups, of = {}, {}
  for _, device in ipairs(devices_at(self, "groups", at)) do
    local first = device - device // stride % self.sizes[name] * stride
    if not of[first] then
      of[first] = {}
      groups[#groups + 1] = of[first]
    end
    table.insert(of[first], device)
  end
  return groups
end

function Mesh:__tostring()
  local words = {}
  for i, name in ipairs(self.axes) do words[i] = ("%s = %d"):format(name, self.sizes[name]) end
  return "mesh " .. table.concat(words, ", ")
end

return setmetatable({ Mesh = Mesh }, { __call = function(_, ...) return new(...) end })
