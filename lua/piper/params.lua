-- params - making the parameters of a model: names, initial values, tying.
local check = require "piper.check"
local tensor = require "piper.tensor"
local trace = require "piper.trace"

local M = {}

---Initial values: a number (all elements), { normal = s } (mean 0, deviation s >= 0), { uniform = a }
---(from -a to a), or a function of the flat index, from 0, and the parameter's name.
---@alias piper.Init number|{ normal: number }|{ uniform: number }|fun(i: integer, name: string): number

M.WEIGHT = { normal = 0.02 }
M.BIAS = 0
M.NORM = 1

local FORMS = "a number, { normal = s }, { uniform = a } or a function of the flat index"

-- Kind and argument as the core takes them.
local function parse(where, init)
  if type(init) == "number" then return "constant", init end
  if type(init) == "function" then return "function", init end
  local kind, arg = nil, nil
  if type(init) == "table" then
    kind, arg = next(init)
    if next(init, kind) ~= nil or (kind ~= "normal" and kind ~= "uniform") then kind = nil end
  end
  if not kind then check.fail("%s: init is %s, not %s", where, check.show(init), FORMS) end
  if type(arg) ~= "number" or not (arg >= 0 and arg < math.huge) then
    check.fail("%s: init %s is %s, not a number of at least 0", where, kind, check.show(arg))
  end
  return kind, arg
end

---Raises where 'init' is none.
---@param where string
---@param init any
function M.check_init(where, init)
  if init ~= nil then parse(where, init) end
end

local function same_init(a, b)
  if type(a) ~= "table" or type(b) ~= "table" then return a == b end
  return a.normal == b.normal and a.uniform == b.uniform
end

---The parameter called 'name' within the scopes that are open: a new one, or the one of that name.
---@param where string the function, for messages
---@param name string
---@param shape piper.Shape
---@param init piper.Init? as given in the call
---@param default piper.Init where neither the call nor the model says
---@return piper.Tensor
function M.get(where, name, shape, init, default)
  local model = trace.current(where)
  M.check_init(where, init)
  name = model._prefix .. name
  local old = model._inits[name]
  if old and init ~= nil and not same_init(old.init, init) then
    check.fail('%s: parameter "%s" has its initial values from %s; the same name is the same parameter',
      where, name, old.line)
  end
  if old then init = 0 end -- the core keeps the first
  if init == nil then init = model._init end
  if init == nil then init = default end
  local line, kind, arg = check.here(), parse(where, init)
  local id = model.graph:add_param(line, where, name, shape, kind, arg)
  model._inits[name] = old or { init = init, line = line }
  return tensor.new(model, id)
end

---The parameter called 'name' within the scopes that are open, if there is one.
---@param where string
---@param name string
---@return piper.Tensor?
function M.find(where, name)
  local model = trace.current(where)
  local id = model.graph:find_param(model._prefix .. name)
  return id and tensor.new(model, id)
end

return M
