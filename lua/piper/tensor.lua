-- tensor - the symbolic tensors of a model function: a shape and a type, no numbers.
local check = require "piper.check"
local trace = require "piper.trace"

local M = {}

---@alias piper.Axis integer|"batch"|{ [1]: "batch", [2]: integer }
---@alias piper.Shape piper.Axis[]  outermost first; the batch, if any, is the first: { "batch", 128 },
---{ { "batch", 128 }, 96 } for batch*128 rows, {} for a scalar

---A value of a model. `a + b`, `a - b`, `a * b`, `a / b` and `-a` are elementwise; shapes are aligned
---at the last axis and axes of length 1 stretch, as in NumPy. Either side may be a number.
---@class piper.Tensor
---@field shape piper.Shape
---@field dtype "float"|"i32"  float is the type that the plan computes in
---@operator add(piper.Tensor|number): piper.Tensor
---@operator sub(piper.Tensor|number): piper.Tensor
---@operator mul(piper.Tensor|number): piper.Tensor
---@operator div(piper.Tensor|number): piper.Tensor
---@operator unm: piper.Tensor
local Tensor = {}
local methods = {}

---@param model piper.Model
---@param id integer of its value in model.graph
---@return piper.Tensor
function M.new(model, id)
  return setmetatable({ _model = model, _id = id }, Tensor)
end

---@return boolean
function M.is(v)
  return getmetatable(v) == Tensor
end

---The value that 'v' stands for in the model being traced.
---@param where string the op, for messages
---@param what string the operand
---@param v any
---@return integer id
function M.id(where, what, v)
  if not M.is(v) then check.fail("%s: %s is %s, not a tensor", where, what, check.show(v)) end
  local model = v._model
  if not trace.is_current(model) then
    local now = trace.current(where)
    check.fail('%s: %s belongs to model "%s", not to "%s"', where, what, model.name, now.name)
  end
  return v._id
end

---Adds an op to the model being traced.
---@param kind string name of the op
---@param ids (integer|false)[] its operands
---@param more? { name?: string, number?: number|number[], shape?: piper.Shape }
---@return piper.Tensor
function M.op(kind, ids, more)
  local model = trace.current(kind)
  more = more or {}
  return M.new(model, model.graph:add_op(check.here(), kind, more.name, ids, more.number, more.shape))
end

-- A tensor, or a number as a constant scalar.
local function term(where, what, v)
  if type(v) == "number" then return M.op("fill", {}, { number = v })._id end
  if not M.is(v) then check.fail("%s: %s is %s, not a tensor or a number", where, what, check.show(v)) end
  return M.id(where, what, v)
end

---@param kind "add"|"sub"|"mul"|"div"
---@return fun(a: piper.Tensor|number, b: piper.Tensor|number): piper.Tensor
function M.elementwise(kind)
  return function(a, b)
    if not M.is(a) and not M.is(b) then
      check.fail("%s: left is %s, right is %s: one must be a tensor", kind, check.show(a), check.show(b))
    end
    if kind == "mul" and type(a) == "number" then a, b = b, a end
    if kind == "mul" and type(b) == "number" then
      return M.op("scale", { M.id(kind, "left", a) }, { number = b })
    end
    local left, right = term(kind, "left", a), term(kind, "right", b)
    return M.op(kind, { left, right })
  end
end

Tensor.__add = M.elementwise "add"
Tensor.__sub = M.elementwise "sub"
Tensor.__mul = M.elementwise "mul"
Tensor.__div = M.elementwise "div"

function Tensor.__unm(a)
  return M.op("scale", { M.id("unary minus", "operand", a) }, { number = -1 })
end

---The same elements in the same order under another shape. Each sample keeps its own elements:
---[batch, T, C] may become [batch*T, C], { { "batch", T }, C }, and back.
---@param shape piper.Shape
---@return piper.Tensor
function methods:reshape(shape)
  return M.op("reshape", { M.id("reshape", "input", self) }, { shape = shape })
end

local function info(t)
  return t._model.graph:value(t._id)
end

-- An axis as the core takes it: counted from 0, or below 0 from the end.
local function axis_of(where, what, x, axis)
  check.value(where, what, axis, "integer")
  return axis < 0 and axis + #x.shape or axis
end

---Exchanges two axes. Axes count from 0, or from the end: -1 is the last. The batch stays where it is.
---@param a integer
---@param b integer
---@return piper.Tensor
function methods:transpose(a, b)
  local id = M.id("transpose", "input", self)
  local first = axis_of("transpose", "argument 1 (axis)", self, a)
  return M.op("transpose", { id }, { number = { first, axis_of("transpose", "argument 2 (axis)", self, b) } })
end

---Positions from, from + 1, ..., to - 1 of an axis, counted from 0. The batch cannot be sliced.
---@param axis integer counted from 0, or from the end: -1 is the last
---@param from integer
---@param to? integer default: the end of the axis
---@return piper.Tensor
function methods:slice(axis, from, to)
  local id = M.id("slice", "input", self)
  axis = axis_of("slice", "argument 1 (axis)", self, axis)
  check.value("slice", "argument 2 (from)", from, "integer")
  check.value("slice", "argument 3 (to)", to, "integer?")
  local size = self.shape[axis + 1]
  if not to then to = math.type(size) == "integer" and size or from + 1 end -- the core refuses the batch
  return M.op("slice", { id }, { number = { axis, from, to } })
end

local FIELDS = { "dtype", "reshape", "shape", "slice", "transpose" }

function Tensor.__index(t, key)
  if methods[key] then return methods[key] end
  if key == "shape" or key == "dtype" then return info(t)[key] end
  check.fail("tensor: no field %s%s", check.show(key), check.suggestion(key, FIELDS, "fields"))
end

function Tensor.__newindex(_, key)
  check.fail("tensor: field %s cannot be set", check.show(key))
end

---"[batch, 128]"
---@param t piper.Tensor
---@return string
function M.shape_text(t)
  return info(t).shape_text
end

function Tensor.__tostring(t)
  local i = info(t)
  return ("tensor %s %s"):format(i.shape_text, i.dtype)
end

Tensor.__name = "piper.Tensor"

return M
