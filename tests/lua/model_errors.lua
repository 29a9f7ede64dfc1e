-- What a script can get wrong while tracing: each message, with the line of the mistake.
local tap = require "tap"
local piper = require "piper"
local nn = piper.nn

local here = debug.getinfo(1, "S").short_src

-- 'fn' (one line) fails there with 'message'.
local function fails(fn, message)
  local fine, err = pcall(fn)
  local line = debug.getinfo(fn, "S").linedefined
  tap.is(fine and "no error" or err, ("%s:%d: %s"):format(here, line, message), message)
end

local inputs_line = debug.getinfo(1, "l").currentline + 6

-- The same inside a model, where fn gets the model and some tensors.
local function bad(fn, message)
  local line = debug.getinfo(fn, "S").linedefined
  local fine, err = pcall(piper.model, "test", function(m)
    local x, ids = m:input("x", { "batch", 7, 4 }), m:input("ids", { "batch", 7 }, "i32")
    fn(m, x, ids, nn.param("w", { 5, 4 }))
  end)
  tap.is(fine and "no error" or err, ("%s:%d: %s"):format(here, line, message), message)
end

local MIXES = "this would mix samples; only sum, mean and losses may combine those of the batch"
local LINEAR = "only linear ops may follow it, or splitting the batch would change the result"

-- ---- shapes that do not fit, in each op ----

bad(function(_, x) nn.linear(nn.linear(x, "a", { out = 3 }), "a", { out = 3 }) end,
  'linear "a": input is [batch, 7, 3], weight is [3, 4]: 3 is not 4')
bad(function(_, x) nn.linear(nn.sum(x), "a", { out = 3 }) end,
  'linear "a": input is scalar: it has no axis of features after the batch')
bad(function(_, x, ids, w) nn.matmul(x, w) end, "matmul: left is [batch, 7, 4], right is [5, 4]: 4 is not 5")
bad(function(_, x, ids, w) nn.add(x, w) end, "add: left is [batch, 7, 4], right is [5, 4]: 7 is not 5")
bad(function(_, x, ids, w) return x - w end, "sub: left is [batch, 7, 4], right is [5, 4]: 7 is not 5")
bad(function(_, x, ids, w) return w * x end, "mul: left is [5, 4], right is [batch, 7, 4]: 5 is not 7")
bad(function(_, x, ids, w) return x / w end, "div: left is [batch, 7, 4], right is [5, 4]: 7 is not 5")
bad(function(_, x) x:reshape { "batch", 27 } end, "reshape: [batch, 7, 4] has 28 elements a sample, [batch, 27] has 27")
bad(function(_, x, ids, w) nn.mse(x, w) end, "mse: left is [batch, 7, 4], right is [5, 4]: their numbers of axes differ")
bad(function(_, x, ids) nn.cross_entropy(x:reshape { { "batch", 14 }, 2 }, ids) end,
  "cross_entropy: logits are [batch*14, 2], targets are [batch, 7]: their leading axes differ")
bad(function(_, x, ids, w) nn.rmsnorm(x, "n"); nn.rmsnorm(w:slice(1, 0, 3), "n") end,
  ('rmsnorm "n": parameter "n.weight" is [3] here, but [4] at %s:%d: one name is one parameter'):format(here,
    debug.getinfo(1, "l").currentline - 2))
bad(function(_, x) nn.layernorm(nn.sum(x), "n") end,
  'layernorm "n": input is scalar: it has no axis of features after the batch')
bad(function(_, x) nn.swiglu(nn.sum(x), "n", { hidden = 3 }) end,
  'swiglu "n": input is scalar: it has no axis of features after the batch')
bad(function(_, x) nn.rope(x:reshape { "batch", 7, 4, 1 }) end,
  "rope: input is [batch, 7, 4, 1]: pairs of the last axis are turned, and 1 is odd")
bad(function(_, x) nn.rope(x) end, "rope: input is [batch, 7, 4]: " .. MIXES)
bad(function(_, x) nn.attention(x:reshape { { "batch", 7 }, 4 }, "a", { heads = 2, head_width = 2 }) end,
  'attention "a": input is [batch*7, 4]: it has no axis of positions between the batch and the features')
bad(function(_, x) x:transpose(1, 3) end, "transpose: input is [batch, 7, 4], which has no axis 3 (they count from 0)")
bad(function(_, x) x:transpose(-4, 1) end, "transpose: input is [batch, 7, 4], which has no axis -1 (they count from 0)")
bad(function(_, x) x:slice(1, 5, 8) end,
  "slice: input is [batch, 7, 4]: positions from 5 up to, not including, 8 of axis 1, which has 7 from 0")
bad(function(_, x) x:slice(2, 4) end,
  "slice: input is [batch, 7, 4]: positions from 4 up to, not including, 4 of axis 2, which has 4 from 0")
bad(function(m) m:loss(nn.param("v", { 2 })) end,
  "loss: value is [2], and a loss is a scalar: reduce it with sum, mean or another loss")

-- ---- types ----

bad(function(_, _, ids) nn.linear(ids, "a", { out = 3 }) end, 'linear "a": input is i32; it must be floating point')
bad(function(_, x, ids) nn.matmul(x, ids) end, "matmul: right is i32; it must be floating point")
bad(function(_, x) nn.embedding(x, "e", { vocab = 3, width = 2 }) end,
  'embedding "e": ids are floating point; they must be i32')
bad(function(_, _, ids) nn.relu(ids) end, "relu: input is i32; it must be floating point")
bad(function(_, _, ids) nn.gelu(ids) end, "gelu: input is i32; it must be floating point")
bad(function(_, _, ids) nn.silu(ids) end, "silu: input is i32; it must be floating point")
bad(function(_, _, ids) nn.softmax(ids) end, "softmax: input is i32; it must be floating point")
bad(function(_, _, ids) nn.dropout(ids, 0) end, "dropout: input is i32; it must be floating point")
bad(function(_, _, ids) nn.rmsnorm(ids, "n") end, 'rmsnorm "n": input is i32; it must be floating point')
bad(function(_, _, ids) nn.layernorm(ids, "n") end, 'layernorm "n": input is i32; it must be floating point')
bad(function(_, _, ids) return ids + 1 end, "add: left is i32; it must be floating point")
bad(function(_, _, ids) return ids * 2 end, "scale: input is i32; it must be floating point")
bad(function(_, _, ids) nn.sum(ids) end, "sum: input is i32; it must be floating point")
bad(function(_, _, ids) nn.mean(ids) end, "mean: input is i32; it must be floating point")
bad(function(_, _, ids) nn.sum_squares(ids) end, "sum_squares: input is i32; it must be floating point")
bad(function(_, x, ids) nn.mse(ids, x) end, "mse: left is i32; it must be floating point")
bad(function(_, x) nn.cross_entropy(x, x) end, "cross_entropy: targets are floating point; they must be i32")
bad(function(m) m:input("y", { "batch" }, "i64") end,
  'input "y": argument 3 (dtype) is "i64", not one of "f32", "f64", "i32", "float" (did you mean "f64"?)')

-- ---- samples ----

bad(function(m) nn.linear(m:input("v", { "batch" }), "a", { out = 3 }) end,
  'linear "a": input is [batch]: it has no axis of features after the batch')
bad(function(m, x) nn.matmul(nn.param("p", { 3, 5 }), m:input("v", { "batch", 2 })) end, "matmul: right is [batch, 2]: " .. MIXES)
bad(function(m, x, ids) nn.cross_entropy(m:input("v", { "batch" }), ids) end, "cross_entropy: logits are [batch]: " .. MIXES)
bad(function(m, x) return x + m:input("v", { "batch" }) end, "add: left is [batch, 7, 4], right is [batch]: 4 is not batch")
bad(function(_, x) return x + nn.param("p", { 3, 7, 4 }) end, "add: left is [batch, 7, 4], right is [3, 7, 4]: batch is not 3")
bad(function(_, x) x:reshape { 7, 4 } end,
  "reshape: input is [batch, 7, 4], and [7, 4] has no batch: it must stay the outermost axis")
bad(function(_, x) x:reshape { 7, "batch", 4 } end, "reshape: axis 1 is the batch, which must be the first")
bad(function(m) nn.softmax(m:input("v", { "batch" })) end, "softmax: input is [batch]: " .. MIXES)
bad(function(m) nn.rmsnorm(m:input("v", { "batch" }), "n") end,
  'rmsnorm "n": input is [batch]: it has no axis of features after the batch')
bad(function(_, x) x:transpose(0, 1) end,
  "transpose: input is [batch, 7, 4]: axis 0 is the batch, which has to stay as it is")
bad(function(_, x) x:slice(0, 0, 1) end, "slice: input is [batch, 7, 4]: axis 0 is the batch, which has to stay as it is")
bad(function(_, x) x:slice(0, 0) end, "slice: input is [batch, 7, 4]: axis 0 is the batch, which has to stay as it is")
bad(function(_, x) piper.annotate("EP", function() return nn.dropout(x, 0.5) end) end,
  'dropout: inside "EP", where experts see the tokens of all samples mixed: which sample one belongs to is not known there')
bad(function(_, x) nn.gelu(nn.sum(x)) end, "gelu: input is a sum over the batch; " .. LINEAR)
bad(function(_, x) nn.relu(nn.sum(x)) end, "relu: input is a sum over the batch; " .. LINEAR)
bad(function(_, x) return nn.sum(x) * nn.mean(x) end,
  "mul: both operands are sums over the batch, and a product of them mixes samples; " .. LINEAR)
bad(function(_, x) return x / nn.sum(x) end, "div: right is a sum over the batch, left is a value for each sample: this mixes samples")

-- ---- sizes ----

local AXIS = 'an axis is a whole number, "batch" or { "batch", k }'
bad(function(m) m:input("y", { "batch", 0 }) end, 'input "y": axis 1 is 0; it must be at least 1')
bad(function(m) m:input("y", { "batch", -3 }) end, 'input "y": axis 1 is -3; it must be at least 1')
bad(function(m) m:input("y", { "batch", 1.5 }) end, 'input "y": axis 1 is 1.5; an axis is a whole number')
bad(function(m) m:input("y", { "btch", 2 }) end, 'input "y": axis 0 is "btch"; ' .. AXIS)
bad(function(m) m:input("y", { { "batch", 0.5 } }) end, 'input "y": axis 0 is a table; ' .. AXIS)
bad(function(m) m:input("y", { { "batch", 0 } }) end, 'input "y": axis 0 is 0; it must be at least 1')
bad(function(m) m:input("y", { 0 / 0 }) end, ('input "y": axis 0 is %s; %s'):format(0 / 0, AXIS))
bad(function(m) m:input("y", { "batch", 1e300 }) end, 'input "y": axis 1 is 1e+300; an axis is a whole number')
bad(function(m) m:input("y", { "batch", 2, extra = 1 }) end, 'input "y": shape has fields besides its 2 axes')
bad(function(m) m:input("y", { "batch", 1, 1, 1, 1, 1, 1 }) end, 'input "y": 7 axes; there can be 6')
bad(function(m) m:input("y", { 3, 2 }) end,
  'input "y": the first axis must be "batch" or { "batch", k }: an input is data for each sample')
bad(function(m) m:input("y") end, 'input "y": shape is nil; it is a list such as { "batch", 128 }')
bad(function() nn.param("p", { 1 << 40, 1 << 40 }) end,
  'param: parameter "p": [1099511627776, 1099511627776] has more than 2^48 elements')
bad(function() nn.param("p", { "batch", 2 }) end, 'param: parameter "p": a parameter has no batch axis')
bad(function(_, x) nn.linear(x, "a", { out = 2.5 }) end, 'linear "a": field "out" is 2.5, not a whole number of at least 1')

-- ---- names ----

bad(function() nn.param("w", { 5, 3 }) end,
  ('param: parameter "w" is [5, 3] here, but [5, 4] at %s:%d: one name is one parameter'):format(here, inputs_line + 1))
bad(function(_, x) nn.linear(x, "a", { out = 3 }); nn.linear(x, "a", { out = 2 }) end,
  ('linear "a": parameter "a.weight" is [2, 4] here, but [3, 4] at %s:%d: one name is one parameter'):format(here,
    debug.getinfo(1, "l").currentline - 2))
bad(function(m) m:input("w", { "batch" }) end, ('input "w": a parameter is called so (%s:%d)'):format(here, inputs_line + 1))
bad(function(m) m:input("x", { "batch" }) end, ('input "x": there is one already (%s:%d)'):format(here, inputs_line))
bad(function() nn.param("x", { 2 }) end, ('param: parameter "x": an input is called so (%s:%d)'):format(here, inputs_line))
bad(function(_, x) nn.linear(x, "", { out = 3 }) end,
  'linear: argument 2 (name) is ""; it has 1 to 128 characters, no blanks and no quotes')
bad(function(_, x) nn.linear(x, { out = 3 }) end, "linear: argument 2 (name) is { out = 3 }, not a string")
bad(function(m, x) m:loss(nn.sum(x)) m:freeze "^head%." end, 'freeze: pattern "^head%." matches no parameter (w)')
bad(function(m) m:freeze "[" end, 'freeze: malformed pattern (missing \']\') in "["')

-- ---- initial values ----

local FORMS = "a number, { normal = s }, { uniform = a } or a function of the flat index"
bad(function() nn.param("p", { 2 }, { init = "zeros" }) end, 'param: init is "zeros", not ' .. FORMS)
bad(function() nn.param("p", { 2 }, { init = { gaussian = 1 } }) end, "param: init is { gaussian = 1 }, not " .. FORMS)
bad(function() nn.param("p", { 2 }, { init = { normal = -1 } }) end, "param: init normal is -1, not a number of at least 0")
bad(function() nn.param("p", { 2 }, { init = { normal = 0 / 0 } }) end,
  "param: init normal is nan, not a number of at least 0")
bad(function() nn.param("p", { 2 }, { init = function() return "1" end }) end,
  'param: parameter "p": the init function gave "1" for element 0, not a number')
bad(function() nn.param("p", { 2 }, { init = 1 }) nn.param("p", { 2 }, { init = 2 }) end,
  ('param: parameter "p" has its initial values from %s:%d; the same name is the same parameter'):format(here,
    debug.getinfo(1, "l").currentline - 2))

-- ---- options and arguments ----

bad(function(_, x) nn.linear(x, "a", { outt = 3 }) end, 'linear "a": unknown field "outt" (did you mean "out"?)')
bad(function(_, x) nn.linear(x, "a", {}) end, 'linear "a": field "out" is missing: it is a whole number of at least 1')
bad(function(_, x) nn.linear(x, "a") end, 'linear "a": expects a table of options, not nil')
bad(function() nn.relu(nil) end, "relu: input is nil, not a tensor")
bad(function(_, x) return x + "1" end, 'add: right is "1", not a tensor or a number')
bad(function() nn.add(1, 2) end, "add: left is 1, right is 2: one must be a tensor")
bad(function(_, x) nn.scale(x, "2") end, 'scale: factor is "2", not a number')
bad(function(_, x) nn.dropout(x) end, "dropout: p is nil, not a number from 0 up to, not including, 1")
bad(function(_, x) nn.dropout(x, 1) end, "dropout: p is 1, not a number from 0 up to, not including, 1")
bad(function(_, x) nn.rmsnorm(x, "n", { epsilon = 1 }) end, 'rmsnorm "n": unknown field "epsilon" (fields: eps, init)')
bad(function(_, x) nn.rmsnorm(x, "n", { eps = -1 }) end, 'rmsnorm "n": field "eps" is -1, not a number of at least 0')
bad(function(_, x) nn.layernorm(x, "n", { bias = 0 }) end, 'layernorm "n": field "bias" is 0, not true or false')
bad(function(_, x) nn.swiglu(x, "n") end, 'swiglu "n": expects a table of options, not nil')
bad(function(_, x) nn.swiglu(x, "n", { width = 2 }) end, 'swiglu "n": unknown field "width" (fields: hidden, init)')
bad(function(_, x) nn.rope(x, { bass = 1 }) end, 'rope: unknown field "bass" (did you mean "base"?)')
bad(function(_, x) nn.rope(x:reshape { "batch", 7, 2, 2 }, { base = 0 }) end, 'rope: field "base" is 0, not a number above 0')
bad(function(_, x) nn.attention(x:reshape { "batch", 7, 4 }, "a", { heads = 3 }) end,
  'attention "a": heads is 3, which does not divide the 4 features: give "head_width"')
bad(function(_, x) nn.attention(x:reshape { "batch", 7, 4 }, "a", { heads = 4, rope = 1e4 }) end,
  'attention "a": field "head_width" is 1 (4 features / 4 heads): rope turns pairs, so it is to be even')
bad(function(_, x) nn.attention(x, "a", { heads = 4, kv_heads = 3, head_width = 2 }) end,
  'attention "a": field "kv_heads" is 3, which does not divide heads = 4')
bad(function(_, x) nn.attention(x, "a", { heads = 2, head_width = 2, rope = true }) end,
  'attention "a": field "rope" is true, not the base of a rotary embedding, such as 10000')
bad(function(_, x) nn.attention(x, "a", { heads = 2, head_width = 3, rope = 1e4 }) end,
  'attention "a": field "head_width" is 3: rope turns pairs, so it is to be even')
bad(function(_, x) nn.attention(x, "a", { heads = 2, head_width = 2, qknorm = true }) end,
  'attention "a": unknown field "qknorm" (did you mean "qk_norm"?)')
bad(function(_, x) x:transpose(1) end, "transpose: argument 2 (axis) is missing: it is a whole number")
bad(function(_, x) nn.transpose(1, 2, 3) end, "transpose: input is 1, not a tensor")
bad(function(_, x) nn.slice(x, 1, "0") end, 'slice: argument 2 (from) is "0", not a whole number')
bad(function(_, x, ids) nn.cross_entropy(x, ids, { ignore_index = 1 << 40 }) end,
  "cross_entropy: ignore_index is 1099511627776, which no target of type i32 can be")
bad(function(_, x) return x.shap end, 'tensor: no field "shap" (did you mean "shape"?)')
bad(function(_, x) x.shape = {} end, 'tensor: field "shape" cannot be set')
bad(function(m) m:loss(1) end, "loss: value is 1, not a tensor")
bad(function(_, x, ids) nn.cross_entropy(x, ids, { ignore = 1 }) end,
  'cross_entropy: unknown field "ignore" (fields: ignore_index)')

-- ---- scopes ----

bad(function() piper.annotate("PP", function() piper.annotate("PP", function() end) end) end,
  ('annotate: "PP" is inside "PP" already (entered at %s:%d)'):format(here, debug.getinfo(1, "l").currentline - 1))
bad(function() piper.annotate("PP", nil) end, "annotate: argument 2 is nil, not a function")
bad(function() piper.annotate("P P", function() end) end, 'annotate: tag is "P P"; it is a word of letters, digits and _')
bad(function() piper.annotate("PASS", function() end) end, 'annotate: "PASS" cannot be a tag: in filters it says which pass')
bad(function() piper.annotate(3) end, "annotate: argument 1 (tag) is 3, not a string")
bad(function() piper.annotate("PP", function() local _ = piper.annotate "EP" end) end,
  ('annotate: "PP" ends while "EP" inside it is still open (entered at %s:%d)'):format(here,
    debug.getinfo(1, "l").currentline - 2))
bad(function() nn.scope("a") end, "scope: argument 2 is missing: it is a function")
fails(function() piper.annotate("PP", function() end) end,
  "annotate: outside a model: it belongs in the function given to piper.model")
fails(function() nn.param("p", { 2 }) end, "param: outside a model: it belongs in the function given to piper.model")

-- ---- whole models ----

local function incomplete(m) return nn.sum(m:input("x", { "batch" })) end
fails(function() piper.model("none", incomplete) end, 'model "none": no loss: say which value to minimise with m:loss(x)')
fails(function() piper.model("unused", function(m) m:loss(incomplete(m)) nn.param("w", { 2 }) end) end,
  ('model "unused": parameter "w" (made at %s:%d) is never used'):format(here, debug.getinfo(1, "l").currentline - 1))
fails(function() piper.model("open", function(m) local _ = piper.annotate "PP" m:loss(incomplete(m)) end) end,
  ('annotate: "PP" (entered at %s:%d) is still open at the end of the model; write local _ <close> = piper.annotate("PP")')
  :format(here, debug.getinfo(1, "l").currentline - 2))
fails(function() piper.model("test", function() piper.model("inner", function() end) end) end,
  'model: "inner" is inside the function of model "test"')
fails(function() piper.model("test") end, 'model "test": argument 2 is missing: it is a function')
fails(function() piper.model(function() end) end, "model: argument 1 (name) is a function, not a string")
fails(function() piper.model("test", incomplete, { inti = 1 }) end, 'model "test": unknown field "inti" (did you mean "init"?)')
fails(function() piper.model("test", incomplete, { init = {} }) end, 'model "test": init is {}, not ' .. FORMS)

local kept
local done = piper.model("done", function(m)
  kept = m:input("x", { "batch" })
  m:loss(nn.sum(kept))
end)
fails(function() nn.relu(kept) end, "relu: outside a model: it belongs in the function given to piper.model")
fails(function() done:input("y", { "batch" }) end, 'input: model "done" is complete; this belongs in its function')
fails(function() done:loss(kept) end, 'loss: model "done" is complete; this belongs in its function')
fails(function() done:freeze "x" end, 'freeze: model "done" is complete; this belongs in its function')
fails(function() done:flops(0) end, "flops: argument 1 (batch) is 0, not a whole number of at least 1")
bad(function(m) m:flops(1) end, 'model "test" is not complete: its function has not returned')
bad(function(_, x) return x + kept end, 'add: right belongs to model "done", not to "test"')

-- ---- errors of the script's own ----

bad(function() error "of my own" end, "of my own")
bad(function() local t; return t.x end, "attempt to index a nil value (local 't')")
tap.is(piper.model("after", function(m) m:loss(incomplete(m)) end).name, "after", "a model can be made after a failed one")

local script = os.tmpname()
local f = assert(io.open(script, "w"))
f:write [[
local piper = require "piper"
piper.model("gpt", function(m)
  local x = m:input("x", { "batch", 128, 96 })
  piper.annotate("PP", function()
    m:loss(piper.nn.matmul(x, piper.nn.param("w", { 128, 256 })))
  end)
end)
]]
f:close()
local p = assert(io.popen(("'%s' '%s' 2>&1"):format(os.getenv "PIPER" or "piper", script)))
local out = p:read "a"
local _, how, code = p:close()
os.remove(script)
tap.like(out, "^piper: " .. script:gsub("%p", "%%%0") .. ":5: matmul: left is %[batch, 128, 96%], right is %[128, 256%]: 96 is not 128",
  "the interpreter prints the message")
tap.is(how .. " " .. tostring(code), "exit 1", "and exits with 1")

tap.done()
