-- nn - the ops of a model function. Shapes are written as in piper.Shape; "*" stands for any leading
-- axes, the batch included. Every op checks types and shapes where it is called, and that it keeps
-- the samples of the batch apart.
local check = require "piper.check"
local params = require "piper.params"
local tensor = require "piper.tensor"
local trace = require "piper.trace"

local M = {}

local function label(kind, name)
  return ('%s "%s"'):format(kind, trace.name(kind, "argument 2 (name)", name))
end

-- ---- parameters ---------------------------------------------------------------------------------

---A parameter of one's own. The same name, within the same scopes, is the same parameter.
---@param name string
---@param shape piper.Shape without a batch
---@param options? { init?: piper.Init } default { normal = 0.02 }
---@return piper.Tensor float, 'shape'
function M.param(name, shape, options)
  trace.current "param"
  trace.name("param", "argument 1 (name)", name)
  options = check.options("param", options or {}, { init = "any?" })
  return params.get("param", name, shape, options.init, params.WEIGHT)
end

---Names of parameters made inside begin with name and a dot; scopes nest.
---@generic T
---@param name string
---@param fn fun(): T
---@return T ... what fn returns
function M.scope(name, fn)
  local model = trace.current "scope"
  trace.name("scope", "argument 1 (name)", name)
  check.value("scope", "argument 2", fn, "function")
  local outside = model._prefix
  local _ <close> = setmetatable({}, { __close = function() model._prefix = outside end })
  model._prefix = outside .. name .. "."
  return fn()
end

local LINEAR = { out = "integer>=1", bias = "boolean?", init = "any?" }

---y = x W^T + b, with parameters <name>.weight [out, in] and <name>.bias [out].
---@param x piper.Tensor float [*, in]
---@param name string
---@param options { out: integer, bias?: boolean, init?: piper.Init } bias: default true; init is of
---both, default { normal = 0.02 } for the weight and 0 for the bias
---@return piper.Tensor float [*, out]
function M.linear(x, name, options)
  local where = label("linear", name)
  check.options(where, options, LINEAR)
  local input = tensor.id(where, "input", x)
  local shape = x.shape
  local width = shape[#shape]
  if math.type(width) ~= "integer" then
    check.fail("%s: input is %s: it has no axis of features after the batch", where, tensor.shape_text(x))
  end
  -- A weight that exists under this name may have another width: then it is the input that is wrong.
  local weight = params.find(where, name .. ".weight")
  local found = weight and weight.shape
  if found and #found == 2 and found[1] == options.out then width = found[2] end
  weight = params.get(where, name .. ".weight", { options.out, width }, options.init, params.WEIGHT)
  local bias = options.bias ~= false
    and params.get(where, name .. ".bias", { options.out }, options.init, params.BIAS)
  return tensor.op("linear", { input, weight._id, bias and bias._id }, { name = name })
end

local EMBEDDING = { vocab = "integer>=1", width = "integer>=1", init = "any?" }

---Row ids of the parameter <name>.weight [vocab, width].
---@param ids piper.Tensor i32 [*], each from 0 to vocab - 1
---@param name string
---@param options { vocab: integer, width: integer, init?: piper.Init } init: default { normal = 0.02 }
---@return piper.Tensor float [*, width]
function M.embedding(ids, name, options)
  local where = label("embedding", name)
  check.options(where, options, EMBEDDING)
  local id = tensor.id(where, "ids", ids)
  local weight = params.get(where, name .. ".weight", { options.vocab, options.width }, options.init,
    params.WEIGHT)
  return tensor.op("embedding", { id, weight._id }, { name = name })
end

-- ---- elementwise --------------------------------------------------------------------------------

---@alias piper.Elementwise fun(a: piper.Tensor|number, b: piper.Tensor|number): piper.Tensor

---a + b, broadcast as in NumPy; either may be a number. A value that does not depend on the batch is
---added to a sum over the batch once.
---@type piper.Elementwise
M.add = tensor.elementwise "add"

---a - b, as M.add
---@type piper.Elementwise
M.sub = tensor.elementwise "sub"

---a * b elementwise, broadcast; either may be a number
---@type piper.Elementwise
M.mul = tensor.elementwise "mul"

---a / b elementwise, broadcast; either may be a number
---@type piper.Elementwise
M.div = tensor.elementwise "div"

---x times a number
---@param x piper.Tensor float [*]
---@param factor number
---@return piper.Tensor float [*]
function M.scale(x, factor)
  local input = tensor.id("scale", "input", x)
  if type(factor) ~= "number" then check.fail("scale: factor is %s, not a number", check.show(factor)) end
  return tensor.op("scale", { input }, { number = factor })
end

-- An op of one operand, "input".
local function unary(kind)
  return function(x) return tensor.op(kind, { tensor.id(kind, "input", x) }) end
end

---max(x, 0)
---@type fun(x: piper.Tensor): piper.Tensor
M.relu = unary "relu"

-- ---- products and shapes ------------------------------------------------------------------------

---Product of matrices along the last two axes. Leading axes are those of a, and b's too unless it has
---two axes only.
---@param a piper.Tensor float [*, M, K]
---@param b piper.Tensor float [*, K, N] or [K, N]
---@return piper.Tensor float [*, M, N]
function M.matmul(a, b)
  return tensor.op("matmul", { tensor.id("matmul", "left", a), tensor.id("matmul", "right", b) })
end

---As tensor:reshape.
---@param x piper.Tensor
---@param shape piper.Shape with as many elements, for each sample where there is a batch
---@return piper.Tensor
function M.reshape(x, shape)
  return tensor.op("reshape", { tensor.id("reshape", "input", x) }, { shape = shape })
end

-- ---- sums and losses ----------------------------------------------------------------------------

---Sum of all elements, over the whole batch.
---@type fun(x: piper.Tensor): piper.Tensor float scalar
M.sum = unary "sum"

---Mean of all elements, over the whole batch.
---@type fun(x: piper.Tensor): piper.Tensor float scalar
M.mean = unary "mean"

---Sum of the squares of all elements, over the whole batch.
---@type fun(x: piper.Tensor): piper.Tensor float scalar
M.sum_squares = unary "sum_squares"

---Mean of (x - y)^2 over all elements of the whole batch.
---@param x piper.Tensor float [*]
---@param y piper.Tensor float, the same shape
---@return piper.Tensor float scalar
function M.mse(x, y)
  return tensor.op("mse", { tensor.id("mse", "left", x), tensor.id("mse", "right", y) })
end

---Mean of -log softmax(logits)[target] over all targets of the whole batch, in nats.
---@param logits piper.Tensor float [*, classes]
---@param targets piper.Tensor i32 [*], each from 0 to classes - 1
---@param options? {} none yet
---@return piper.Tensor float scalar
function M.cross_entropy(logits, targets, options)
  check.options("cross_entropy", options or {}, {})
  local id = tensor.id("cross_entropy", "logits", logits)
  return tensor.op("cross_entropy", { id, tensor.id("cross_entropy", "targets", targets) })
end

return M
