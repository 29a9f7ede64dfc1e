-- Tracing: names, tying, scopes, freezing, initial values, numbers in expressions, and the model object.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

-- A model whose loss is whatever fn returns, or a sum of its input.
local function model(fn, options)
  return piper.model("test", function(m)
    local x = m:input("x", { "batch", 4 })
    m:loss(fn(m, x) or nn.sum(x))
  end, options)
end

local function names(m)
  local list = {}
  for i, p in ipairs(m:params()) do list[i] = p.name end
  return table.concat(list, " ")
end

local function param(m, name)
  for _, p in ipairs(m:params()) do
    if p.name == name then return p end
  end
end

-- ---- names ----

local m = model(function(_, x)
  return nn.scope("layers.0", function()
    return nn.scope("mlp", function() return nn.sum(nn.linear(x, "up", { out = 3 })) end)
  end)
end)
tap.is(names(m), "layers.0.mlp.up.weight layers.0.mlp.up.bias", "scopes nest with dots")
tap.is(table.concat(param(m, "layers.0.mlp.up.weight").shape, " "), "3 4", "a weight is [out, in]")
tap.is(param(m, "layers.0.mlp.up.bias").elements, 3, "a bias is [out]")

m = model(function(_, x)
  pcall(nn.scope, "gone", function() error "in the scope" end)
  return nn.sum(nn.linear(x, "up", { out = 3, bias = false }))
end)
tap.is(names(m), "up.weight", "a scope ends with an error; no bias where none is asked for")

-- ---- tying ----

m = model(function(_, x)
  local h = nn.linear(x, "same", { out = 4 })
  return nn.sum(nn.linear(h, "same", { out = 4 }))
end)
tap.is(names(m), "same.weight same.bias", "the same name is the same parameter")

m = piper.model("tied", function(t)
  local ids = t:input("ids", { "batch", 5 }, "i32")
  local h = nn.embedding(ids, "embed", { vocab = 7, width = 3 })
  t:loss(nn.cross_entropy(nn.linear(h, "embed", { out = 7, bias = false }), ids))
end)
tap.is(names(m), "embed.weight", "an embedding and a head share a weight")

-- ---- freezing ----

m = model(function(t, x)
  t:freeze "^a%."
  local h = nn.linear(x, "a", { out = 4 })
  return nn.sum(nn.linear(h, "b", { out = 4 }))
end)
tap.ok(param(m, "a.weight").frozen and param(m, "a.bias").frozen, "a pattern freezes, also what is made later")
tap.ok(not param(m, "a.weight").trained, "a frozen parameter is not trained")
tap.ok(not param(m, "b.weight").frozen and param(m, "b.weight").trained, "what does not match is trained")

-- ---- initial values ----

local function init_of(p) return p.init .. " " .. tostring(p.init_arg) end
m = model(function(_, x)
  local h = nn.linear(x, "default", { out = 4 })
  h = nn.linear(h, "number", { out = 4, init = 2 })
  h = nn.linear(h, "normal", { out = 4, init = { normal = 0.5 } })
  h = nn.linear(h, "uniform", { out = 4, init = { uniform = 0.25 } })
  return nn.sum(h * nn.param("own", { 4 }))
end)
tap.is(init_of(param(m, "default.weight")), "normal 0.02", "weights begin normal")
tap.is(init_of(param(m, "default.bias")), "constant 0.0", "biases begin as zeros")
tap.is(init_of(param(m, "own")), "normal 0.02", "one's own parameters begin normal")
tap.is(init_of(param(m, "number.bias")), "constant 2.0", "init of a call is that of all its parameters")
tap.is(init_of(param(m, "normal.weight")), "normal 0.5", "normal")
tap.is(init_of(param(m, "uniform.weight")), "uniform 0.25", "uniform")

local seen = {}
m = model(function(_, x) return nn.sum(nn.linear(x, "l", { out = 2, init = 1 })) + nn.sum(nn.param("w", { 3 })) end,
  { init = function(i, name)
    seen[#seen + 1] = name .. i
    return i
  end })
tap.is(table.concat(seen, " "), "w0 w1 w2", "a function of the flat index; the call goes before the model")
tap.is(param(m, "w").init, "function", "its values are kept")
m = model(function(_, x) return nn.sum(nn.linear(x, "l", { out = 2 })) end, { init = 3 })
tap.is(init_of(param(m, "l.bias")), "constant 3.0", "init of a model is that of all parameters")
m = model(function(_, x)
  local h = nn.linear(x, "l", { out = 4, init = { normal = 1 } })
  return nn.sum(nn.linear(nn.linear(h, "l", { out = 4 }), "l", { out = 4, init = { normal = 1 } }))
end)
tap.is(init_of(param(m, "l.weight")), "normal 1.0", "a tied parameter keeps its first initial values")

-- ---- annotations ----

local function scopes(t)
  local list = {}
  for i, c in ipairs(t.graph:chunks()) do
    local tags = {}
    for k, tag in ipairs(c.tags) do tags[k] = tag.tag .. tag.index end
    list[i] = table.concat(tags, "+") .. ":" .. table.concat(c.ops, "+")
  end
  return table.concat(list, " ")
end

m = model(function(_, x)
  local h = piper.annotate("PP", function() return nn.relu(x) end)
  do
    local _ <close> = piper.annotate "PP"
    h = nn.relu(h)
    piper.annotate("EP", function() h = nn.relu(h) end)
    h = nn.relu(nn.relu(h))
  end
  return nn.sum(h)
end)
tap.is(scopes(m), "PP0:relu PP1:relu PP1+EP0:relu PP1:relu+relu :sum", "both forms; chunks are runs in the same scopes")

m = model(function(_, x)
  pcall(piper.annotate, "PP", function() error "in the scope" end)
  return nn.sum(nn.relu(x))
end)
tap.is(scopes(m), ":relu+sum", "a scope ends with an error")
tap.is(select("#", piper.model("values", function(t)
  local x = t:input("x", { "batch" })
  local a, b = piper.annotate("PP", function() return nn.relu(x), 7 end)
  tap.is(b, 7, "annotate returns what its function returns")
  t:loss(nn.sum(a))
end)), 1, "piper.model returns the model")

-- ---- tensors ----

piper.model("tensors", function(t)
  local x = t:input("x", { "batch", 6 })
  local ids = t:input("ids", { { "batch", 2 }, 3 }, "i32")
  tap.is(x.shape[1] .. " " .. x.shape[2], "batch 6", "a shape can be read")
  tap.is(ids.shape[1][1] .. " " .. ids.shape[1][2], "batch 2", "a multiple of the batch")
  tap.is(x.dtype .. " " .. ids.dtype, "float i32", "so can the type")
  tap.is(tostring(ids), "tensor [batch*2, 3] i32", "a tensor prints")
  tap.is(tostring(x:reshape { { "batch", 2 }, 3 }), "tensor [batch*2, 3] float", "reshape")
  tap.is(tostring(nn.reshape(ids, x.shape)), "tensor [batch, 6] i32", "a shape that was read can be written")
  tap.is(tostring(nn.sum(x):reshape {}), "tensor scalar float", "a scalar has no axes")
  tap.is(tostring(nn.matmul(x, nn.param("w", { 6, 2 }))), "tensor [batch, 2] float", "matmul")
  local y = x:reshape { "batch", 2, 3 }
  tap.is(tostring(y:transpose(1, 2)), "tensor [batch, 3, 2] float", "transpose")
  tap.is(tostring(nn.transpose(y, -1, -2)), "tensor [batch, 3, 2] float", "axes count from the end as well")
  tap.is(tostring(y:slice(2, 1, 3)), "tensor [batch, 2, 2] float", "slice")
  tap.is(tostring(nn.slice(y, -1, 1)), "tensor [batch, 2, 2] float", "up to the end")
  tap.is(tostring(ids:slice(1, 0, 2)), "tensor [batch*2, 2] i32", "a slice of ids")
  tap.is(nn.dropout(y, 0), y, "dropout of 0 is the identity")
  t:loss(nn.mse(x, nn.relu(x)))
end)

local function ops(fn)
  local list = {}
  for i, op in ipairs(model(fn).graph:chunks()[1].ops) do list[i] = op end
  return table.concat(list, " ")
end
tap.is(ops(function(_, x) return nn.sum(-x * 3) end), "scale scale sum", "times a number is one op")
tap.is(ops(function(_, x) return nn.sum(2 * x) end), "scale sum", "from either side")
tap.is(ops(function(_, x) return nn.sum(x + 1) end), "fill add sum", "plus a number")
tap.is(ops(function(_, x) return nn.sum(1 / x - 2) end), "fill div fill sub sum", "a number divided, minus a number")
tap.is(ops(function(_, x) return nn.sum(nn.mul(x, x) / nn.add(x, x)) end), "mul add div sum", "tensors with tensors")
tap.is(ops(function(_, x) return nn.sum(x) + 1 end), "sum fill once add", "a number enters a sum over the batch once")
tap.is(ops(function(_, x) return nn.scale(nn.mean(x), 2) end), "mean scale", "scale")

-- ---- layers ----

m = model(function(_, x)
  local h = nn.rmsnorm(x, "a")
  h = nn.layernorm(h, "b")
  h = nn.layernorm(h, "c", { bias = false, eps = 1e-3 })
  h = nn.rmsnorm(h, "d", { init = { normal = 1 } })
  return nn.sum(nn.swiglu(h, "ffn", { hidden = 6 }))
end)
tap.is(names(m), "a.weight b.weight b.bias c.weight d.weight ffn.gate_proj.weight ffn.up_proj.weight ffn.down_proj.weight",
  "parameters of layers")
tap.is(init_of(param(m, "a.weight")), "constant 1.0", "norms begin as ones")
tap.is(init_of(param(m, "b.bias")), "constant 0.0", "their biases as zeros")
tap.is(init_of(param(m, "d.weight")), "normal 1.0", "or as init says")
tap.is(table.concat(param(m, "ffn.gate_proj.weight").shape, " "), "6 4", "gate and up widen")
tap.is(table.concat(param(m, "ffn.down_proj.weight").shape, " "), "4 6", "down narrows")
tap.is(ops(function(_, x) return nn.sum(nn.swiglu(x, "f", { hidden = 2 })) end), "linear linear swiglu linear sum",
  "swiglu is three linear layers and one op")
tap.is(ops(function(_, x) return nn.sum(nn.dropout(nn.softmax(nn.silu(nn.gelu(x))), 0.5)) end),
  "gelu silu softmax dropout sum", "activations, softmax, dropout")

m = model(function(t)
  local h = t:input("h", { "batch", 5, 12 })
  h = nn.attention(h, "self_attn", { heads = 4, kv_heads = 2, head_width = 6, rope = 1e6, qk_norm = true })
  tap.is(tostring(h), "tensor [batch, 5, 12] float", "attention keeps the shape")
  h = nn.attention(h, "plain", { heads = 3, head_width = 2, bias = true, init = 0.5 })
  return nn.sum(h)
end)
tap.is(names(m), "self_attn.q_proj.weight self_attn.q_norm.weight self_attn.k_proj.weight self_attn.k_norm.weight "
  .. "self_attn.v_proj.weight self_attn.o_proj.weight plain.q_proj.weight plain.q_proj.bias plain.k_proj.weight "
  .. "plain.k_proj.bias plain.v_proj.weight plain.v_proj.bias plain.o_proj.weight plain.o_proj.bias",
  "parameters of attention")
tap.is(table.concat(param(m, "self_attn.q_proj.weight").shape, " "), "24 12", "queries of all heads")
tap.is(table.concat(param(m, "self_attn.v_proj.weight").shape, " "), "12 12", "keys and values of fewer")
tap.is(table.concat(param(m, "self_attn.o_proj.weight").shape, " "), "12 24", "back to the features")
tap.is(table.concat(param(m, "self_attn.k_norm.weight").shape, " "), "6", "norms of one head")
tap.is(init_of(param(m, "self_attn.q_norm.weight")), "constant 1.0", "which begin as ones")
tap.is(init_of(param(m, "plain.o_proj.bias")), "constant 0.5", "init is of weights and biases")
model(function(t)
  local x = t:input("y", { "batch", 2, 3, 4 })
  tap.is(tostring(nn.rope(x)), "tensor [batch, 2, 3, 4] float", "rope keeps the shape")
  tap.is(tostring(nn.attention(x, "a", { heads = 2, head_width = 1 })), "tensor [batch, 2, 3, 4] float",
    "any leading axes")
  nn.attention(t:input("z", { "batch", 3, 12 }), "divided", { heads = 3, kv_heads = 1 })
  local shapes = {}
  for _, part in ipairs { "q", "k", "o" } do
    shapes[#shapes + 1] = table.concat(param(t, "divided." .. part .. "_proj.weight").shape, " ")
  end
  tap.is(table.concat(shapes, ", "), "12 12, 4 12, 12 12", "heads divide the features where head_width is not given")
end)

-- ---- losses, flops, the object ----

m = piper.model("losses", function(t)
  local x = t:input("x", { "batch", 4 })
  local a = nn.sum_squares(x)
  t:loss(a)
  t:loss(nn.sum(nn.param("w", { 2 })))
  tap.is(t.losses[1], a, "m.losses lists the losses")
end)
tap.is(#m.losses, 2, "several losses")
tap.is(m.graph:chunks()[1].ops[3], "once", "a loss that does not depend on the batch is evaluated once")

m = model(function(_, x) return nn.sum(nn.linear(nn.linear(x, "a", { out = 5, bias = false }), "b", { out = 3, bias = false })) end)
local total, forward, backward = m:flops(2)
tap.is(forward, 2 * 2 * (4 * 5 + 5 * 3) + 2 * 3, "flops forward: 2 a multiply-add, 1 an addition")
tap.is(backward, 2 * 2 * (4 * 5 + 2 * 5 * 3), "flops backward: no gradient of the input")
tap.is(total, forward + backward, "flops of a step")
tap.is(math.type(total), "integer", "flops are whole")
tap.is(m.graph:tokens_per_sample(), 1, "without ids a token is a sample")
tap.error_matches(function() return piper.modle end, 'piper: there is no "modle" %(did you mean "model"%?%)$', "an unknown part")

tap.done()
