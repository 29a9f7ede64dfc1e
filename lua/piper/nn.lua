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

-- ---- attention ----------------------------------------------------------------------------------

local ROPE = { base = "number>0?" }

---Rotary position embedding, as published checkpoints have it: of each head numbers i and i + width / 2
---turn together by the angle position * base^(-2 i / width), positions from 0.
---@param x piper.Tensor float [*, positions, heads, width], width even
---@param options? { base?: number } default 10000
---@return piper.Tensor float, the same shape
function M.rope(x, options)
  options = check.options("rope", options or {}, ROPE)
  return tensor.op("rope", { tensor.id("rope", "input", x) }, { number = options.base or 10000 })
end

local ATTENTION = {
  heads = "integer>=1", kv_heads = "integer>=1?", head_width = "integer>=1?", causal = "boolean?",
  rope = "number>0|boolean?", qk_norm = "boolean?", bias = "boolean?", init = "any?",
}

-- Heads, heads of keys and values, and the width of one; 'width': of the input.
local function attention_options(where, options, width)
  local heads, kv_heads = options.heads, options.kv_heads or options.heads
  if heads % kv_heads ~= 0 then
    check.fail('%s: field "kv_heads" is %d, which does not divide heads = %d', where, kv_heads, heads)
  end
  if options.rope == true then
    check.fail('%s: field "rope" is true, not the base of a rotary embedding, such as 10000', where)
  end
  if not options.head_width and width % heads ~= 0 then
    check.fail('%s: heads is %d, which does not divide the %d features: give "head_width"', where, heads, width)
  end
  local head_width = options.head_width or width // heads
  if options.rope and head_width % 2 ~= 0 then
    check.fail('%s: field "head_width" is %d%s: rope turns pairs, so it is to be even', where, head_width,
      options.head_width and "" or (" (%d features / %d heads)"):format(width, heads))
  end
  return heads, kv_heads, head_width
end

---Self-attention: softmax(q k^T / sqrt(head_width)) v of each head, between linear layers with
---parameters <name>.q_proj.weight [heads * head_width, n], <name>.k_proj.weight and <name>.v_proj.weight
---[kv_heads * head_width, n] and <name>.o_proj.weight [n, heads * head_width].
---@param x piper.Tensor float [*, positions, n]
---@param name string
---@param options { heads: integer, kv_heads?: integer, head_width?: integer, causal?: boolean, rope?: number|false, qk_norm?: boolean, bias?: boolean, init?: piper.Init }
---kv_heads: default heads, which it divides; head h reads key and value head h * kv_heads // heads;
---head_width: default n / heads, where that divides;
---causal: default true, a position sees itself and those before it; rope: base of a rotary embedding of q
---and k, default none; qk_norm: default false, else rmsnorm of each head of q and k before it, with
---<name>.q_norm.weight and <name>.k_norm.weight [head_width]; bias: default false, else of all four
---layers; init: of their weights and biases, default { normal = 0.02 } and 0
---@return piper.Tensor float [*, positions, n]
function M.attention(x, name, options)
  local where = label("attention", name)
  check.options(where, options, ATTENTION)
  tensor.id(where, "input", x)
  local width, leading = features(where, x), x.shape
  local n_heads, n_kv_heads, head_width = attention_options(where, options, width)
  leading[#leading] = nil
  if math.type(leading[#leading]) ~= "integer" then
    check.fail("%s: input is %s: it has no axis of positions between the batch and the features", where,
      tensor.shape_text(x))
  end
  local function shaped(h, ...)
    local shape = { table.unpack(leading) }
    for _, n in ipairs { ... } do shape[#shape + 1] = n end
    return h:reshape(shape)
  end
  local function project(input, part, out)
    return M.linear(input, name .. part, { out = out, bias = options.bias == true, init = options.init })
  end
  local function heads_of(part, heads)
    return shaped(project(x, part, heads * head_width), heads, head_width)
  end
  -- Order and angle of positions enter q and k alone.
  local function placed(h, norm)
    if options.qk_norm then h = M.rmsnorm(h, name .. norm) end
    return options.rope and M.rope(h, { base = options.rope }) or h
  end
  local q = placed(heads_of(".q_proj", n_heads), ".q_norm")
  local k = placed(heads_of(".k_proj", n_kv_heads), ".k_norm")
  local v = heads_of(".v_proj", n_kv_heads)
  local y = tensor.op("attention", { q._id, k._id, v._id },
    { name = name, number = options.causal ~= false and 1 or 0 })
  return project(shaped(y, n_heads * head_width), ".o_proj", width)
end

-- ---- mixture of experts -------------------------------------------------------------------------

local MOE = {
  experts = "integer>=1", top_k = "integer>=1", width = "integer>=1", capacity_factor = "any?",
  normalize = "boolean?", aux = "number>=0?", init = "any?",
}

-- Tokens of a sample (S) and places in an expert's block, from the options of moe.
local function moe_sizes(where, x, options)
  local shape, tokens = x.shape, 1
  local batch = shape[1]
  if math.type(batch) == "integer" or batch == nil then
    check.fail("%s: input is %s: it has no batch, and experts are chosen in each sample", where, tensor.shape_text(x))
  end
  features(where, x)
  if type(batch) == "table" then tokens = batch[2] end
  for i = 2, #shape - 1 do tokens = tokens * shape[i] end
  if options.top_k > options.experts then
    check.fail("%s: top_k is %d, but there are %d experts", where, options.top_k, options.experts)
  end
  local factor = options.capacity_factor
  if factor == nil or factor == "none" then return tokens, tokens end
  if type(factor) ~= "number" or not (factor > 0 and factor < math.huge) then
    check.fail('%s: capacity_factor is %s: it is a number above 0, or "none"', where, check.show(factor))
  end
  local capacity = math.ceil(factor * options.top_k * tokens / options.experts)
  return tokens, math.min(capacity, tokens) -- no expert gets more than all tokens
end

---A mixture of experts: each token goes to top_k of the experts, which are swiglu layers, and gets the
---sum of their outputs weighted by the router's probabilities softmax(x W^T), W the parameter
---<name>.gate.weight [experts, n]. Equal probabilities go to the lower expert. Experts have parameters
---<name>.experts.<i>.gate_proj.weight and .up_proj.weight [width, n], .down_proj.weight [n, width]; they
---compute in an EP scope of their own.
---
---Each sample is for itself: of its tokens each expert takes the first ceil(capacity_factor * top_k *
---tokens / experts) that chose it, the others are dropped there and counted in the metrics (m.dropped).
---With aux > 0 a loss is added: aux * experts * sum over experts of (fraction of the choices that fell
---on it, dropped ones included * mean probability), for each sample, averaged over the batch.
---@param x piper.Tensor float [batch, *, n]
---@param name string
---@param options { experts: integer, top_k: integer, width: integer, capacity_factor?: number|"none", normalize?: boolean, aux?: number, init?: piper.Init }
---capacity_factor: default "none", which drops nothing; normalize: whether the weights of a token's
---experts are made to sum to 1, default true; aux: default 0; init: of all parameters, default
---{ normal = 0.02 }
---@return piper.Tensor float, x's shape
function M.moe(x, name, options)
  local where = label("moe", name)
  check.options(where, options, MOE)
  tensor.id(where, "input", x)
  local tokens, capacity = moe_sizes(where, x, options)
  local experts, top_k, shape = options.experts, options.top_k, x.shape
  if experts > 4096 or experts * capacity > 0x7fffffff then
    check.fail("%s: %d experts for up to %d tokens each are too many", where, experts, capacity)
  end
  local model, width = trace.current(where), shape[#shape]
  local function op(kind, operands, ...)
    local ids = {}
    for i, t in ipairs(operands) do ids[i] = t._id end
    return tensor.op(kind, ids, { name = name, number = { ... } })
  end

  if #shape ~= 3 then x = x:reshape { "batch", tokens, width } end
  local logits = M.linear(x, name .. ".gate", { out = experts, bias = false, init = options.init })
  local slots = op("route", { logits }, top_k, capacity)
  local weights = op("gate", { logits, slots }, options.normalize == false and 0 or 1, capacity)
  if (options.aux or 0) > 0 then model:loss(op("balance", { logits, slots }, 0, capacity) * options.aux) end
  local blocks = op("dispatch", { x, slots }, experts, 1 + capacity)

  local gate, up, down = {}, {}, {}
  for i = 1, experts do
    local expert = ("%s.experts.%d."):format(name, i - 1)
    local function weight(part, out, inner)
      return params.get(where, expert .. part .. "_proj.weight", { out, inner }, options.init, params.WEIGHT)._id
    end
    gate[i], up[i] = weight("gate", options.width, width), weight("up", options.width, width)
    down[i] = weight("down", width, options.width)
  end
  do
    local _ <close> = require "piper.annotate"("EP")
    local function product(rows, stack, ends)
      return op("expert_linear", { rows, tensor.new(model, model.graph:add_stack(stack)), ends })
    end
    local ends = op("expert_ends", { blocks })
    local rows = op("pack", { blocks, ends }, math.min(experts * capacity, top_k * tokens))
    local hidden = op("expert_swiglu", { product(rows, gate, ends), product(rows, up, ends), ends })
    blocks = op("unpack", { product(hidden, down, ends), ends }, 1 + capacity)
  end
  local y = op("combine", { blocks, weights, slots })
  return #shape ~= 3 and y:reshape(shape) or y
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

return check.strict(M, "nn")
