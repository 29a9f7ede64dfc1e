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

-- Features of the input of a layer: the length of its last axis, which is not the batch.
local function features(where, x)
  local shape = x.shape
  local width = shape[#shape]
  if math.type(width) ~= "integer" then
    check.fail("%s: input is %s: it has no axis of features after the batch", where, tensor.shape_text(x))
  end
  return width
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
  local width = features(where, x)
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

-- ---- norms and feed-forward layers ----------------------------------------------------------------

local RMSNORM = { eps = "number>=0?", init = "any?" }

---y = x / sqrt(mean of x^2 + eps) * w over the last axis, with the parameter <name>.weight [n].
---@param x piper.Tensor float [*, n]
---@param name string
---@param options? { eps?: number, init?: piper.Init } eps: default 1e-6; init: default 1
---@return piper.Tensor float [*, n]
function M.rmsnorm(x, name, options)
  local where = label("rmsnorm", name)
  options = check.options(where, options or {}, RMSNORM)
  local input = tensor.id(where, "input", x)
  local weight = params.get(where, name .. ".weight", { features(where, x) }, options.init, params.NORM)
  return tensor.op("rmsnorm", { input, weight._id }, { name = name, number = options.eps or 1e-6 })
end

local LAYERNORM = { eps = "number>=0?", bias = "boolean?", init = "any?" }

---y = (x - mean of x) / sqrt(variance of x + eps) * w + b over the last axis, with parameters
---<name>.weight [n] and <name>.bias [n].
---@param x piper.Tensor float [*, n]
---@param name string
---@param options? { eps?: number, bias?: boolean, init?: piper.Init } eps: default 1e-5; bias: default
---true; init is of both, default 1 for the weight and 0 for the bias
---@return piper.Tensor float [*, n]
function M.layernorm(x, name, options)
  local where = label("layernorm", name)
  options = check.options(where, options or {}, LAYERNORM)
  local input = tensor.id(where, "input", x)
  local shape = { features(where, x) }
  local weight = params.get(where, name .. ".weight", shape, options.init, params.NORM)
  local bias = options.bias ~= false and params.get(where, name .. ".bias", shape, options.init, params.BIAS)
  return tensor.op("layernorm", { input, weight._id, bias and bias._id },
    { name = name, number = options.eps or 1e-5 })
end

local SWIGLU = { hidden = "integer>=1", init = "any?" }

---down(silu(gate(x)) * up(x)): three linear layers without bias, with parameters <name>.gate_proj.weight
---and <name>.up_proj.weight [hidden, n] and <name>.down_proj.weight [n, hidden].
---@param x piper.Tensor float [*, n]
---@param name string
---@param options { hidden: integer, init?: piper.Init } init: of all three, default { normal = 0.02 }
---@return piper.Tensor float [*, n]
function M.swiglu(x, name, options)
  local where = label("swiglu", name)
  check.options(where, options, SWIGLU)
  tensor.id(where, "input", x)
  local width = features(where, x)
  local function project(input, part, out)
    return M.linear(input, name .. part, { out = out, bias = false, init = options.init })
  end
  local gate, up = project(x, ".gate_proj", options.hidden), project(x, ".up_proj", options.hidden)
  local hidden = tensor.op("swiglu", { gate._id, up._id }, { name = name })
  return project(hidden, ".down_proj", width)
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

---x Phi(x), Phi the normal distribution: the exact form (by erf, not tanh)
---@type fun(x: piper.Tensor): piper.Tensor
M.gelu = unary "gelu"

---x / (1 + e^-x)
---@type fun(x: piper.Tensor): piper.Tensor
M.silu = unary "silu"

---e^x over the sum of e^x along the last axis
---@type fun(x: piper.Tensor): piper.Tensor
M.softmax = unary "softmax"

---Each element becomes 0 with probability p, otherwise x / (1 - p). Which ones is decided by seed, step,
---place in the model and sample, so it depends on no strategy; run:evaluate drops none.
---@param x piper.Tensor float [*]
---@param p number 0 <= p < 1; 0 gives x itself
---@return piper.Tensor float [*]
function M.dropout(x, p)
  local input = tensor.id("dropout", "input", x)
  if type(p) ~= "number" or not (p >= 0 and p < 1) then
    check.fail("dropout: p is %s, not a number from 0 up to, not including, 1", check.show(p))
  end
  if p == 0 and x.dtype == "float" then return x end
  return tensor.op("dropout", { input }, { number = p })
end

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

---As tensor:transpose.
---@param x piper.Tensor
---@param a integer
---@param b integer
---@return piper.Tensor
function M.transpose(x, a, b)
  tensor.id("transpose", "input", x)
  return x:transpose(a, b)
end

---As tensor:slice.
---@param x piper.Tensor
---@param axis integer
---@param from integer
---@param to? integer
---@return piper.Tensor
function M.slice(x, axis, from, to)
  tensor.id("slice", "input", x)
  return x:slice(axis, from, to)
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

local CROSS_ENTROPY = { ignore_index = "integer?" }

---Mean of -log softmax(logits)[target] over the targets of the whole batch, in nats. Targets equal to
---ignore_index count as absent.
---@param logits piper.Tensor float [*, classes]
---@param targets piper.Tensor i32 [*], each from 0 to classes - 1 or ignore_index
---@param options? { ignore_index?: integer } default -100
---@return piper.Tensor float scalar
function M.cross_entropy(logits, targets, options)
  options = check.options("cross_entropy", options or {}, CROSS_ENTROPY)
  local ignore = options.ignore_index or -100
  if ignore < -0x80000000 or ignore > 0x7fffffff then
    check.fail("cross_entropy: ignore_index is %s, which no target of type i32 can be", check.show(ignore))
  end
  local id = tensor.id("cross_entropy", "logits", logits)
  return tensor.op("cross_entropy", { id, tensor.id("cross_entropy", "targets", targets) },
    { number = { 0, ignore, 1 } })
end

return M
